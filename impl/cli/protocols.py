"""Protocols by name: the reference, the revisions of the original, seeded bugs, and user-defined protocols."""

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
    """The built-in protocols by name."""
    from cancelmark.model.revisions import REVISIONS  # loaded on demand

    return {**{r.name: r for r in REVISIONS}, REFERENCE.name: REFERENCE, FAMILY.name: FAMILY}


WHICH = (f"{', '.join(NAMES)} (every call that the server offers), family:FEATURE,… (some of "
         f"{', '.join(f.value for f in Feature)}), seeded:NAME (a seeded bug, such as "
         "seeded:the-mark-is-one-too-high), or your own: module:NAME or file.py:NAME")


def add_protocol(parser: argparse.ArgumentParser, help: str = "the protocol") -> None:
    parser.add_argument("--protocol", "--revision", default=REFERENCE.name, metavar="NAME",
                        help=f"{help}: {WHICH} (default: {REFERENCE.name}, the reference)")


def protocol_named(name: str) -> Behaviour:
    """The protocol with this name. Raises `UsageError` if there is none."""
    where, colon, attribute = name.rpartition(":")
    if not colon:
        if name not in NAMES:
            raise UsageError(f"--protocol {name}: no such protocol; choose one of {WHICH}")
        return REFERENCE if name == REFERENCE.name else known_protocols()[name]
    if where == "seeded":
        return _seeded(attribute)
    if where == FAMILY.name:
        return _with_features(name, attribute.split(","))
    from cancelmark.model.revisions.machine import Revision  # loaded on demand

    module = _loaded(name, where)
    found = getattr(module, attribute, None)
    if not isinstance(found, Protocol | Revision):
        names = [key for key, value in vars(module).items() if isinstance(value, Protocol)]
        what = (f"{where} defines no {attribute}" if found is None else
                f"expected a Protocol, found {type(found).__name__}")
        raise UsageError(f"--protocol {name}: {what}; protocols defined there: {', '.join(names) or 'none'}")
    return found


def _with_features(name: str, features: list[str]) -> Protocol:
    known = {f.value: f for f in Feature}
    for feature in features:
        if feature not in known:
            raise UsageError(f"--protocol {name}: unknown feature {feature!r}; choose from {', '.join(known)}")
    return Protocol(name, features=frozenset(known[feature] for feature in features))


def _seeded(name: str) -> Protocol:
    from difflib import get_close_matches  # loaded on demand

    from cancelmark.model.variants.catalogue import SLUGS, slug

    if (wanted := slug(name)) not in SLUGS:
        near = get_close_matches(wanted, SLUGS, n=3) or list(SLUGS)[:3]
        raise UsageError(f"--protocol seeded:{name}: no such bug; did you mean {', '.join(near)}? model/variants lists "
                         f"all {len(SLUGS)}")
    return SLUGS[wanted].protocol


def _loaded(name: str, where: str) -> ModuleType:
    from cancelmark.conformance.adapter.loading import CannotLoad, load_module  # loaded on demand

    try:
        return load_module(where)
    except CannotLoad as error:
        raise UsageError(f"--protocol {name}: {error}") from error


REMEDY = "Fix the action, its `subject`, or the transition table."


@contextmanager
def errors_as_usage(protocol: Behaviour) -> Iterator[None]:
    """Turns an error in a user-defined protocol into a `UsageError`: it is not a verdict."""
    try:
        yield
    except (UsageError, StoppedError):
        raise
    except (IllegalTrigger, NoPrompt) as error:
        raise UsageError(f"protocol {protocol.name}: an action violates its transition table: {error}; the result is "
                         f"inconclusive. {REMEDY}") from error
    except Exception as error:
        if protocol in known_protocols().values():
            raise
        import traceback

        place = traceback.extract_tb(error.__traceback__)[-1]
        raise UsageError(f"protocol {protocol.name}: {type(error).__name__}: {error} "
                         f"({place.filename}:{place.lineno}); the result is inconclusive") from error
