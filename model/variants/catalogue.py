"""The catalogue of all variants of the protocol. Tests, pages, the course and the command line read it."""

from collections.abc import Mapping

from .alternatives import IN_PLACE_OF_THE_MARK, POLICIES
from .bugs import BUGS, SILENT
from .flawed import FLAWED
from .mistakes import MISTAKES
from .record import ProtocolVariant, slug

VARIANTS: Mapping[str, ProtocolVariant] = {
    v.name: v for v in (*BUGS, *SILENT, *FLAWED, *MISTAKES, *IN_PLACE_OF_THE_MARK, *POLICIES)}

# The flaws of the original that fit into one step, by their names there.
FLAWS_OF_ONE_STEP: Mapping[str, ProtocolVariant] = {v.flaw: v for v in VARIANTS.values() if v.flaw}

# By what a command line takes: its name, or that of its flaw.
SLUGS: Mapping[str, ProtocolVariant] = {**{v.slug: v for v in VARIANTS.values()}, **FLAWS_OF_ONE_STEP}

__all__ = ["BUGS", "FLAWED", "FLAWS_OF_ONE_STEP", "IN_PLACE_OF_THE_MARK", "MISTAKES", "POLICIES", "SILENT", "SLUGS",
           "VARIANTS", "ProtocolVariant", "slug"]
