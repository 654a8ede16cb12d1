"""Bugs of the runtime that tests over HTTP and scripts of the kit must catch. Each patches the runtime.

As a program it is a server with one of them: `python runtime_bugs.py BUG serve …`.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from cancelmark.impl import wire
from cancelmark.impl.runtime import Busy, RunIdInUse, Runtime
from cancelmark.impl.runtime.journal import Journal
from cancelmark.impl.runtime.session import Session, TakenStep
from cancelmark.impl.runtime.workspace import Workspace
from cancelmark.impl.store import AcceptPrompt, AppendEvent, ReplaceText
from cancelmark.impl.wire import Accepted
from cancelmark.model.family import Feature
from cancelmark.model.session import DEFAULT_TRAITS

Bug = Callable[[pytest.MonkeyPatch], None]


def unjournaled(action: str) -> Bug:
    """The call is answered, and never journaled."""
    def bug(patch: pytest.MonkeyPatch) -> None:
        add = Journal.add

        def add_others(self: Journal, step: TakenStep) -> None:
            if step.action != action:
                add(self, step)

        patch.setattr(Journal, "add", add_others)

    return bug


def recovery_forgets_the_hold(patch: pytest.MonkeyPatch) -> None:
    reload = Session.reload
    patch.setattr(Session, "reload", lambda self, mark, prompts, held=False: reload(self, mark, prompts))


def a_replaced_text_is_lost(patch: pytest.MonkeyPatch) -> None:
    """Its version is journaled, and its words are not."""
    add = Journal.add

    def add_no_text(self: Journal, step: TakenStep) -> None:
        add(self, step)
        self.operations = [op for op in self.operations if not isinstance(op, ReplaceText)]

    patch.setattr(Journal, "add", add_no_text)


def the_first_text_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A prompt that is posted again is compared with the text that it has now."""
    taken = Session.replace

    def take(self: Session, prompt: Any, text: str) -> Any:
        prompt.text = text
        return taken(self, prompt, text)

    patch.setattr(Session, "replace", take)


def an_interrupt_has_no_place_in_the_journal(patch: pytest.MonkeyPatch) -> None:
    add = Journal.add

    def add_plain(self: Journal, step: TakenStep) -> None:
        add(self, step)
        self.operations = [op._replace(traits=DEFAULT_TRAITS) if isinstance(op, AcceptPrompt) else op
                           for op in self.operations]

    patch.setattr(Journal, "add", add_plain)


def a_stop_names_nobody(patch: pytest.MonkeyPatch) -> None:
    """A stop says that it has found nobody to stop."""
    stop = Runtime.stop

    async def stopped(self: Runtime, session_id: str, **how: Any) -> wire.Stopped:
        return replace(await stop(self, session_id, **how), stopped=0)

    patch.setattr(Runtime, "stop", stopped)


def a_stop_that_is_repeated_reaches_another(patch: pytest.MonkeyPatch) -> None:
    """A stop goes by position, whomever it names."""
    stop = Runtime.stop

    async def stopped(self: Runtime, session_id: str, *, seq: int | None = None, **how: Any) -> wire.Stopped:
        return await stop(self, session_id, **how)

    patch.setattr(Runtime, "stop", stopped)


def every_revoke_says_canceled(patch: pytest.MonkeyPatch) -> None:
    revoke = Runtime.revoke

    async def revoked(self: Runtime, *arguments: Any, **named: Any) -> wire.Revoked:
        return replace(await revoke(self, *arguments, **named), effect="canceled")

    patch.setattr(Runtime, "revoke", revoked)


def a_replace_names_another_version(patch: pytest.MonkeyPatch) -> None:
    replaced = Runtime.replace

    async def named(self: Runtime, *arguments: Any, **how: Any) -> wire.Replaced:
        told = await replaced(self, *arguments, **how)
        return replace(told, version=told.version + 1)

    patch.setattr(Runtime, "replace", named)


def a_post_is_refused_as_busy_by_itself(patch: pytest.MonkeyPatch) -> None:
    """Whether the session is idle is asked before the run id is looked up."""
    accept = Workspace.accept

    async def accepted(self: Workspace, session_id: str, text: str, run_id: str | None, attachments: Any = (),
                       mode: Feature | None = None) -> int:
        if mode is Feature.REJECT and not self.runtime.find(session_id).session.is_idle():
            raise Busy("it is busy")
        return await accept(self, session_id, text, run_id, attachments, mode)

    patch.setattr(Workspace, "accept", accepted)


def a_reject_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    """A prompt that wants an idle session is accepted in any."""
    accept = Runtime.accept

    async def accepted(self: Runtime, session_id: str, text: str, run_id: str | None = None, attachments: Any = (),
                       mode: Feature | None = None) -> Any:
        return await accept(self, session_id, text, run_id, attachments, None if mode is Feature.REJECT else mode)

    patch.setattr(Runtime, "accept", accepted)


def runs_twice(patch: pytest.MonkeyPatch) -> None:
    """A prompt that is posted again under its run id is accepted again."""
    accept = Workspace.accept

    async def twice(
        self: Workspace, session_id: str, text: str, run_id: str | None, *more: Any, **how: Any,
    ) -> Accepted:
        known = await self.runtime.store.prompt(run_id) if run_id is not None else None
        if known is not None and known.text == text:
            await accept(self, session_id, text, f"{run_id}-again")
            return Accepted(session_id, known.seq)
        return await accept(self, session_id, text, run_id, *more, **how)

    patch.setattr(Workspace, "accept", twice)


