"""Cancelmark: how an agent server with several clients accepts, queues, cancels and finishes prompts.

The protocol and the search    REFERENCE, Protocol, State, Outcome, explore, Bounds, Trace
Judging your own server        judge, Adapter, Sent, Ended, Spoken, Refused, TurnFailed
Prompts that run               Runtime, MemoryStore, SqliteStore, ScriptedModel

A name is loaded when it is first used, so `import cancelmark` costs nothing. The client of the server is
`cancelmark.impl.client`, and needs `cancelmark[wire]`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .conformance.adapter import Adapter, Ended, Refused, Sent, Spoken, TurnFailed
    from .conformance.kit import judge
    from .impl.models.scripted import ScriptedModel
    from .impl.runtime import Runtime
    from .impl.store import MemoryStore, SqliteStore
    from .model.check.explore import explore
    from .model.lifecycle import Outcome, State
    from .model.properties import Bounds
    from .model.protocol import REFERENCE, Protocol
    from .model.trace import Trace

__all__ = ["REFERENCE", "Adapter", "Bounds", "Ended", "MemoryStore", "Outcome", "Protocol", "Refused", "Runtime",
           "ScriptedModel", "Sent", "Spoken", "SqliteStore", "State", "Trace", "TurnFailed",
           "explore", "judge"]

_MODULES = {
    "conformance.adapter": ("Adapter", "Ended", "Refused", "Sent", "Spoken", "TurnFailed"),
    "conformance.kit": ("judge",),
    "impl.models.scripted": ("ScriptedModel",),
    "impl.runtime": ("Runtime",),
    "impl.store": ("MemoryStore", "SqliteStore"),
    "model.check.explore": ("explore",),
    "model.lifecycle": ("Outcome", "State"),
    "model.properties": ("Bounds",),
    "model.protocol": ("REFERENCE", "Protocol"),
    "model.trace": ("Trace",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f".{module}", __name__), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
