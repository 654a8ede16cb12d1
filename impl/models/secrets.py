"""Removes secrets from text that another program wrote: a server may quote a key or a password, verbatim or encoded."""

import re
from base64 import b64decode
from binascii import unhexlify
from collections.abc import Iterable, Iterator
from html import unescape
from itertools import chain
from urllib.parse import unquote_plus

LOOKED_AT = 4000  # characters of a text to examine; the rest is never shown
GUESSED = 4  # minimum length of a secret to search for in encoded form: shorter ones match by chance
NESTED = 2  # maximum depth of nested encodings

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{4,}")
_HEX = re.compile(r"(?:[0-9A-Fa-f]{2}[ :]?){4,}")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|([0-7]{3}))")


class Secrets:
    """Words that must not be shown."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = sorted({word for word in words if word}, key=len, reverse=True)
        self._guessed = [word.casefold() for word in self._words if len(word) >= GUESSED]

    def hide(self, text: str) -> str:
        """The beginning of the text, with *** for each secret; empty if it contains an encoded secret."""
        said = shown = text[:LOOKED_AT]
        for word in self._words:
            shown = shown.replace(word, "***")
        cut = len(text) > LOOKED_AT and len(shown) < LOOKED_AT / 2  # the end may be part of a secret
        meant = chain(_readings(shown, NESTED), *(_readings(coded, NESTED - 1) for coded in _read_codes(said)))
        return "" if cut or any(map(self._holds_secret, meant)) else shown

    def _holds_secret(self, text: str) -> bool:
        folded = text.casefold()
        return any(word in folded for word in self._guessed)


def _readings(text: str, deep: int) -> Iterator[str]:
    """The possible decodings of the text: percent-encoding, HTML, escapes, Base64, hex, without spaces, reversed."""
    yield text
    if deep:
        plain = [unquote_plus(text), unescape(text), _ESCAPE.sub(_unescape, text),
                 "".join(char for char in text if char.isprintable() and not char.isspace()), text[::-1]]
        for reading in (*(each for each in plain if each != text), *_read_codes(text)):
            yield from _readings(reading, deep - 1)


def _unescape(match: re.Match[str]) -> str:
    wide, narrow, octal = match.groups()
    return chr(int(octal, 8) if octal else int(wide or narrow, 16))


def _read_codes(text: str) -> Iterator[str]:
    runs = [match[0].replace("-", "+").replace("_", "/") for match in _BASE64.finditer(text)]
    for start in range(4):  # the secret may start at any alignment
        yield " ".join(_decode(run[start:]) for run in runs)
    for match in _HEX.finditer(text):
        yield unhexlify(re.sub("[ :]", "", match[0])).decode("utf-8", "replace")


def _decode(run: str) -> str:
    whole = run[:-1] if len(run) % 4 == 1 else run
    return b64decode(whole + "=" * (-len(whole) % 4)).decode("utf-8", "replace")
