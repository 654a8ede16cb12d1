"""What a notebook shows of an object, after the extension of the kit is loaded."""

from types import SimpleNamespace

from IPython.core.formatters import DisplayFormatter

from cancelmark.conformance.notebook import load_ipython_extension

FORMATTER = DisplayFormatter()
load_ipython_extension(SimpleNamespace(display_formatter=FORMATTER))


def svg_of(shown: object) -> str:
    return str(FORMATTER.format(shown)[0]["image/svg+xml"])


def html_of(shown: object) -> str:
    return str(FORMATTER.format(shown)[0]["text/html"])
