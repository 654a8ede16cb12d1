"""Clients of the family under the deterministic loop: what they are told must be true, and durable by then."""

import asyncio
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from cancelmark.impl.runtime import Busy, Handle, NoPrompt, Refusal, TooLate
from cancelmark.impl.runtime.messages import text_of
from cancelmark.impl.runtime.session import Session, TakenStep
from cancelmark.impl.store import AcceptPrompt, ChangePrompt, HoldSession, Operation, ReplaceText
from cancelmark.model.family import Feature
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.observer import in_front, unreached
from cancelmark.model.oracle import Call
from cancelmark.model.session import DEFAULT_TRAITS, Traits
from cancelmark.model.session import label as name_of

if TYPE_CHECKING:
    from support.scheduled import Do, World

CALLS = ("revoke", "stop", "hold", "resume", "replace", "next")


class Taken(NamedTuple):
    """A step that a client's call has taken, as it was then."""

    session: str
    effects: TakenStep
    traits: list[tuple[int, Traits]]
    flips: int  # how often the session had been held or released by then
    front: int  # the prompt that a stop had to reach; 0: nobody


class Waiting(NamedTuple):
    """What a prompt that wants an idle session has found."""

    live: set[int]
    done: set[int]
    held: bool
    accepting: list[int]  # calls that were under way, by number


