"""Trace files, as `play` saves them: Informal Trace Format, with the name of the protocol."""

import json
from pathlib import Path

from cancelmark.model.protocol import REFERENCE, Behaviour
from cancelmark.model.trace import Trace
from cancelmark.views.traces.itf import itf_trace, trace_itf

from ..files import UsageError, write
from .protocols import known_protocols


def save(path: Path, protocol: Behaviour, trace: Trace) -> None:
    write(path, json.dumps(trace_itf(trace, protocol.name), indent=2, ensure_ascii=False) + "\n")


def load(path: Path, given: Behaviour = REFERENCE) -> tuple[Behaviour, Trace]:
    """The trace in a file, and its protocol: the reference, if the file names none. A user-defined protocol must be
    `given`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}; give a trace saved by `cancelmark play`") from error
    meta = document.get("#meta", {}) if isinstance(document, dict) else {}
    name = meta.get("protocol", REFERENCE.name) if isinstance(meta, dict) else REFERENCE.name
    protocol = given if given.name == name else known_protocols().get(name)
    if protocol is None:
        raise UsageError(f"{path} is a trace of protocol {name}, which is not built in "
                         f"({', '.join(known_protocols())}); give its file with --protocol")
    try:
        return protocol, itf_trace(protocol, document)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
