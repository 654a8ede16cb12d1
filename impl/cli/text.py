"""Text of others on somebody's terminal: nothing in it may be taken for a command to the terminal."""

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SPACE = re.compile(r"\s+")


def plain(text: str) -> str:
    """The text without control characters; lines and tabs stay."""
    return _CONTROL.sub("", text.replace("\r\n", "\n"))


def line(text: str) -> str:
    """The text in one line."""
    return _SPACE.sub(" ", plain(text)).strip()
