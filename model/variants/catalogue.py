"""The catalogue of all variants of the protocol, used by tests, pages, the course and the command line."""

from collections.abc import Mapping

from .alternatives import IN_PLACE_OF_THE_MARK, POLICIES
from .asking import ASK_MISTAKES
from .bugs import BUGS, SILENT
from .flawed import FLAWED
from .mistakes import MISTAKES
from .record import ProtocolVariant, slug

VARIANTS: Mapping[str, ProtocolVariant] = {
    v.name: v for v in (*BUGS, *SILENT, *FLAWED, *MISTAKES, *ASK_MISTAKES, *IN_PLACE_OF_THE_MARK, *POLICIES)}

# The flaws of the original that one step can show, by flaw name.
FLAWS_OF_ONE_STEP: Mapping[str, ProtocolVariant] = {v.flaw: v for v in VARIANTS.values() if v.flaw}

# By command-line argument: the variant's name, or the name of its flaw.
SLUGS: Mapping[str, ProtocolVariant] = {**{v.slug: v for v in VARIANTS.values()}, **FLAWS_OF_ONE_STEP}

__all__ = ["ASK_MISTAKES", "BUGS", "FLAWED", "FLAWS_OF_ONE_STEP", "IN_PLACE_OF_THE_MARK", "MISTAKES", "POLICIES",
           "SILENT", "SLUGS", "VARIANTS", "ProtocolVariant", "slug"]
