"""`cancelmark conform langgraph URL` and `cancelmark conform a2a URL`: servers of wires that are not ours."""

import argparse
import shlex
from typing import Any
from urllib.parse import urlsplit

from ...files import UsageError
from .target import ANSWER, WIRE_ONLY, Target, port_options

KINDS = ("langgraph", "a2a")
POLICIES, ENDS = ("enqueue", "reject", "interrupt"), ("join", "stream")
OPTIONS = ("policy", "ends", "assistant")  # that are for LangGraph alone
CARD = ".well-known/agent-card.json"


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("servers of the LangGraph API")
    group.add_argument("--policy", choices=POLICIES, metavar="POLICY", help="the multitask strategy of all runs: "
                       "enqueue (default), reject or interrupt")
    group.add_argument("--ends", choices=ENDS, help="how ends are heard of: by joining each run (default), or from the "
                       "stream of its thread")
    group.add_argument("--assistant", metavar="NAME", help="the graph that answers (default: the first)")


def find_server(arguments: argparse.Namespace) -> Target:
    """The server that is meant; a `UsageError` says why it cannot be judged."""
    kind, url = arguments.url, "".join(arguments.others[:1]).rstrip("/")
    if len(arguments.others) > 1:
        raise UsageError(f"conform {kind}: give one URL; {arguments.others[1]:.80} is one too many")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise UsageError(f"conform {kind}: give the address of the server, as in: cancelmark conform {kind} "
                         "http://127.0.0.1:2024")
    others = (*WIRE_ONLY, "adapter", *(OPTIONS if kind == "a2a" else ()))
    if given := [name for name in others if getattr(arguments, name)]:
        raise UsageError(f"--{given[0].replace('_', '-')} is not for conform {kind}; cancelmark conform --help has "
                         "what is")
    options = [kind, url, *port_options(arguments)]
    return _langgraph(url, options, arguments) if kind == "langgraph" else _a2a(url, options)


def _langgraph(url: str, options: list[str], arguments: argparse.Namespace) -> Target:
    from ...adapters.langgraph import langgraph_adapter

    found = _ask(url, "POST", "/assistants/search", {})
    if not isinstance(found, list):
        raise UsageError(f"{url} does not answer as a server of the LangGraph API: POST /assistants/search has no list "
                         "of assistants")
    known = list(dict.fromkeys(str(each["graph_id"]) for each in found))
    assistant = arguments.assistant or next(iter(known), "")
    if assistant not in known:
        raise UsageError(f"--assistant {assistant}: {url} has {', '.join(known) or 'none'}; choose from these")
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
        raise UsageError(f"{url} speaks A2A {version}; this command knows 1.0, and 0.2 and 0.3 before it")
    if not (card.get("capabilities") or {}).get("streaming"):
        raise UsageError(f"{url} does not stream: its card says so. Whoever polls does not see when a task ends")
    address = str(where.get("url") or url)
    return Target(f"{address}, A2A {version}", a2a_adapter(address, version), True, shlex.join(options))


def _find_card(url: str) -> dict[str, Any]:
    """What the server says of itself: below its address, or, of one of several agents, at its root."""
    parts = urlsplit(url)
    root, name = f"{parts.scheme}://{parts.netloc}", parts.path.rpartition("/")[2]
    for place, path in ((url, f"/{CARD}"), (root, f"/{CARD}?assistant_id={name}")):
        card = _ask(place, "GET", path)
        if isinstance(card, dict) and "capabilities" in card:
            return card
    raise UsageError(f"{url} has no agent card: neither {url}/{CARD} nor {root}/{CARD}; give the address that the card "
                     "is below")


def _ask(url: str, method: str, path: str, sent: dict[str, Any] | None = None) -> Any:
    """What is answered, or None if that is not JSON."""
    import httpx2

    try:
        return httpx2.request(method, url + path, json=sent, timeout=ANSWER, follow_redirects=True).json()
    except httpx2.HTTPError as error:
        raise UsageError(f"{url} does not answer ({type(error).__name__}); check the address, or start the server"
                         ) from error
    except ValueError:
        return None
