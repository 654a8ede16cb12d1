"""The application: one table of calls, from which the routes and the OpenAPI document are generated."""

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
from cancelmark.model.calls import ClientCall as CallOfTable
from cancelmark.model.wire import PROMPT, SESSION, WORKSPACE, path_of

from .. import wire
from ..models import ModelError
from ..runtime import Busy, Closing, Leaving, Moved, NoPrompt, OtherVersion, Refusal, RunIdInUse, Stuck, TooLate
from ..runtime.refusals import NoQuestion, PromptRefusal, QuestionClosed
from ..runtime.workspace import Full, Unknown
from ..store import NoRoom, StoreError, Unconfirmed
from . import calls, page
from .answers import Response, problem
from .guard import Guard, TooLarge, TooSlow, read_body
from .lists import LIMIT
from .schemas import BadInput, check_request, model_of, parse_body
from .site import Site

log = logging.getLogger("cancelmark.server")

Handle = Callable[..., Awaitable[ASGIApp]]


@dataclass(frozen=True)
class Call:
    """One call: its method and path, its handler, and its request and response types."""

    method: str
    path: str
    handle: Handle
    answer: Any = None  # the response type; None: not JSON
    sent: type[wire.Request] | None = None
    status: int = 200
    refusals: tuple[int, ...] = ()  # error statuses, besides those of every call
    before: str = ""  # for a paginated list: the meaning of `before`
    query: tuple[tuple[str, str, str], ...] = ()  # other query parameters: name, type, description
    told: bool = False  # subscribers are notified of the call

    @property
    def name(self) -> str:
        return self.handle.__name__

    @property
    def summary(self) -> str:
        return self.handle.__doc__ or ""


_W, _S, _P = WORKSPACE, SESSION, PROMPT


def _family(call: CallOfTable) -> Call:
    """A call in the table of calls on sessions; `calls.make` creates its handler."""
    sent = getattr(wire, call.sent) if call.sent else None
    return Call(call.method, path_of(call), calls.make(call), getattr(wire, call.answer), sent,
                refusals=call.refusals if sent else (400, *call.refusals), told=True)


CALLS: Sequence[Call] = (
    Call("GET", "/v1/health", calls.health, wire.Health),
    Call("GET", "/v1/ready", calls.is_ready, wire.Ready, refusals=(503,)),
    Call("GET", "/v1/version", calls.get_version, wire.Version),
    Call("POST", "/v1/workspaces", calls.open_workspace, wire.Workspace, wire.OpenWorkspace, refusals=(409, 429, 503)),
    Call("GET", "/v1/workspaces", calls.list_workspaces, list[wire.Workspace]),
    Call("GET", _W, calls.get_workspace, wire.Workspace, refusals=(404, 503)),
    Call("DELETE", _W, calls.delete_workspace, wire.Done, refusals=(400, 404, 503),
         query=(("forget", "boolean", "Also delete all data of the workspace"),)),
    Call("GET", _W + "/events", calls.events, refusals=(400, 404, 503)),
    Call("DELETE", "/v1/clients/{client_id}", calls.release_client, wire.Released, refusals=(400,)),
    Call("POST", _W + "/sessions", calls.create_session, wire.Session, wire.CreateSession,
         refusals=(404, 409, 500, 503)),
    Call("GET", _W + "/sessions", calls.list_sessions, list[wire.Session], refusals=(400, 404, 503),
         before="the id of a session"),
    Call("GET", _W + "/sessions/{sid}", calls.get_session, wire.Session, refusals=(404, 503)),
    Call("GET", _W + "/sessions/{sid}/messages", calls.list_messages, list[wire.Message], refusals=(400, 404, 503),
         before="the id of a message"),
    Call("POST", _W + "/agent/init", calls.init_agent, wire.Agent, wire.InitAgent, refusals=(404, 503)),
    Call("GET", _W + "/agent", calls.get_agent, wire.Agent, refusals=(404, 503)),
    Call("POST", _W + "/agent", calls.send_prompt, wire.Accepted, wire.SendPrompt, 202,
         refusals=(404, 409, 429, 500, 503)),
    Call("GET", _S, calls.get_session, wire.Session, refusals=(404, 503)),
    Call("GET", _S + "/prompts", calls.list_prompts, list[wire.Prompt], refusals=(400, 404, 503),
         before="a seq; lists only finished prompts",
         query=(("run_id", "string", "Only the prompt with this run id"),)),
    Call("GET", _S + "/prompts/queued", calls.count_queued, int, refusals=(404, 503)),
    Call("GET", _S + "/prompts/list", calls.list_queued, list[str] | list[wire.Prompt], refusals=(400, 404, 503),
         query=(("full", "boolean", "Include the seq, version and position of each prompt"),)),
    *map(_family, CALLS_ON_SESSIONS),
    Call("GET", _S + "/asks", calls.list_asks, list[wire.Ask], refusals=(400, 404, 503),
         query=(("all", "boolean", "Also list questions that have ended"),)),
    Call("POST", _S + "/asks/{ask}", calls.answer_ask, wire.AskAnswered, wire.AnswerAsk, refusals=(404, 409, 503),
         told=True),
    Call("POST", _S + "/summarize", calls.summarize, wire.Done, refusals=(404, 409, 502, 503)),
    Call("GET", "/metrics", calls.metrics),
    Call("GET", "/openapi.json", calls.openapi, dict[str, Any]),
)

