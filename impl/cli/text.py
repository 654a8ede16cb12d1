"""Text on standard output: JSON reports, and untrusted text without terminal control sequences."""

import json
import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SPACE = re.compile(r"\s+")


def plain(text: str) -> str:
    """The text without control characters, except newlines and tabs."""
    return _CONTROL.sub("", text.replace("\r\n", "\n"))


def line(text: str) -> str:
    """The text on one line."""
    return _SPACE.sub(" ", plain(text)).strip()


def print_json(data: object) -> None:
    """Prints a machine-readable report."""
    print(json.dumps(data, indent=2, ensure_ascii=False))
