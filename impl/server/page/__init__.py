"""The live page: static files in this directory, completed with the states of a prompt and their colours."""

from functools import cache
from importlib.resources import files

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from cancelmark.model.lifecycle import State
from cancelmark.views.drawing import theme

from ..answers import Response, problem

# Only resources from this server, no inline scripts, no framing.
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
          "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
HEADERS = {"content-security-policy": POLICY, "referrer-policy": "no-referrer",
           "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin"}
FILES = {
    "/": ("index.html", b"text/html; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", b"text/javascript; charset=utf-8") for name in ("app", "acts", "board", "wire")},
    "/style.css": ("style.css", b"text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", b"image/svg+xml"),
}
PATHS = frozenset(FILES)  # served without a token: they contain no data


COLUMN = '<div class="column {0}" data-state="{0}"><h3>{1}</h3><ol></ol><p class="earlier quiet" hidden></p></div>'
SLOTS = {
    "{{columns}}": "\n      ".join(
        COLUMN.format(state.value, state.value.replace("_", " ").capitalize()) for state in State),
    "{{states}}": f"{theme.variables()}\n{theme.prompt_rules('.KIND .card', theme.FILLED)}",
}


@cache
def read_file(name: str) -> bytes:
    """The file with its slots filled."""
    data = files(__package__).joinpath(name).read_text(encoding="utf-8")
    for slot, content in SLOTS.items():
        data = data.replace(slot, content)
    return data.encode()


class File:
    """One file of the page."""

    def __init__(self, name: str, kind: bytes) -> None:
        self._name, self._kind = name, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["cancelmark.call"] = "page"
        if scope["method"] in ("GET", "HEAD"):
            answer = Response(200, read_file(self._name), self._kind, HEADERS)
        else:
            answer = problem(405, f"{scope['method']} is not allowed here; use GET", {"allow": "GET, HEAD"})
        await answer(scope, receive, send)


ROUTES = [Route(path, File(name, kind)) for path, (name, kind) in FILES.items()]
