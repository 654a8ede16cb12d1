"""`cancelmark conform langgraph URL` and `cancelmark conform a2a URL`: servers that speak other wire protocols."""

import argparse
import shlex
from typing import Any
from urllib.parse import urlsplit

from ...files import UsageError
from .target import ANSWER, WIRE_ONLY, Target, port_options

KINDS = ("langgraph", "a2a")
POLICIES, ENDS = ("enqueue", "reject", "interrupt"), ("join", "stream")
OPTIONS = ("policy", "ends", "assistant")  # only for LangGraph
CARD = ".well-known/agent-card.json"


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("LangGraph API servers")
    group.add_argument("--policy", choices=POLICIES, metavar="POLICY", help="multitask strategy of all runs: enqueue "
                       "(default), reject or interrupt")
    group.add_argument("--ends", choices=ENDS, help="how the kit detects the end of a run: join each run (default), or "
                       "read its thread's stream")
    group.add_argument("--assistant", metavar="NAME", help="graph to run (default: the first)")


def find_server(arguments: argparse.Namespace) -> Target:
    """The server to judge. Raises `UsageError` if it cannot be judged."""
    kind, url = arguments.url, "".join(arguments.others[:1]).rstrip("/")
    if len(arguments.others) > 1:
        raise UsageError(f"conform {kind}: unexpected {arguments.others[1]:.80}; give exactly one URL")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise UsageError(f"conform {kind}: the server's URL is missing or invalid; expected http://HOST:PORT, as in: "
                         f"cancelmark conform {kind} http://127.0.0.1:2024")
    others = (*WIRE_ONLY, "adapter", *(OPTIONS if kind == "a2a" else ()))
    if given := [name for name in others if getattr(arguments, name)]:
        raise UsageError(f"--{given[0].replace('_', '-')} does not apply to conform {kind}; see cancelmark conform "
                         "--help")
    options = [kind, url, *port_options(arguments)]
    return _langgraph(url, options, arguments) if kind == "langgraph" else _a2a(url, options)


def _langgraph(url: str, options: list[str], arguments: argparse.Namespace) -> Target:
    from ...adapters.langgraph import langgraph_adapter

    found = _ask(url, "POST", "/assistants/search", {})
    if not isinstance(found, list):
        raise UsageError(f"{url} is not a LangGraph API server: POST /assistants/search did not return a list of "
                         "assistants; check the URL")
    known = list(dict.fromkeys(str(each["graph_id"]) for each in found))
    assistant = arguments.assistant or next(iter(known), "")
    if assistant not in known:
        raise UsageError(f"--assistant {assistant}: unknown at {url}; choose from {', '.join(known)}" if known else
                         f"{url} has no assistants; add a graph to the server")
    policy, ends = arguments.policy or POLICIES[0], arguments.ends or ENDS[0]
    options += [word for name in OPTIONS if (value := getattr(arguments, name)) for word in (f"--{name}", value)]
    return Target(f"{url}, {policy}", langgraph_adapter(url, assistant, policy, ends), True, shlex.join(options))


def _a2a(url: str, options: list[str]) -> Target:
    from ...adapters.a2a import METHODS, a2a_adapter

    card = _find_card(url)
    spoken = [each for each in card.get("supportedInterfaces") or () if each.get("protocolBinding") == "JSONRPC"]
    where: dict[str, Any] = (spoken or [card])[0]
    version = str(where.get("protocolVersion") or "0.3.0")
    if version[:1] not in METHODS:
        raise UsageError(f"{url} speaks A2A {version}; this command supports versions 0.2, 0.3 and 1.0")
    if not (card.get("capabilities") or {}).get("streaming"):
        raise UsageError(f"{url} does not support streaming, according to its agent card; the kit needs it to observe "
                         "when a task ends")
    address = str(where.get("url") or url)
    return Target(f"{address}, A2A {version}", a2a_adapter(address, version), True, shlex.join(options))


def _find_card(url: str) -> dict[str, Any]:
    """The agent card: below the agent's address, or at the root of a server with several agents."""
    parts = urlsplit(url)
    root, name = f"{parts.scheme}://{parts.netloc}", parts.path.rpartition("/")[2]
    for place, path in ((url, f"/{CARD}"), (root, f"/{CARD}?assistant_id={name}")):
        card = _ask(place, "GET", path)
        if isinstance(card, dict) and "capabilities" in card:
            return card
    raise UsageError(f"{url} has no agent card: neither {url}/{CARD} nor {root}/{CARD}; give the base URL of the card")


def _ask(url: str, method: str, path: str, sent: dict[str, Any] | None = None) -> Any:
    """The JSON body of the response, or None if it is not JSON."""
    import httpx2

    try:
        return httpx2.request(method, url + path, json=sent, timeout=ANSWER, follow_redirects=True).json()
    except httpx2.HTTPError as error:
        raise UsageError(f"{url} does not respond ({type(error).__name__}); check the URL, or start the server"
                         ) from error
    except ValueError:
        return None
