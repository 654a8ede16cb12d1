"""One table of calls, from which come the routes and the OpenAPI document."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, get_args

from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from cancelmark.model.calls import CALLS as CALLS_ON_SESSIONS
from cancelmark.model.calls import Call as CallOfTable
from cancelmark.model.wire import PROMPT, SESSION, WORKSPACE, path_of

from .. import wire
from ..models import ModelError
from ..runtime import Busy, Closing, Moved, NoPrompt, OtherVersion, Refusal, RunIdInUse, Stuck, TooLate
from ..runtime.refusals import PromptRefusal
from ..runtime.workspace import Full, Unknown
from ..store import NoRoom, StoreError, Unconfirmed
from . import calls, page
from .answers import Answer, problem
from .guard import Guard, TooLarge, TooSlow, read_body
from .lists import LIMIT
from .schemas import BadInput, check_request, model_of, parse_body
from .site import Site

log = logging.getLogger("cancelmark.server")

Handle = Callable[..., Awaitable[ASGIApp]]


@dataclass(frozen=True)
class Call:
    """One call: where it is, what it does, what is sent and what is answered."""

    method: str
    path: str
    handle: Handle
    answer: Any = None  # a type; None: something that is no JSON
    sent: type[wire.Request] | None = None
    status: int = 200
    refusals: tuple[int, ...] = ()  # beyond those that any call may give
    before: str = ""  # what a list is asked for before, page by page
    query: tuple[tuple[str, str, str], ...] = ()  # what else may be asked: name, type, what it means
    told: bool = False  # those who watch are told of it

    @property
    def name(self) -> str:
        return self.handle.__name__

    @property
    def summary(self) -> str:
        return self.handle.__doc__ or ""


_W, _S, _P = WORKSPACE, SESSION, PROMPT


def _family(call: CallOfTable) -> Call:
    """A call of the table: `calls.make` makes it."""
    sent = getattr(wire, call.sent) if call.sent else None
    return Call(call.method, path_of(call), calls.make(call), getattr(wire, call.answer), sent,
                refusals=call.refusals if sent else (400, *call.refusals), told=True)


CALLS: Sequence[Call] = (
    Call("GET", "/v1/health", calls.health, wire.Health),
    Call("GET", "/v1/ready", calls.is_ready, wire.Ready, refusals=(503,)),
    Call("GET", "/v1/version", calls.get_version, wire.Version),
    Call("POST", "/v1/workspaces", calls.open_workspace, wire.Workspace, wire.OpenWorkspace, refusals=(409, 429, 503)),
    Call("GET", "/v1/workspaces", calls.list_workspaces, list[wire.Workspace]),
    Call("GET", _W, calls.get_workspace, wire.Workspace, refusals=(404,)),
    Call("DELETE", _W, calls.delete_workspace, wire.Done, refusals=(400, 404, 503),
         query=(("forget", "boolean", "Delete everything that the server keeps of it"),)),
    Call("GET", _W + "/events", calls.events, refusals=(400, 404)),
    Call("DELETE", "/v1/clients/{client_id}", calls.release_client, wire.Released, refusals=(400,)),
    Call("POST", _W + "/sessions", calls.create_session, wire.Session, wire.CreateSession,
         refusals=(404, 409, 500, 503)),
    Call("GET", _W + "/sessions", calls.list_sessions, list[wire.Session], refusals=(400, 404),
         before="the id of a session"),
    Call("GET", _W + "/sessions/{sid}", calls.get_session, wire.Session, refusals=(404, 503)),
    Call("GET", _W + "/sessions/{sid}/messages", calls.list_messages, list[wire.Message], refusals=(400, 404, 503),
         before="the id of a message"),
    Call("POST", _W + "/agent/init", calls.init_agent, wire.Agent, wire.InitAgent, refusals=(404,)),
    Call("GET", _W + "/agent", calls.get_agent, wire.Agent, refusals=(404,)),
    Call("POST", _W + "/agent", calls.send_prompt, wire.Accepted, wire.SendPrompt, 202,
         refusals=(404, 409, 429, 500, 503)),
    Call("GET", _S, calls.get_session, wire.Session, refusals=(404, 503)),
    Call("GET", _S + "/prompts", calls.list_prompts, list[wire.Prompt], refusals=(400, 404, 503),
         before="a seq: only prompts that are done",
         query=(("run_id", "string", "Only the prompt with this run id"),)),
    Call("GET", _S + "/prompts/queued", calls.count_queued, int, refusals=(404, 503)),
    Call("GET", _S + "/prompts/list", calls.list_queued, list[str] | list[wire.Prompt], refusals=(400, 404, 503),
         query=(("full", "boolean", "Say of each prompt its seq, version and place too"),)),
    *map(_family, CALLS_ON_SESSIONS),
    Call("POST", _S + "/summarize", calls.summarize, wire.Done, refusals=(404, 409, 502, 503)),
    Call("GET", "/metrics", calls.metrics),
    Call("GET", "/openapi.json", calls.openapi, dict[str, Any]),
)

METHODS = {"HEAD", *(call.method for call in CALLS)}  # that figures tell apart: strangers can make up any number

# Which status says what went wrong: the first that fits.
STATUS: Sequence[tuple[type[Exception], int]] = (
    (BadInput, 400), (TooLarge, 413), (TooSlow, 408), (Unknown, 404), (Full, 429), (RunIdInUse, 409), (Closing, 409),
    (Busy, 409), (NoPrompt, 404), (TooLate, 409), (OtherVersion, 412),
    (Stuck, 503), (Moved, 503), (Refusal, 400), (ModelError, 502),
)
RETRY = {"retry-after": "1"}
# For a call that was not answered when the server had to end.
_NOT_BEGUN = problem(503, "the server is closing, and nothing was done; repeat it", RETRY)
_UNKNOWN = problem(500, "the server closed, and it is not known whether this was done; repeat it (a prompt under the "
                        "same run id)", RETRY)


def application(site: Site, *, hosts: Collection[str] | None = None, token: str | None = None) -> ASGIApp:
    """The server as an ASGI application. It answers only to these hosts, if any are given, and only with the token, if
    one is given. Whoever runs it starts and closes the site's workspaces."""
    app = Router([*_routes(site), *page.ROUTES], redirect_slashes=False, default=_no_such_call)

    def note_answer(scope: Scope, status: int, seconds: float) -> None:
        call = scope.get("cancelmark.call", "none")
        site.metrics.requests.labels(scope["method"] if scope["method"] in METHODS else "other", call, status).inc()
        if call != "events":
            site.metrics.seconds.observe(seconds)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("answered", extra={"call": call, "status": status, "milliseconds": round(seconds * 1000, 2)})

    return Guard(app, hosts=hosts, token=token, public=page.PATHS, note_answer=note_answer)