METHODS = {"HEAD", *(call.method for call in CALLS)}  # label values of metrics; clients could invent any number

# The status for each error; the first match counts.
STATUS: Sequence[tuple[type[Exception], int]] = (
    (BadInput, 400), (TooLarge, 413), (TooSlow, 408), (Unknown, 404), (Full, 429), (RunIdInUse, 409),
    (Leaving, 503), (Closing, 409), (Busy, 409), (NoPrompt, 404), (NoQuestion, 404), (TooLate, 409),
    (QuestionClosed, 409), (OtherVersion, 412), (Stuck, 503), (Moved, 503), (Refusal, 400), (ModelError, 502),
)
RETRY = {"retry-after": "1"}
# Responses to calls that are pending when the server exits.
_NOT_BEGUN = problem(503, "the server is closing and did not run this call; retry it", RETRY)
_UNKNOWN = problem(500, "the server closed; this call may or may not have taken effect: retry it (a prompt with the "
                        "same run id)", RETRY)


def application(site: Site, *, hosts: Collection[str] | None = None, token: str | None = None) -> ASGIApp:
    """The server as an ASGI application. If `hosts` is given, only these Host names are accepted; if `token` is given,
    it is required. The caller starts and closes the site's workspaces."""
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
    """The rest of a path, including slashes and newlines. (By default `.` and `$` stop at a newline, which would match
    another name.)"""

    regex = "(?s:.*)"


register_url_convertor("name", NameConvertor())


