"""`cancelmark queue`: what waits in a session, and dropping, editing and moving it."""

import argparse
import json
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cancelmark.model.calls import CALLS

from ...files import UsageError
from ..text import line, plain
from ..width import Help
from .connect import Place, add_place, carry_out, connect_place

if TYPE_CHECKING:
    from ...client import Prompt, Refusal, Session

CHANGES = {call.queue[0]: call for call in CALLS if call.names_prompt}
LINES = "\n".join(f"  {f'{word} NUMBER':14} {call.queue[1]}" for word, call in CHANGES.items())

DESCRIPTION = f"""\
List what waits in a session, the next one first, each with its number (#12), or change it:

  clear          cancel all that waits; the prompt that is running goes on
{LINES}

Somebody else may be faster: whoever comes too late is told what has become of the prompt.
"""

EPILOG = """\
exit code: 0 done; 1 too late, or somebody else has changed the text; 2 bad usage, no server, or it refused
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("queue", description=DESCRIPTION, epilog=EPILOG, formatter_class=Help)
    parser.add_argument("what", nargs="?", choices=("list", "clear", *CHANGES), default="list", help="(default: list)")
    parser.add_argument("number", nargs="?", metavar="NUMBER", help="of a prompt, as the list has it")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    add_place(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    seq = 0
    if arguments.what in CHANGES:
        number = (arguments.number or "").removeprefix("#")
        if not (number.isascii() and number.isdigit()):
            raise UsageError(f"queue {arguments.what}: {arguments.number or 'nothing'} is no number of a prompt; "
                             "cancelmark queue lists them")
        seq = int(number)
    elif arguments.number:
        raise UsageError(f"queue {arguments.what}: leave {arguments.number} out, or choose {', '.join(CHANGES)}")
    return carry_out(change(arguments, seq) if seq else queue(arguments))


async def queue(arguments: argparse.Namespace) -> int:
    clear = arguments.what == "clear"
    async with connect_place(arguments) as place:
        session = await place.session(arguments.session)
        waiting = await list_waiting(place, session) if session else ()
        held = bool(session and (await place.client.agent_session(place.workspace.id, session.id)).held)
        if session and clear:
            await place.client.clear_queue(place.workspace.id, session.id)
    if arguments.json:
        prompts = [{"seq": p.seq, "text": p.text, "version": p.version, "run_id": p.run_id or None} for p in waiting]
        print(json.dumps({"session_id": session and session.id, "queued": [p.text for p in waiting], "prompts": prompts,
                          "held": held, "cleared": clear}, ensure_ascii=False))
        return 0
    if held:
        print(f"session {arguments.session} is held: nothing starts before cancelmark resume")
    if not waiting:
        print(f"nothing is queued in session {arguments.session}")
    elif clear:
        print(f"cleared: {len(waiting)} prompt{'s' if len(waiting) > 1 else ''} of session {arguments.session}")
    else:
        for prompt in waiting:
            named = f"#{prompt.seq}" if prompt.seq else "-"
            print(f"{named:>5}  {line(prompt.text)}{' (edited)' if prompt.version else ''}")
    return 0


async def list_waiting(place: Place, session: "Session") -> "tuple[Prompt, ...]":
    """What waits. A server that knows no numbers tells the texts."""
    from ...client import BadAnswer, Prompt

    try:
        return await place.client.waiting(place.workspace.id, session.id)
    except BadAnswer:
        texts = await place.client.queue(place.workspace.id, session.id)
        return tuple(Prompt(0, session.id, "queued", text) for text in texts)


async def change(arguments: argparse.Namespace, seq: int) -> int:
    """Drops, edits or moves one prompt."""
    async with connect_place(arguments) as place:
        from ...client import Refusal

        session = await place.session(arguments.session)
        if session is None:
            raise UsageError(f"session {arguments.session} has no prompt #{seq}: there is no such session yet")
        where = place.workspace.id, session.id
        try:
            if arguments.what == "drop":
                told = await place.client.revoke(*where, seq)
                late = told.effect == "none"
                done = {"canceled": "is canceled", "asked": "runs already, and was asked to stop",
                        "none": f"had ended before: {told.outcome.replace('_', ' ')}"}[told.effect]
            elif arguments.what == "edit":
                late, done = await edit(place, session, seq)
            else:
                await place.client.call(CHANGES[arguments.what].name, *where, seq)
                late, done = False, f"is {CHANGES[arguments.what].done}"
        except Refusal as error:
            if not error.told.code:
                raise
            late, done = True, tell_late(error)
    if arguments.json:
        print(json.dumps({"session_id": session.id, "seq": seq, "done": not late, "says": done}))
    else:
        print(f"prompt #{seq} {done}")
    return int(late)


def tell_late(error: "Refusal") -> str:
    told = error.told
    if told.code == "other_version":
        return "was edited by somebody else meanwhile; look at it again"
    return tell_state(told.state, told.outcome)


def tell_state(state: str, outcome: str) -> str:
    return f"does not wait any more: it is {(outcome or state).replace('_', ' ')}"


async def edit(place: Place, session: "Session", seq: int) -> tuple[bool, str]:
    """Edits the text, in a session that is held meanwhile. What cannot be taken is not lost."""
    from ...client import Refusal

    where = place.workspace.id, session.id
    held = (await place.client.agent_session(*where)).held
    await place.client.hold(*where)
    try:
        prompt = next((p for p in await place.client.waiting(*where) if p.seq == seq), None)
        if prompt is None:
            known = next((p for p in await place.client.prompts(*where) if p.seq == seq), None)
            if known and known.state == "accepted":
                return True, "is still on its way into the queue; try again"
            return True, tell_state(known.state, known.outcome) if known else "does not wait in this session"
        text = ask_editor(prompt.text)
        if text == prompt.text:
            return False, "is as it was"
        try:
            await place.client.replace(*where, seq, text, prompt.version)
        except Refusal as error:
            if not error.told.code:
                raise
            return True, f"{tell_late(error)}. Your text: {plain(text)}"
        return False, "has the new text"
    finally:
        if not held:
            await place.client.resume(*where)


def ask_editor(text: str) -> str:
    """The text as the user's editor leaves it."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="cancelmark-") as directory:
        file = Path(directory) / "prompt.txt"
        file.write_text(text)
        try:
            code = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode
        except (OSError, ValueError) as error:
            raise UsageError(f"$EDITOR {editor}: {error}; set EDITOR to a program that edits a file") from error
        if code:
            raise UsageError(f"$EDITOR {editor} has failed ({code}); nothing is changed")
        try:
            edited = file.read_text()
        except UnicodeDecodeError as error:
            raise UsageError(f"the text is not UTF-8 at byte {error.start}; nothing is changed") from error
    edited = edited if text.endswith("\n") else edited.removesuffix("\n")
    if not edited.strip():
        raise UsageError("the text is empty; nothing is changed: cancelmark queue drop cancels the prompt")
    return edited