class Callers:
    """What the callers of a world were told, held against what its sessions did and its store has."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.traits: dict[int, Traits] = {}  # as they are stored
        self._flips: Counter[str] = Counter()
        self._stored_flips: Counter[str] = Counter()
        self.texts: defaultdict[int, list[str]] = defaultdict(list)  # as stored, by version
        self._taken: dict[str, Taken] = {}  # by the task of the client
        self._canceled: set[int] = set()
        self._accepting: dict[int, str] = {}  # the session that a call is accepting in, by its number
        self._seqs: dict[int, int] = {}  # of the prompts that were accepted, by the number of the call
        self._rejects: dict[int, Waiting] = {}  # by seq

    # --- what is seen

    def took(self, session: Session, effects: TakenStep, here: int) -> None:
        """Comes before the world has noted the step."""
        before = self._world.server.sessions[here]
        self._flips[session.id] += session.held is not before.held
        task = asyncio.current_task()
        if task and task.get_name().startswith("client "):
            front = in_front(before, None, effects.variant) if effects.action == "stop" else []
            self._taken[task.get_name()] = Taken(
                session.id, effects, [(p.seq, p.traits) for p, *_ in effects.changed], self._flips[session.id],
                next((p.seq for p in front), 0))

    def committed(self, op: Operation) -> None:
        match op:
            case AcceptPrompt():
                self.traits[op.seq], self.texts[op.seq] = op.traits, [op.text]
            case ChangePrompt():
                self.traits[op.seq] = op.traits
            case ReplaceText():
                self.texts[op.seq].append(op.text)
                self._world.texts[op.seq] = op.text
            case HoldSession():
                self._stored_flips[op.session_id] += 1

    # --- what is called

    async def accept(self, do: "Do", number: int, text: str, run_id: str | None) -> Handle | None:
        """Accepts the prompt; None: the session was not idle, and had to be."""
        mode = Feature(do.mode) if do.mode else None
        begin, found = self._world.tick(), self._look(do.session)
        self._accepting[number] = do.session
        try:
            handle = await self._world.runtime.accept(do.session, text, run_id, (), mode)
        except Busy:
            if not (found.live or found.held or found.accepting):
                self._world.complain("reject", f"{do} is refused, and its session was idle")
            return None
        finally:
            del self._accepting[number]
        self._seqs[number] = handle.seq
        if do.mode == "reject":
            self._rejects[handle.seq] = found
        elif do.mode == "interrupt":
            self._world.calls.append(
                Call(begin, self._world.tick(), "interrupt", do.session, name_of(handle.seq)))
        return handle

    def _look(self, session: str) -> Waiting:
        here = self._world.session(session)
        done = {p.seq for p in here.prompts if p.state is State.DONE}
        return Waiting({p.seq for p in here.live}, done, here.wished_hold,
                       [number for number, where in self._accepting.items() if where == session])

    async def call(self, do: "Do", number: int) -> None:
        """One call, with what its caller is told. A server that closes may refuse it."""
        name, world = f"client {number}", self._world
        self._taken.pop(name, None)
        begin = world.tick()
        try:
            if do.what in ("revoke", "replace", "next"):
                await self._call_prompt(do, number)
            else:
                await self._call_session(do, name, begin)
        except Refusal as refused:
            if not world.runtime.closing:
                world.complain("told", f"{do} is refused: {refused}")
        else:
            self.expect_durable(do, name)

    async def _call_session(self, do: "Do", name: str, begin: float) -> None:
        runtime, world = self._world.runtime, self._world
        if do.what != "stop":
            returned = world.called(do.what, do.session)  # type: ignore[arg-type]
            told = await (runtime.hold if do.what == "hold" else runtime.resume)(do.session)
            returned()
            if told.held is not (do.what == "hold"):
                world.complain("told", f"{do} is told held={told.held}")
            return
        returned = world.called("hold", do.session) if do.hold else lambda: None
        stopped = (await runtime.stop(do.session, hold=do.hold, seq=do.of or None)).stopped
        returned()
        front = self._taken[name].front if name in self._taken else 0
        if stopped != front:
            world.complain("told", f"{do} is told that {stopped} is stopped, and {front} was in front")
        if stopped:
            world.calls.append(Call(begin, world.tick(), "stop", do.session, name_of(stopped)))

    async def _call_prompt(self, do: "Do", number: int) -> None:
        runtime, world, seq = self._world.runtime, self._world, do.of
        known = any(p.seq == seq for p in world.session(do.session).prompts)
        try:
            if do.what == "revoke":
                returned = world.called("revoke", do.session, name_of(seq))
                told = await runtime.revoke(do.session, seq)
                returned()
                self._expect_revoked(do, told.effect, told.outcome)
            elif do.what == "next":
                await runtime.next(do.session, seq)
            else:
                text = f"{do.turn} {number}"
                version = (await runtime.replace(do.session, seq, text)).version
                if self.texts[seq][version:version + 1] != [text]:
                    world.complain("edited", f"{do} is told version {version}, and the journal has {self.texts[seq]}")
        except NoPrompt:
            if known:
                world.complain("told", f"{do} is told that there is no such prompt")
        except TooLate:
            self._expect_too_late(do)

    # --- what is true

    def expect_durable(self, do: "Do", name: str) -> None:
        """What a call has done outlives a crash when the call is answered (R16c)."""
        taken = self._taken.get(name)
        if taken is None:
            return
        world, lost = self._world, []
        for prompt, row in taken.effects.moved:
            if (row.dest, row.outcome) not in world.journal.get(prompt.seq, ()):
                lost.append(f"that {name_of(prompt.seq)} is {(row.outcome or row.dest).value}")
        for seq, traits in taken.traits:
            kept = self.traits.get(seq, DEFAULT_TRAITS)
            if any(mine > stored for mine, stored in zip(traits[:3], kept)):
                lost.append(f"that {name_of(seq)} has {traits}")
        if world.marks.get(taken.session, 0) < taken.effects.mark:
            lost.append(f"the mark {taken.effects.mark}")
        if self._stored_flips[taken.session] < taken.flips:
            lost.append(f"held={taken.effects.held}")
        if lost:
            world.complain("durable", f"{do} is answered before the journal has {', '.join(lost)}")

    def _expect_revoked(self, do: "Do", effect: str, outcome: str) -> None:
        if effect == "canceled":
            self._canceled.add(do.of)
            return
        journal = self._world.journal.get(do.of, [])
        ended = journal[-1][1] if journal else None
        if (effect == "none" and (ended is None or ended.value != outcome)) or (
                effect == "asked" and (State.ACTIVE, None) not in journal):
            self._world.complain("told", f"{do} is told {effect} {outcome}, and the journal has {journal}")

    def _expect_too_late(self, do: "Do") -> None:
        (prompt,) = [p for p in self._world.session(do.session).prompts if p.seq == do.of]
        waits = prompt.state in (State.ACCEPTED, State.QUEUED) and unreached(prompt)
        if waits and not self._world.prompts[do.of].starts:
            self._world.complain("told", f"{do} is told that it comes too late, and {prompt.label} waits")

    def at_rest(self) -> None:
        world = self._world
        for seq in self._canceled:
            journal = world.journal[seq]
            if journal[-1:] != [(State.DONE, Outcome.CANCELED)]:
                world.complain("told", f"{name_of(seq)} was told of as canceled, and the journal has {journal}")
        for seq, texts in self.texts.items():
            if (message := world.messages.get(f"p{seq}")) and text_of(message) != texts[-1]:
                world.complain("edited", f"{name_of(seq)} was run with {text_of(message)!r}, and its texts are {texts}")
        for seq, found in self._rejects.items():
            others = found.live | ({self._seqs.get(number, 0) for number in found.accepting} - {0, *found.done})
            if others or found.held:
                world.complain("reject", f"{name_of(seq)} was accepted beside {sorted(others)}, held={found.held}")
