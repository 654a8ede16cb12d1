"""Protocols by name: the reference, the revisions of the original, seeded bugs, and anybody's own."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType

from cancelmark.model.check.explore import StoppedError
from cancelmark.model.family import Feature
from cancelmark.model.lifecycle import IllegalTrigger
from cancelmark.model.protocol import FAMILY, REFERENCE, Behaviour, Protocol
from cancelmark.model.session import NoPrompt

from ..files import UsageError

NAMES = ("r0", "r1", "r2", "r3", "r4", REFERENCE.name, FAMILY.name)


@cache
def known_protocols() -> dict[str, Behaviour]:
    """Those that have a name of their own."""
    from cancelmark.model.revisions import REVISIONS  # for those who do not mean the reference

    return {**{r.name: r for r in REVISIONS}, REFERENCE.name: REFERENCE, FAMILY.name: FAMILY}


WHICH = (f"{', '.join(NAMES)} (every feature), family:FEATURE,… (some of "
         f"{', '.join(f.value for f in Feature)}), seeded:NAME (a bug of the model, such as "
         "seeded:the-mark-is-one-too-high), or your own: module:NAME or file.py:NAME")


def add_protocol(parser: argparse.ArgumentParser, help: str = "which protocol") -> None:
    parser.add_argument("--protocol", "--revision", default=REFERENCE.name, metavar="NAME",
                        help=f"{help}: {WHICH} (default: {REFERENCE.name}, the reference)")


def protocol_named(name: str) -> Behaviour:
    """The protocol of that name; says what is wrong with the name otherwise."""
    where, colon, attribute = name.rpartition(":")
    if not colon:
        if name not in NAMES:
            raise UsageError(f"--protocol {name}: no such protocol; choose one of {WHICH}")
        return REFERENCE if name == REFERENCE.name else known_protocols()[name]
    if where == "seeded":
        return _seeded(attribute)
    if where == FAMILY.name:
        return _with_features(name, attribute.split(","))
    from cancelmark.model.revisions.machine import Revision  # for those who name their own

    module = _loaded(name, where)
    found = getattr(module, attribute, None)
    if not isinstance(found, Protocol | Revision):
        names = [key for key, value in vars(module).items() if isinstance(value, Protocol)]
        what = "there is no such name" if found is None else f"that is no protocol, but of type {type(found).__name__}"
        raise UsageError(f"--protocol {name}: {what}; protocols there: {', '.join(names) or 'none'}")
    return found


def _with_features(name: str, features: list[str]) -> Protocol:
    known = {f.value: f for f in Feature}
    for feature in features:
        if feature not in known:
            raise UsageError(f"--protocol {name}: {feature or 'nothing'} is no feature; choose some of "
                             f"{', '.join(known)}")
    return Protocol(name, features=frozenset(known[feature] for feature in features))


def _seeded(name: str) -> Protocol:
    from difflib import get_close_matches  # for those who name a bug

    from cancelmark.model.variants.catalogue import SLUGS, slug

    if (wanted := slug(name)) not in SLUGS:
        near = get_close_matches(wanted, SLUGS, n=3) or list(SLUGS)[:3]
        raise UsageError(f"--protocol seeded:{name}: there is no such bug; try {', '.join(near)}, or any other of the "
                         f"{len(SLUGS)} in model/variants")
    return SLUGS[wanted].protocol


def _loaded(name: str, where: str) -> ModuleType:
    from cancelmark.conformance.adapter.loading import CannotLoad, load_module  # for those who name a module

    try:
        return load_module(where)
    except CannotLoad as error:
        raise UsageError(f"--protocol {name}: {error}") from error


REMEDY = "Mend the action, its `subject`, or the rows."


@contextmanager
def sound(protocol: Behaviour) -> Iterator[None]:
    """An action that breaks its own rows, or fails, is told apart from a verdict."""
    try:
        yield
    except (UsageError, StoppedError):
        raise
    except (IllegalTrigger, NoPrompt) as error:
        raise UsageError(f"protocol {protocol.name}: an action does what its rows do not allow: {error}; nothing is "
                         f"claimed. {REMEDY}") from error
    except Exception as error:
        if protocol in known_protocols().values():
            raise
        import traceback

        place = traceback.extract_tb(error.__traceback__)[-1]
        raise UsageError(f"protocol {protocol.name}: {type(error).__name__}: {error} "
                         f"({place.filename}:{place.lineno}); nothing is claimed") from error