class Endpoint:
    """Dispatches all calls of one path."""

    def __init__(self, site: Site, calls: Sequence[Call]) -> None:
        self._site = site
        self._calls: dict[str, list[Call]] = {}
        for call in calls:
            self._calls.setdefault(call.method, []).append(call)

    def _find(self, method: str, path: str) -> Call | None:
        """The call for a method and path. All calls on prompts share one route; the path's end tells them apart."""
        found = self._calls.get(method, [])
        ending = (call for call in found[:-1] if path.endswith(call.path.removeprefix(_P)))
        return next(ending, found[-1] if found else None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self._find(scope["method"], scope["path"])
        answer: ASGIApp
        if call is None:
            allowed = ", ".join(sorted(self._calls))
            answer = problem(405, f"{scope['method']} is not allowed here; use {allowed}", {"allow": allowed})
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
        data = await read_body(request, self._site.limits.body)  # no effect before the request is complete
        request.scope["cancelmark.begun"] = True
        if call.sent is None:
            return await call.handle(self._site, request)
        return await call.handle(self._site, request, check_request(call.sent, parse_body(data) if data else {}))


def _routes(site: Site) -> list[Route]:
    by_path: dict[str, list[Call]] = {_W + "/agent": []}  # the most frequent route is matched first
    for call in CALLS:
        path = _S + "/prompts/{prompt:name}" if call.path.startswith(_P) else call.path  # run ids may contain slashes
        by_path.setdefault(path, []).append(call)
    return [Route(path, Endpoint(site, calls)) for path, calls in by_path.items()]


def _problem(error: Exception, call: Call) -> Response:
    """The error response for an exception."""
    if isinstance(error, StoreError):
        log.error("the store failed", extra={"call": call.name, "problem": error})
        status = 500 if isinstance(error, Unconfirmed) else 503  # 500: may have taken effect; 503: had no effect
        return problem(status, f"{error.problem}; {error.remedy}", RETRY)  # without the paths of its files
    for kind, status in STATUS:
        if isinstance(error, kind):
            headers = RETRY if isinstance(error, Full | Leaving | Moved) else None
            return problem(status, str(error), headers, **_tell_more(error))
    log.error("a call failed", extra={"call": call.name}, exc_info=error)
    return problem(500, f"internal server error: {type(error).__name__}; see the server's log")


def _tell_more(error: Exception) -> dict[str, Any]:
    """The extra fields of the error for a late caller or a busy session."""
    if isinstance(error, PromptRefusal):
        return {"code": "too_late" if isinstance(error, TooLate) else "other_version", **error.told}
    if isinstance(error, QuestionClosed):
        return {"code": "answered" if error.question.answer and not error.question.why else "withdrawn",
                "ask": wire.to_json(error.question)}
    return {"code": "busy"} if isinstance(error, Busy) else {}


async def _no_such_call(scope: Scope, receive: Receive, send: Send) -> None:
    answer = problem(404, f"no such call {scope['path']!r:.200}; /openapi.json lists them")
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
                 "summary": "Accepts, queues, cancels and finishes prompts without losing any"},
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
    """The wire type of a response, or of the items of a list."""
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
             "description": "An id that the client chooses for itself"},
            {"name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string"},
             "description": "The id of the last event received, to resume after it"}]
    parameters += [
        {"name": name, "in": "query", "required": False, "schema": {"type": type}, "description": description}
        for name, type, description in call.query]
    if call.told:
        parameters.append({"name": wire.CLIENT, "in": "header", "required": False,
                           "schema": {"type": "string", "format": "uuid"},
                           "description": "The id of the calling client; reported to subscribers"})
    if call.before:
        parameters += [
            {"name": "limit", "in": "query", "required": False,
             "schema": {"type": "integer", "minimum": 1, "maximum": LIMIT}, "description": "Maximum number of items"},
            {"name": "before", "in": "query", "required": False, "schema": {"type": "string"},
             "description": f"Only items before this one: {call.before}"}]
    content = {"schema": _schema(call.answer)} if call.answer else {"schema": {"type": "string"}}
    operation: dict[str, Any] = {
        "operationId": call.name if call.path != _S else "get_agent_session", "summary": call.summary,
        **({"parameters": parameters} if parameters else {}),
        "responses": {str(call.status): {"description": "Success" if call.status == 200 else "Accepted",
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


LINK = {"description": 'Only if there are earlier items: <?QUERY>; rel="prev", the query for the previous page',
        "schema": {"type": "string"}}
REFUSALS = {
    400: "The request is invalid; the message names the field",
    401: "A token is required",
    403: "A cross-origin request, or an unknown Host",
    404: "No such workspace, session or prompt",
    408: "The body did not arrive in time",
    409: "The workspace is closing, another prompt uses the run id, the session is busy, or the prompt is no longer "
         "waiting: `state` and `outcome` report its state; or the question has ended: `ask` has it",
    412: "The text of the prompt has changed: `version` is its current version",
    413: "The body is too large",
    429: "A limit is reached; retry after the time in Retry-After",
    500: "The server failed; the call may or may not have taken effect. Resending a prompt with the same run id is "
         "idempotent",
    502: "The language model failed",
    503: "The store is unavailable, and the call had no effect; if Retry-After is set, retry",
}
