"""`cancelmark ask` and `answer`: the questions of turns, and the answers to them."""

import argparse
import json
from typing import TYPE_CHECKING

from ...files import UsageError
from ..terminal import output, plain_table
from ..text import plain, print_json
from .connect import Target, add_target, connect_target, run_client

if TYPE_CHECKING:
    from ...wire import Ask

DESCRIPTIONS = {
    "ask": """\
List the open questions of a session: what its turns ask before they run a tool. With the name of a question, show that
one, whether or not it is open.
""",
    "answer": """\
Answer a question of a turn. The first answer wins, whichever client gives it. Without a name, answers the only open
question of the session.

Exit status 1: the question has another answer, or no longer takes one.
""",
}

EPILOG = """\
examples:
  cancelmark ask                          list the open questions
  cancelmark answer 7.1 allow             allow the tool that question 7.1 is about
  cancelmark answer deny --text "use the staging server"
  cancelmark answer 7.2 allow --value '"main"'
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    if parser.get_default("command") == "ask":
        parser.add_argument("ask", nargs="?", metavar="SEQ.N", help="show only this question")
        parser.add_argument("--all", action="store_true", help="also list recent questions that have ended")
    else:
        parser.add_argument("answer", nargs="+", metavar="[SEQ.N] allow|deny",
                            help="the question, which may be left out if only one is open, and the answer")
        parser.add_argument("--option", default="", metavar="NAME", help="choose one of the question's options")
        parser.add_argument("--value", metavar="JSON", help="the value that the question asks for")
        parser.add_argument("--text", default="", help="a text for the model, such as the reason of a denial")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    return run_client(show(arguments) if arguments.command == "ask" else answer(arguments))


async def show(arguments: argparse.Namespace) -> int:
    async with connect_target(arguments) as target:
        session = await target.session(arguments.session)
        asks = await target.client.asks(target.workspace.id, session.id, ended=arguments.all or bool(arguments.ask)) \
            if session else ()
    if arguments.ask:
        asks = tuple(ask for ask in asks if ask.ask == arguments.ask)
        if not asks:
            raise UsageError(f"session {arguments.session} has no question {arguments.ask}; cancelmark ask --all lists "
                             "them")
    if arguments.json:
        from ...wire import to_json

        print_json([to_json(ask) for ask in asks])
    elif not asks:
        print(f"session {arguments.session} has no {'' if arguments.all else 'open '}questions")
    else:
        table = plain_table("ask", "tool", "question", "status", wrapped=("question",))
        for ask in asks:
            table.add_row(ask.ask, ask.tool, plain(ask.title), describe_status(ask))
        output().print(table)
    return 0


async def answer(arguments: argparse.Namespace) -> int:
    *names, given = arguments.answer
    if given not in ("allow", "deny") or len(names) > 1:
        raise UsageError(f"answer {' '.join(arguments.answer)}: expected [SEQ.N] allow, or [SEQ.N] deny")
    try:
        value = None if arguments.value is None else json.loads(arguments.value)
    except ValueError as error:
        raise UsageError(f"--value {arguments.value}: not JSON ({error}); quote a text as '\"text\"'") from error
    from ...client import Refusal, read_ended

    async with connect_target(arguments) as target:
        session = await target.known_session(arguments.session, "nothing asks in it")
        name = names[0] if names else await find_only(target, session.id)
        try:
            answered = await target.client.answer(target.workspace.id, session.id, name, given, option=arguments.option,
                                                  value=value, text=arguments.text)
        except Refusal as refusal:
            if (ended := read_ended(refusal)) is None:
                raise
            print(json.dumps({"ask": name, "effect": "none", "status": ended.status, "by": ended.by or None})
                  if arguments.json else f"question {name} is closed: {describe_status(ended)}")
            return 1
    if arguments.json:
        print(json.dumps({"ask": name, "effect": answered.effect, "status": answered.status,
                          "by": answered.by or None}))
    else:
        print(f"question {name}: {answered.status}"
              + (" (it had this answer already)" if answered.effect == "none" else ""))
    return 0


async def find_only(target: Target, session_id: str) -> str:
    """The only open question of the session."""
    asks = await target.client.asks(target.workspace.id, session_id)
    if len(asks) != 1:
        raise UsageError("the session has no open question" if not asks else
                         f"the session has {len(asks)} open questions; name one of {', '.join(a.ask for a in asks)}")
    return asks[0].ask


def describe_status(ask: "Ask") -> str:
    """The state of a question, with who answered it or why it was withdrawn."""
    if ask.status == "ran":
        return "allowed, started"
    return ask.status + (f" ({ask.why})" if ask.why else f" (option {ask.option})" if ask.option else "")