class NameConvertor(PathConvertor):
    """The rest of a path, slashes, line ends and all: `.` and `$` stop at a line end, which leads to another name."""

    regex = "(?s:.*)"


register_url_convertor("name", NameConvertor())


class Endpoint:
    """All calls of one path (R27a)."""

    def __init__(self, site: Site, calls: Sequence[Call]) -> None:
        self._site = site
        self._calls: dict[str, list[Call]] = {}
        for call in calls:
            self._calls.setdefault(call.method, []).append(call)

    def _find(self, method: str, path: str) -> Call | None:
        """The call. All calls on prompts have one path here, and say at its end which of them is meant."""
        found = self._calls.get(method, [])
        ending = (call for call in found[:-1] if path.endswith(call.path.removeprefix(_P)))
        return next(ending, found[-1] if found else None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self._find(scope["method"], scope["path"])
        answer: ASGIApp
        if call is None:
            allowed = ", ".join(sorted(self._calls))
            answer = problem(405, f"{scope['method']} is no call here; try {allowed}", {"allow": allowed})
        else:
            scope["cancelmark.call"] = call.name
            try:
                answer = await self._answer(call, Request(scope, receive))
            except ClientDisconnect:
                return
            except asyncio.CancelledError:
                if not self._site.workspaces.closing:
                    raise
                answer = _UNKNOWN if scope.get("cancelmark.begun") else _NOT_BEGUN
            except Exception as error:
                if isinstance(error, NoRoom):
                    self._site.workspaces.note_full()
                answer = _problem(error, call)
        await answer(scope, receive, send)

    async def _answer(self, call: Call, request: Request) -> ASGIApp:
        if call.method == "GET":
            return await call.handle(self._site, request)
        data = await read_body(request, self._site.limits.body)  # nothing is done before all of the request is there
        request.scope["cancelmark.begun"] = True
        if call.sent is None:
            return await call.handle(self._site, request)
        return await call.handle(self._site, request, check_request(call.sent, parse_body(data) if data else {}))


def _routes(site: Site) -> list[Route]:
    by_path: dict[str, list[Call]] = {_W + "/agent": []}  # the busiest is looked at first
    for call in CALLS:
        path = _S + "/prompts/{prompt:name}" if call.path.startswith(_P) else call.path  # a run id may have anything
        by_path.setdefault(path, []).append(call)
    return [Route(path, Endpoint(site, calls)) for path, calls in by_path.items()]


def _problem(error: Exception, call: Call) -> Answer:
    """What went wrong, as a status and a message (R27b)."""
    if isinstance(error, StoreError):
        log.error("the store failed", extra={"call": call.name, "problem": error})
        status = 500 if isinstance(error, Unconfirmed) else 503  # which say that nobody knows, and that nothing is kept
        return problem(status, f"{error.problem}; {error.remedy}", RETRY)  # not where its files are
    for kind, status in STATUS:
        if isinstance(error, kind):
            return problem(status, str(error), RETRY if status == 429 else None, **_tell_more(error))
    log.error("a call failed", extra={"call": call.name}, exc_info=error)
    return problem(500, f"the server failed: {type(error).__name__}; its log says more")


def _tell_more(error: Exception) -> dict[str, Any]:
    """What a caller that came too late, or to a busy session, wants to know (R33b)."""
    if isinstance(error, PromptRefusal):
        return {"code": "too_late" if isinstance(error, TooLate) else "other_version", **error.told}
    return {"code": "busy"} if isinstance(error, Busy) else {}


async def _no_such_call(scope: Scope, receive: Receive, send: Send) -> None:
    answer = problem(404, f"there is no call {scope['path']!r:.200}; /openapi.json lists them")
    await answer(scope, receive, send)


# --- the OpenAPI document

@cache
def document() -> dict[str, Any]:
    """The OpenAPI document of all calls."""
    kinds = {kind for call in CALLS for kind in (call.sent, _wire_type(call.answer)) if kind} | {wire.Problem}
    models = [model_of(kind) for kind in sorted(kinds, key=lambda kind: kind.__name__)]
    _, definitions = models_json_schema([(model, "validation") for model in models],
                                        ref_template="#/components/schemas/{model}")
    paths: dict[str, dict[str, Any]] = {}
    for call in CALLS:
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Cancelmark", "version": calls.VERSION, "license": {"name": "MIT", "identifier": "MIT"},
                 "summary": "Prompts that are accepted, queued, canceled and finished without losing any"},
        "paths": paths,
        "components": {"schemas": definitions["$defs"],
                       "responses": {str(status): _refusal(text) for status, text in REFUSALS.items()},
                       "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def _refusal(text: str) -> dict[str, Any]:
    return {"description": text,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}


def _wire_type(answer: Any) -> type | None:
    """The type of the wire that an answer is, or is a list of."""
    if isinstance(answer, UnionType):
        return next(filter(None, map(_wire_type, get_args(answer))), None)
    inner = answer if is_dataclass(answer) else next(iter(get_args(answer)), None)
    return inner if isinstance(inner, type) and is_dataclass(inner) else None


def _schema(answer: Any) -> dict[str, Any]:
    if isinstance(answer, UnionType):
        return {"anyOf": [_schema(one) for one in get_args(answer)]}
    if kind := _wire_type(answer):
        reference = {"$ref": f"#/components/schemas/{kind.__name__}"}
        return reference if answer is kind else {"type": "array", "items": reference}
    return TypeAdapter(answer).json_schema()


def _operation(call: Call) -> dict[str, Any]:
    names = [part[1:-1] for part in call.path.split("/") if part.startswith("{")]
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True,
         "schema": {"type": "string", "format": "uuid"} if name == "client_id" else {"type": "string"}}
        for name in names]
    kind = "application/json" if call.answer else "text/plain"
    if call.handle is calls.events:
        kind = "text/event-stream"
        parameters += [
            {"name": "client_id", "in": "query", "required": True, "schema": {"type": "string", "format": "uuid"},
             "description": "Who watches: made up by the client"},
            {"name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string"},
             "description": "The id of the last event that was seen, to go on from there"}]
    parameters += [
        {"name": name, "in": "query", "required": False, "schema": {"type": type}, "description": description}
        for name, type, description in call.query]
    if call.told:
        parameters.append({"name": wire.CLIENT, "in": "header", "required": False,
                           "schema": {"type": "string", "format": "uuid"},
                           "description": "Who calls: those who watch are told"})
    if call.before:
        parameters += [
            {"name": "limit", "in": "query", "required": False,
             "schema": {"type": "integer", "minimum": 1, "maximum": LIMIT}, "description": "How many, at most"},
            {"name": "before", "in": "query", "required": False, "schema": {"type": "string"},
             "description": f"Only what came before: {call.before}"}]
    content = {"schema": _schema(call.answer)} if call.answer else {"schema": {"type": "string"}}
    operation: dict[str, Any] = {
        "operationId": call.name if call.path != _S else "get_agent_session", "summary": call.summary,
        **({"parameters": parameters} if parameters else {}),
        "responses": {str(call.status): {"description": "It is done" if call.status == 200 else "Accepted",
                                         **({"headers": {"Link": LINK}} if call.before else {}),
                                         "content": {kind: content}}}}
    refusals = {401, 403, *call.refusals, *((400,) if call.sent else ()), *((408, 413) if call.method != "GET" else ())}
    for status in sorted(refusals):
        operation["responses"][str(status)] = {"$ref": f"#/components/responses/{status}"}
    if call.sent:
        required = any(field.is_required() for field in model_of(call.sent).model_fields.values())
        operation["requestBody"] = {"required": required, "content": {
            "application/json": {"schema": {"$ref": f"#/components/schemas/{call.sent.__name__}"}}}}
    return operation


LINK = {"description": 'Only if there are earlier ones: <?QUERY>; rel="prev" asks for the page before this one',
        "schema": {"type": "string"}}
REFUSALS = {
    400: "What was sent cannot be taken; the message names the field",
    401: "A token is required",
    403: "The request comes from a page of another origin, or by a name that is not this server's",
    404: "There is no such workspace, session or prompt",
    408: "The body did not arrive in time",
    409: "The workspace is closing, the run id is in use by another prompt, the session is busy, or the prompt does "
         "not wait any more: `state` and `outcome` say where it is",
    412: "The prompt has another text than the one that was to be replaced: `version` says which",
    413: "The body is too large",
    429: "A limit is reached; Retry-After says when to try again",
    500: "The server failed, and it is not known whether it did what was asked; a prompt can be posted again under the "
         "same run id",
    502: "The language model failed",
    503: "The store cannot be written to or read at present, and nothing was done; if Retry-After is there, try again",
}
