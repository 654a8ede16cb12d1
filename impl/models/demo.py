"""The built-in model as one plays with it: it repeats what it hears, slowly enough to be canceled, and does as it is
told.

    hello                  is repeated word by word
    slow: hello            takes ten times as long                 fast: hello       takes no time
    fail: hello            fails in the middle                     stubborn: hello   does not let itself be stopped
"""

from collections.abc import Iterator

from ..models import Failure, ModelError, TextDelta
from .scripted import Beat, Delay, Fail, Request, ScriptedModel, Stubborn, echo

PACE = 0.4  # seconds between two pieces of an answer


def demo_model(pace: float = PACE) -> ScriptedModel:
    """A model that pauses for so long between two pieces of its answer."""
    return ScriptedModel(lambda request: tuple(_scene(request, pace)), hears=1)  # the prompt


def _scene(request: Request, pace: float) -> Iterator[Beat]:
    directive, colon, rest = request.prompt.strip().partition(":")
    directive = directive.lower() if colon else ""
    pause = pace * {"slow": 10, "fast": 0}.get(directive, 1)
    beats = list(_spoken(rest if directive in ("slow", "fast", "fail", "stubborn") else request.prompt, pause))
    if directive == "stubborn":
        yield Stubborn(tuple(beats))
    elif directive == "fail":
        yield from beats[:len(beats) // 2]
        yield Fail(ModelError(Failure.UNAVAILABLE, "the built-in model fails, because it was told to"))
    else:
        yield from beats


def _spoken(text: str, pause: float) -> Iterator[TextDelta | Delay]:
    for piece in echo(text.strip()):
        yield Delay(pause)
        yield piece
