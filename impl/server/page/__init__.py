"""The live page: files beside this one, as they are."""

from importlib.resources import files

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..answers import Answer, problem

# Nothing from elsewhere, no inline script, and nobody may frame it.
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
          "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
HEADERS = {"content-security-policy": POLICY, "referrer-policy": "no-referrer",
           "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin"}
FILES = {
    "/": ("index.html", b"text/html; charset=utf-8"),
    "/app.js": ("app.js", b"text/javascript; charset=utf-8"),
    "/style.css": ("style.css", b"text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", b"image/svg+xml"),
}
PATHS = frozenset(FILES)  # who may see these need not have a token: they hold nothing


class File:
    """One file of the page."""

    def __init__(self, name: str, kind: bytes) -> None:
        self._name, self._kind = name, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["cancelmark.call"] = "page"
        if scope["method"] in ("GET", "HEAD"):
            data = files(__package__).joinpath(self._name).read_bytes()
            answer = Answer(200, data, self._kind, HEADERS)
        else:
            answer = problem(405, "this is a page; GET it", {"allow": "GET, HEAD"})
        await answer(scope, receive, send)


ROUTES = [Route(path, File(name, kind)) for path, (name, kind) in FILES.items()]