def conflicts_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """Another prompt under a used run id is taken for the same."""
    accept = Workspace.accept

    async def lenient(
        self: Workspace, session_id: str, text: str, run_id: str | None, *more: Any, **how: Any,
    ) -> Accepted:
        try:
            return await accept(self, session_id, text, run_id, *more, **how)
        except RunIdInUse:
            assert run_id is not None
            known = await self.runtime.store.prompt(run_id)
            assert known is not None
            return Accepted(session_id, known.seq)

    patch.setattr(Workspace, "accept", lenient)


def cancel_is_answered_too_early(patch: pytest.MonkeyPatch) -> None:
    """A cancel takes effect only after the next prompt has been accepted, and reaches that too."""
    cancel, accept = Runtime.cancel, Runtime.accept
    late: list[str] = []

    async def answered(self: Runtime, session_id: str, *, by: str = "") -> None:
        late.append(session_id)

    async def accepted(self: Runtime, *arguments: Any) -> Any:
        handle = await accept(self, *arguments)
        while late:
            await cancel(self, late.pop())
        return handle

    patch.setattr(Runtime, "cancel", answered)
    patch.setattr(Runtime, "accept", accepted)


def run_ids_are_lost(patch: pytest.MonkeyPatch) -> None:
    """A run id does not survive the wire."""
    accept = Workspace.accept
    patch.setattr(Workspace, "accept", lambda self, session_id, text, run_id, *more, **how: accept(
        self, session_id, text, None, *more, **how))


def cancels_are_lost(patch: pytest.MonkeyPatch) -> None:
    """A cancel drops the queue and forgets the turn that runs."""
    clear = Runtime.clear_queue
    patch.setattr(Runtime, "cancel", clear)


def ends_come_twice(patch: pytest.MonkeyPatch) -> None:
    add = Journal.add

    def add_twice(self: Journal, step: TakenStep) -> None:
        known = len(self.operations)
        add(self, step)
        self.operations += [op for op in self.operations[known:] if isinstance(op, AppendEvent)]

    patch.setattr(Journal, "add", add_twice)


# What a client that calls at random must notice, and in which words.
RANDOM: Mapping[Bug, str] = {
    recovery_forgets_the_hold: "starts, but|folded",
    a_stop_names_nobody: "ends canceled",
    a_stop_that_is_repeated_reaches_another: "another prompt than the one that was named",
    every_revoke_says_canceled: "ended otherwise",
    a_replace_names_another_version: "that nobody was told|not of its version|another text than the latest",
    a_replaced_text_is_lost: "not of its version|another text than the latest",
    a_post_is_refused_as_busy_by_itself: "409",
    a_reject_is_not_asked: "accepted in a busy one",
}

# What must be noticed after a kill that follows the answer to this call, and in which words.
KILLED: Mapping[str, tuple[Bug, str, str]] = {
    "a hold is not journaled": (unjournaled("hold"), "hold", "hold was forgotten"),
    "a hold is forgotten by the recovery": (recovery_forgets_the_hold, "hold", "hold was forgotten"),
    "a replace is not journaled": (unjournaled("replace"), "replace", "another queue"),
    "a replaced text is lost": (a_replaced_text_is_lost, "replace", "another queue"),
    "the first text is forgotten": (the_first_text_is_forgotten, "replace", "run-b' is in use"),
    "a next is not journaled": (unjournaled("next"), "next", "another queue"),
    "a revoke is not journaled": (unjournaled("revoke"), "revoke", "another queue"),
    "an interrupt has no place in the journal": (
        an_interrupt_has_no_place_in_the_journal, "interrupt", "another queue"),
    "a resume is not journaled": (unjournaled("resume"), "resume", "resume was forgotten"),
}

# Scripts of the kit that show a bug in one process, and the guarantee that it breaks there.
SHOWN: Mapping[str | Bug, tuple[str, str]] = {
    "a hold is not journaled": ("held", "hold; accept A; restart"),
    "a hold is forgotten by the recovery": ("held", "hold; accept A; restart"),
    "a replace is not journaled": ("edited", "accept A; accept B; replace B; restart"),
    "a replaced text is lost": ("edited", "accept A; accept B; replace B; restart"),
    "the first text is forgotten": ("run-ids", "hold; accept A; replace A; resend A; resume"),
    "a next is not journaled": ("fifo", "accept A; accept B; accept C; next C; restart"),
    "a revoke is not journaled": ("some-terminal", "accept A; accept B; revoke B; restart"),
    "a resume is not journaled": ("all-done", "hold; resume; restart; accept A"),
    recovery_forgets_the_hold: ("held", "hold; accept A; restart"),
    a_stop_names_nobody: ("keeps-queue", "accept A; accept B; stop"),
    a_replaced_text_is_lost: ("edited", "accept A; accept B; replace B; restart"),
    a_post_is_refused_as_busy_by_itself: ("run-ids", "accept A reject; resend A"),
    a_reject_is_not_asked: ("reject", "accept A; accept B reject"),
    runs_twice: ("run-ids", "accept A; resend A"),
    conflicts_are_ignored: ("run-ids", "accept A; reuse A"),
    cancel_is_answered_too_early: ("no-poisoning", "accept A; cancel; accept B"),
    run_ids_are_lost: ("run-ids", "accept A; resend A"),
    cancels_are_lost: ("cancel-stops", "accept A; cancel"),
    ends_come_twice: ("one-terminal", "accept A"),
}


if __name__ == "__main__":
    from cancelmark.impl.cli.main import main

    KILLED[sys.argv.pop(1)][0](pytest.MonkeyPatch())
    main()
