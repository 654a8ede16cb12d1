"""Logs as lines of key=value on standard error: time, level, event, and its details.

Logs contain only ids and numbers: no header, no query, no text of a prompt or answer, and so no secret. A library
message that remote clients can trigger at will is written at most once per second.
"""

import json
import logging
import sys
from collections import Counter
from datetime import UTC, datetime

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


class KeyValueFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()}
        fields |= {key: value for key, value in vars(record).items() if key not in _PLAIN}
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return " ".join(f"{key}={_value(value)}" for key, value in fields.items())


class RateLimitFilter(logging.Filter):
    """Passes the same library message at most once per second; `more` is the number suppressed since."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[str, float] = {}
        self._held: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.msg if isinstance(record.msg, str) else ""
        if record.name.startswith("cancelmark") or record.exc_info:
            return True
        if record.created - self._passed.get(message, 0.0) < 1.0:
            self._held[message] += 1
            return False
        self._passed[message] = record.created
        if more := self._held.pop(message, 0):
            record.more = more
        return True


def _value(value: object) -> str:
    text = str(value)
    plain = text and text.isprintable() and not set(text) & set(' "=\\')
    return text if plain else json.dumps(text, ensure_ascii=False)


def start(level: str) -> None:
    """Configures logging at this level."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    handler.addFilter(RateLimitFilter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("cancelmark").setLevel(level.upper())
