"""The conformance kit judges servers of which we know what is wrong, and what is not."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis.strategies import SearchStrategy
from support.budget import effort, long
from support.paths import ROOT
from support.runtime_adapter import Journal, RuntimeAdapter
from support.samples import page as known
from support.samples.family import SHOWN
from support.samples.models import model_adapter
from support.samples.naive import NaiveAdapter
from support.samples.page import CELLS
from support.samples.seeded import OneWorker, Sound
from tools.specs.pages import HEADER

from cancelmark.conformance import (
    GUARANTEES,
    Adapter,
    Ended,
    Refused,
    Sent,
    Spoken,
    TurnFailed,
    judge,
    kit,
)
from cancelmark.conformance.adapter import Event
from cancelmark.conformance.adapter.guarantees import ORDER, OUTLIVES_WATCHER, RUN_IDS
from cancelmark.conformance.adapter.patience import CONFIRM, FACTOR, RECENT, Patience
from cancelmark.conformance.judging.guarantees import OF_THE_FAMILY
from cancelmark.conformance.kit import JudgementStopped
from cancelmark.conformance.playing import observer, venue
from cancelmark.conformance.playing.observer import Observer
from cancelmark.conformance.playing.scenarios import HIDDEN, SCENARIOS, UNSEEN
from cancelmark.conformance.playing.script import Script, script, scripts
from cancelmark.conformance.playing.venue import AdapterError, Inside
from cancelmark.conformance.profile import PROFILES, Profile
from cancelmark.conformance.report import Decision, Report, Status
from cancelmark.conformance.shrinking import list_candidates
from cancelmark.impl.runtime.workspace import GRACE
from cancelmark.impl.store import NewSession
from cancelmark.model.actions import Argument, Port
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.revisions import REVISIONS
from cancelmark.model.revisions.flaws import FLAWS
from cancelmark.model.variants.catalogue import VARIANTS

SPECS = ROOT / "specs"
FEW = Profile("few", histories=0, schedules=4, inside=60, repeats=1, shrinks=60, seconds=0)


# --- servers that are right

@pytest.mark.parametrize(("schedules", "inside"), [(2, 40), long(effort(6), effort(150))])
def test_our_own_runtime_keeps_every_guarantee(schedules: int, inside: int) -> None:
    report = judge(RuntimeAdapter, profile=replace(PROFILES["quick"], schedules=schedules, inside=inside))
    assert report.kept == [p.id for p in ORDER], str(report)
    assert all(verdict.shown for verdict in report.verdicts)
    untried = {name for name, shown in report.scenarios.items() if shown is not None}
    assert untried == {"a session deleted", "a session deleted beside another"}  # there is no such call


def test_a_turn_of_several_answers_is_recorded_by_the_last() -> None:
    history = Inside(RuntimeAdapter).play(script("accept A; again; cancel"))
    assert (history.complaints, history.records) == ([], 1)
    history = Inside(KeepsNoRecord).play(script("accept A; again; cancel"))
    assert history.broken == {"record"}


@pytest.mark.parametrize(("schedules", "inside"), [(3, 40), long(10, effort(150))])
def test_the_reference_keeps_what_can_be_seen_of_it(schedules: int, inside: int) -> None:
    report = judge(model_adapter("ref"), profile=replace(PROFILES["quick"], schedules=schedules, inside=inside))
    assert report.ok, str(report)
    # the model has no restart, no run ids that are known again, and does not care who watches
    assert report.of(Status.NOT_OBSERVABLE) == ["no-loss", "run-ids", "outlives-watcher"]


# --- the history, as the generated page has it (tests/test_specs.py sees to it that the page is not stale)

def cells(page: str) -> dict[tuple[str, str], str]:
    """The first table of a page, by row and column."""
    lines = [line.strip("| ").split(" | ") for line in (SPECS / page).read_text().splitlines() if line.startswith("| ")]
    names = lines[0][1:]
    rows = {row[0]: row[1:] for row in takewhile(lambda row: row[0] in GUARANTEES, lines[2:])}
    unjudged = {RUN_IDS.id, OUTLIVES_WATCHER.id, *OF_THE_FAMILY}  # by the model; and what is about the family
    assert GUARANTEES - rows.keys() <= unjudged
    return {(row, name): cell for row, told in rows.items() for name, cell in zip(names, told)}


def test_each_revision_is_judged_as_the_model_judges_it() -> None:
    model, kit = cells("revisions.md"), cells("conformance.md")
    names = {r.name for r in REVISIONS}
    seen = {(f.breaks, r) for f in FLAWS if f.name not in HIDDEN for r in f.revisions}
    for (guarantee, name), verdict in model.items():
        found = kit[guarantee, name] == "**broken**"
        if "fails" not in verdict:
            assert not found, f"{name} keeps {guarantee}, and the kit says that it is broken"
        elif not found:
            hidden = [f for f in FLAWS if f.breaks == guarantee and name in f.revisions]
            assert all(f.name in HIDDEN for f in hidden), f"{guarantee} of {name} should show"
            assert hidden or (guarantee, name) in UNSEEN, f"nobody says why {guarantee} of {name} does not show"
    assert seen <= {cell for cell, verdict in kit.items() if "broken" in verdict}
    assert all(name in names and kit[guarantee, name] == "kept" for guarantee, name in UNSEEN)


def shown_in(page: str) -> dict[str, set[str]]:
    """In which revisions the page says that each flaw shows."""
    found = re.findall(r"^\| \[([\w-]+)\]\(flaws.md#.*\| ([r\d, ]+) \|$", page, re.MULTILINE)
    return {flaw: set(names.split(", ")) for flaw, names in found}


def test_each_flaw_shows_wherever_it_is_or_there_is_a_reason() -> None:
    shown = shown_in((SPECS / "conformance.md").read_text())
    assert set(shown) | set(HIDDEN) == {f.name for f in FLAWS}
    for flaw in FLAWS:
        if flaw.name not in HIDDEN:
            assert set(flaw.revisions) <= shown[flaw.name], flaw.name
            assert flaw.breaks in {s.guarantee for s in SCENARIOS if s.name == flaw.name}


@dataclass
class Published:
    """What the page says of a server, in place of a report on it."""

    name: str

    def verdict(self, guarantee: str) -> Any:
        shown = cells("conformance.md")[guarantee, self.name]
        return SimpleNamespace(status=next(status for status, cell in CELLS.items() if cell == shown))


@pytest.mark.long
def test_the_page_is_not_stale_where_one_revision_is_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make specs` judges all of them again."""
    published, judged, show = (SPECS / "conformance.md").read_text(), "r4", known.shows
    monkeypatch.setattr(known, "judge_known", lambda name, judge=known.judge_known: (
        judge(name) if name == judged else Published(name)))
    monkeypatch.setattr(known, "shows", lambda flaw, name: (
        show(flaw, name) if name == judged else name in shown_in(published)[flaw.name]))
    assert published == HEADER + known.conformance_page()


def test_the_naive_worker_fails_as_documented() -> None:
    report = judge(NaiveAdapter, profile=replace(FEW, shrinks=300))
    assert report.broken == ["no-lost-cancel", "all-done", "some-terminal"]
    assert {g for (g, name), verdict in cells("conformance.md").items() if name == "naive" and "broken" in verdict
            } == set(report.broken)
    lost = report.verdict("no-lost-cancel")
    assert lost.finding is not None
    assert lost.finding.script.steps == "accept A, cancel"
    assert "turn of A starts" in lost.story
    assert "(R3b, R4, " in lost.story


# --- what is found is as small as it gets, and shows again

def test_what_is_found_can_be_played_again_and_is_as_small_as_it_gets() -> None:
    report = judge(model_adapter("r4"), profile=replace(
        PROFILES["quick"], schedules=effort(5, 20), inside=effort(20, 60)))
    stage = Inside(model_adapter("r4"))
    assert len(report.broken) >= 6
    for verdict in report.verdicts:
        if verdict.finding:
            found = verdict.finding.script
            assert verdict.guarantee in stage.play(found).broken
            assert not verdict.finding.note
            assert not any(verdict.guarantee in stage.play(s).broken for s in list_candidates(found)), found
            assert len(found.everything) <= 5, found


def test_scripts_are_read_and_written() -> None:
    for text in ("accept A, cancel; accept B anonymous + release @2; shut",
                 "accept A,200 cancel +50 accept B failing; outgrow B; lose C @16; resend C + reuse A @2; leave long",
                 "accept A + accept B +5000 cancel; slow; flood; return; attach; delete @3; summarize A; again"):
        assert str(script(text)) == text
        assert script(str(script(text))) == script(text)
    for wrong, says in {"": "unknown action ''", "accept A; explode": "unknown action 'explode'",
                        "release B C": "unknown action 'release B C'",
                        "accept A long": "unknown action 'accept A long'",
                        "cancel @17": "no session @17", "cancel @0": "no session @0", "resend A": "'resend A': only",
                        "cancel A": "'cancel A': only", "accept A;5 cancel": "use ',5' or '\\+5'"}.items():
        with pytest.raises(ValueError, match=says):
            script(wrong)


# --- every guarantee can be broken; those of the family are in test_family_kit.py

class ReferenceAdapter(RuntimeAdapter):
    protocol = REFERENCE


class CancelsEverywhere(ReferenceAdapter):
    async def cancel(self, session: str) -> None:
        for other in await self.store.sessions():
            await super().cancel(other.id)


class AcceptsAfterTheClose(ReferenceAdapter):
    async def accept(self, session: str, prompt: Sent) -> None:
        try:
            await super().accept(session, prompt)
        except Refused:
            if not self.runtime.closing:
                raise


class KeepsNoRecord(ReferenceAdapter):
    async def messages(self, session: str) -> Sequence[Spoken]:
        return [m for m in await super().messages(session) if m.finish != "canceled"]


class ForgetsAtARestart(ReferenceAdapter):
    async def start(self, store: Journal) -> None:
        forgetful = Journal()
        for steps in store.commits:
            if isinstance(steps.operations[0], NewSession):
                await forgetful.commit(steps)
        await super().start(forgetful)


class ForgetsThePlace(ReferenceAdapter):
    async def come_back(self) -> None:
        self.subscription = self.runtime.broker.subscribe()


class ShowsEverythingAgain(ReferenceAdapter):
    async def come_back(self) -> None:
        self.subscription = self.runtime.broker.subscribe(after=0)


class RemembersIdleCancels(ReferenceAdapter):
    async def open(self) -> None:
        await super().open()
        self.idle: set[str] = set()

    async def cancel(self, session: str) -> None:
        if not self.runtime.is_busy(session):
            self.idle.add(session)
        await super().cancel(session)

    async def accept(self, session: str, prompt: Sent) -> None:
        await super().accept(session, prompt)
        if session in self.idle:
            self.idle.remove(session)
            await super().cancel(session)


class CancelsLate(ReferenceAdapter):
    async def open(self) -> None:
        await super().open()
        self.late: set[str] = set()

    async def cancel(self, session: str) -> None:
        await super().cancel(session)
        self.late.add(session)

    async def accept(self, session: str, prompt: Sent) -> None:
        await super().accept(session, prompt)
        if session in self.late:
            self.late.remove(session)
            await super().cancel(session)


class CancelStopsNobody(ReferenceAdapter):
    protocol = VARIANTS["a cancel does not ask the running turn to stop"].protocol


def only_mark(step: Port, arg: Argument) -> None:
    step.mark = arg.seq


class CancelOnlyMarks(ReferenceAdapter):
    protocol = VARIANTS["a cancel leaves the queue to the next handoff"].protocol.changed(
        "and asks nobody to stop", cancel={"apply": only_mark})


class ClearLeavesRunIds(ReferenceAdapter):
    protocol = VARIANTS["clear_queue leaves prompts with a run id"].protocol


class StoppingTurnFolds(ReferenceAdapter):
    protocol = VARIANTS["a stopping turn folds"].protocol.changed(
        "and nobody stops it", cancel={"apply": CancelStopsNobody.protocol.action("cancel").apply})


class MixesUpAnswers(ReferenceAdapter):
    async def events(self) -> AsyncIterator[Any]:
        last = None
        async for event in super().events():
            yield replace(event, text=last or event.text)
            last = event.text


class CallsErrorsAnswers(ReferenceAdapter):
    async def events(self) -> AsyncIterator[Any]:
        async for event in super().events():
            yield replace(event, outcome="end_turn") if event.outcome == "error" else event


class SpeaksOfStrangers(ReferenceAdapter):
    async def events(self) -> AsyncIterator[Any]:
        async for event in super().events():
            yield event
            yield replace(event, name="somebody")


class EndsTwice(ReferenceAdapter):
    async def events(self) -> AsyncIterator[Any]:
        async for event in super().events():
            yield event
            yield event


class CancelsInSilence(ReferenceAdapter):
    async def events(self) -> AsyncIterator[Any]:
        async for event in super().events():
            if event.outcome != "canceled":
                yield event


class EndsLate(ReferenceAdapter):
    async def events(self) -> AsyncIterator[Any]:
        kept: list[Any] = []
        async for event in super().events():
            kept.append(event)
            if not any(self.runtime.is_busy(s.id) for s in await self.store.sessions()):
                for late in kept:
                    yield late
                kept.clear()


class NeverAnswersACancel(ReferenceAdapter):
    async def cancel(self, session: str) -> None:
        await super().cancel(session)
        await asyncio.Event().wait()


class NeverRests(ReferenceAdapter):
    async def accept(self, session: str, prompt: Sent) -> None:
        await super().accept(session, prompt)
        self.spinning = asyncio.create_task(self.keep_busy())

    async def keep_busy(self) -> None:
        while True:
            await asyncio.sleep(0)


class RunsAllAtOnce(ReferenceAdapter):
    async def accept(self, session: str, prompt: Sent) -> None:
        await self.asked(self.run_alone(prompt))

    async def run_alone(self, prompt: Sent) -> None:
        made = await self.workspace.create_session(prompt.name)
        await self.workspace.accept(made.id, prompt.text, prompt.run_id)

    async def cancel(self, session: str) -> None:
        for other in await self.store.sessions():
            await super().cancel(other.id)


class ForgetsRunIds(ReferenceAdapter):
    async def open(self) -> None:
        await super().open()
        self.used: set[str | None] = set()

    async def accept(self, session: str, prompt: Sent) -> None:
        run_id = None if prompt.run_id in self.used else prompt.run_id
        self.used.add(prompt.run_id)
        await super().accept(session, replace(prompt, run_id=run_id))


class ClosesWhenNobodyWatches(ReferenceAdapter):
    async def leave(self) -> None:
        await super().leave()
        self.alarm = asyncio.get_running_loop().call_later(GRACE, lambda: self.go_on_with(self.runtime.close()))

    async def come_back(self) -> None:
        self.alarm.cancel()
        if self.runtime.closing:
            await self.start(await self.store.found())
        await super().come_back()


# Each with the guarantee that it must break, a shortest script that shows it, and other guarantees that it may break.
BUGS: dict[type[ReferenceAdapter], tuple[str, str, set[str]]] = {
    CancelsEverywhere: ("isolation", "accept A @2; cancel", set()),
    AcceptsAfterTheClose: ("closed", "shut; accept A", set()),
    KeepsNoRecord: ("record", "accept A; cancel", set()),
    ForgetsAtARestart: ("no-loss", "accept A; restart", {"record", "delivery"}),
    ForgetsThePlace: ("delivery", "accept A; leave; release", set()),
    ShowsEverythingAgain: ("delivery", "accept A; release; leave", set()),
    RemembersIdleCancels: ("idle-cancel-noop", "cancel; accept A", {"no-poisoning"}),
    CancelsLate: ("no-poisoning", "cancel; accept A", {"idle-cancel-noop"}),
    CancelStopsNobody: ("cancel-stops", "accept A; cancel", {"no-lost-cancel"}),
    CancelOnlyMarks: ("queue-dropped", "accept A; accept B; cancel", {"cancel-stops", "no-lost-cancel"}),
    ClearLeavesRunIds: ("queue-dropped", "accept A; accept B; clear", set()),
    StoppingTurnFolds: (
        "no-late-fold", "accept A; cancel; accept B anonymous; again", {"cancel-stops", "no-lost-cancel"}),
    MixesUpAnswers: ("attribution", "accept A; accept B", set()),
    CallsErrorsAnswers: ("attribution", "accept A failing", set()),
    SpeaksOfStrangers: ("attribution", "accept A", set()),
    EndsTwice: ("one-terminal", "accept A", {"run-ids"}),
    ForgetsRunIds: ("run-ids", "accept A; resend A", set()),
    ClosesWhenNobodyWatches: ("outlives-watcher", "accept A; leave long", set()),
    CancelsInSilence: ("some-terminal", "accept A; cancel", {"delivery", "prompt-terminal"}),
    EndsLate: ("prompt-terminal", "accept A; accept B", {"some-terminal", "delivery", "no-loss"}),
    NeverAnswersACancel: ("progress", "accept A, cancel", set()),
    NeverRests: ("progress", "accept A, cancel", set()),
    RunsAllAtOnce: ("single-active", "accept A; accept B", {"isolation", "record", "run-ids"}),
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_script_shows(bug: type[ReferenceAdapter]) -> None:
    must, script, may = BUGS[bug]
    broken = set(judge(bug, scripts=[script], times=1).broken)
    assert must in broken
    assert broken <= {must} | may


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_kit_finds(bug: type[ReferenceAdapter]) -> None:
    must, _, may = BUGS[bug]
    few = replace(FEW, schedules=0, inside=5 if bug is NeverRests else 30, shrinks=30)
    report = judge(bug, profile=few)
    assert must in report.broken, str(report)
    assert set(report.broken) <= {must} | may, str(report)


def test_every_guarantee_is_broken_by_something() -> None:
    broken = {must for must, *_ in BUGS.values()}
    broken |= {guarantee for (guarantee, _), verdict in cells("conformance.md").items() if "broken" in verdict}
    assert broken | {guarantee for guarantee, _ in SHOWN.values()} == GUARANTEES


def test_a_call_that_hangs_is_told_plainly() -> None:
    story = judge(NeverAnswersACancel, profile=replace(FEW, schedules=0, inside=0)).verdict("progress").story
    assert "a call of cancel got no response within 18 s" in story


# --- other servers: threads instead of sessions, no queue, cancel by run id, ids that the server gives out

class Threads:
    """One run a thread at a time; whoever comes too early is refused."""

    def __init__(self, model: Any, publish: Any) -> None:
        self.model, self.publish = model, publish
        self.runs: dict[int, asyncio.Task[None]] = {}
        self.busy: dict[str, int] = {}

    def create_run(self, thread: str, text: str) -> int | None:
        if thread in self.busy:
            return None
        id = self.busy[thread] = len(self.runs) + 1
        self.runs[id] = asyncio.create_task(self.run(thread, id, text))
        return id

    async def run(self, thread: str, id: int, text: str) -> None:
        try:
            await self.model(text)
            how = "completed"
        except asyncio.CancelledError:
            how = "cancelled"
        except TurnFailed:
            how = "failed"
        self.over(thread, id, how)

    def over(self, thread: str, id: int, how: str) -> None:
        if self.busy.get(thread) == id:
            del self.busy[thread]
            self.publish(id, how)

    def cancel_run(self, thread: str, id: int) -> None:
        self.runs[id].cancel()
        self.over(thread, id, "cancelled")  # a task that is canceled before its first step cannot do it


class ThreadsAdapter(Adapter):
    claims = GUARANTEES - {"fifo", "all-done", "record"}
    HOW = {"completed": "end_turn", "cancelled": "canceled", "failed": "error"}  # noqa: RUF012

    async def open(self) -> None:
        self.threads = Threads(self.turns, self.published)
        self.names: dict[int, str] = {}
        self.open_runs: dict[str, set[int]] = {}

    async def accept(self, session: str, prompt: Sent) -> None:
        id = self.threads.create_run(session, prompt.text)
        if id is None:
            raise Refused("the thread has an active run")
        self.names[id] = prompt.name
        self.open_runs.setdefault(session, set()).add(id)

    async def cancel(self, session: str) -> None:
        for id in list(self.open_runs.get(session, ())):
            self.threads.cancel_run(session, id)

    def published(self, id: int, how: str) -> None:
        for runs in self.open_runs.values():
            runs.discard(id)
        self.tell(Ended(self.names[id], self.HOW[how]))


def test_a_server_with_another_wire_is_judged_by_what_it_claims() -> None:
    report = judge(ThreadsAdapter, profile=replace(FEW, schedules=0))
    assert report.ok, str(report)
    assert report.of(Status.NOT_CLAIMED) == ["fifo", "record", "all-done"]
    assert {"no-poisoning", "no-lost-cancel", "one-terminal", "some-terminal", "isolation"} <= set(report.kept)
    assert "no-loss           not observable  the adapter cannot restart the server" in str(report)


def test_a_run_that_is_canceled_before_it_begins_is_lost_there() -> None:
    """The same server with the obvious mistake: a task that is canceled before its first step publishes nothing."""
    class Hasty(ThreadsAdapter):
        async def cancel(self, session: str) -> None:
            for id in list(self.open_runs.get(session, ())):
                self.threads.runs[id].cancel()

    assert "some-terminal" in judge(Hasty, profile=replace(FEW, schedules=20)).broken


# --- the kit itself

def test_it_can_be_used_where_an_event_loop_runs() -> None:
    async def notebook() -> Report:
        return judge(NaiveAdapter, profile=replace(FEW, inside=0), scenarios={"queue-stranded-by-error"})

    assert asyncio.run(notebook()).broken == ["all-done"]


def test_an_error_of_the_adapter_in_a_random_history_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(NaiveAdapter):
        async def cancel(self, session: str) -> None:
            raise KeyError(session)

    monkeypatch.setattr(kit, "SCENARIOS", ())
    with pytest.raises(AdapterError, match="Broken: KeyError: 'session-1'"):
        judge(Broken, profile=FEW)


def test_what_is_required_and_not_known_is_missing() -> None:
    report = judge(NaiveAdapter, only=["one-terminal", "no-loss"], profile=FEW)
    assert (report.decision, report.missing) == (Decision.CONFORMS, [])
    report = judge(NaiveAdapter, only=["one-terminal", "no-loss"], profile=FEW, require=["one-terminal", "no-loss"])
    assert (report.decision, report.missing, report.ok) == (Decision.UNKNOWN, ["no-loss"], False)
    assert "missing=no-loss" in report.summary
    report = judge(NaiveAdapter, profile=FEW, require=["no-lost-cancel", "no-loss"])  # broken is known
    assert (report.decision, report.missing) == (Decision.BROKEN, ["no-loss"])


def test_what_was_seen_too_seldom_is_not_called_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "SCENARIOS", ())
    report = judge(Sound, profile=replace(FEW, inside=20))
    few = [v for v in report.verdicts if v.status is Status.NOT_TESTED]
    assert all((v.status is Status.KEPT) == (v.shown >= 10) for v in report.verdicts if v.guarantee in Sound.claims)
    assert all("could have broken it; 10 are needed" in v.about for v in few)
    assert any(v.shown for v in few)


def test_only_some_guarantees() -> None:
    report = judge(NaiveAdapter, only=["fifo", "all-done"], profile=replace(FEW, inside=0))
    assert [v.guarantee for v in report.verdicts] == ["fifo", "all-done"]


@pytest.mark.parametrize(("options", "complaint"), [
    ({"profile": "slow"}, "unknown profile 'slow'; choose one of quick, deep"),
    ({"only": ["speed"]}, "unknown guarantee speed; choose from no-poisoning"),
    ({"require": ["speed"]}, "unknown guarantee speed; choose from no-poisoning"),
    ({"only": ["fifo"], "require": ["closed"]}, "require=closed: not in `only`; add it there"),
])
def test_bad_options_are_named(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        judge(NaiveAdapter, **options)


def test_a_claim_that_does_not_exist_is_named() -> None:
    class Proud(NaiveAdapter):
        claims = GUARANTEES | {"world-peace"}

    with pytest.raises(ValueError, match=r"Proud\.claims: unknown guarantee world-peace; choose from no-poisoning"):
        judge(Proud)


def test_an_adapter_that_raises_is_blamed_with_the_script() -> None:
    class Broken(NaiveAdapter):
        async def cancel(self, session: str) -> None:
            raise KeyError(session)

    with pytest.raises(AdapterError, match=r"Broken: KeyError: 'session-1' \(in the script: accept A, cancel\)"):
        judge(Broken)


class Outside(Adapter):
    """A server that is nothing but an adapter, in real time: it ends each prompt at once."""

    outside = True
    patience = 0.1

    async def accept(self, session: str, prompt: Sent) -> None:
        self.tell(Ended(prompt.name, "end_turn"))

    async def cancel(self, session: str) -> None: ...


class Deaf(Outside):
    patience = 1e6
    error: ClassVar[Exception] = ConnectionError("the stream is gone")

    async def accept(self, session: str, prompt: Sent) -> None: ...

    async def events(self) -> AsyncIterator[Ended]:
        await asyncio.sleep(0.05)
        raise self.error
        yield


def test_a_stream_that_breaks_is_told_at_once_and_never_taken_for_silence() -> None:
    report = judge(Deaf)
    assert report.broken == ["progress"]
    assert "the server is gone (ConnectionError: the stream is gone)" in report.verdict("progress").about
    assert "give the adapter a `revive` method" in report.stopped


class Deafened(Deaf):
    """What the stream brings is all that an accept waits for."""

    error = KeyError("seq")

    async def accept(self, session: str, prompt: Sent) -> None:
        await asyncio.Event().wait()


class Reader(Deafened):
    """The same with a task of its own."""

    async def open(self) -> None:
        self.spawn(self.read())

    async def read(self) -> None:
        await asyncio.sleep(0.05)
        raise KeyError("seq")

    def events(self) -> AsyncIterator[Event]:
        return Adapter.events(self)


@pytest.mark.parametrize("adapter", [Deafened, Reader])
def test_an_error_in_a_task_of_the_adapter_is_told_at_once(adapter: type[Adapter]) -> None:
    with pytest.raises(AdapterError, match="KeyError: 'seq'"):  # and not that an accept hangs, after a million seconds
        judge(adapter)


def test_a_stream_that_ends_by_itself_is_a_server_that_is_gone() -> None:
    class Ends(Deaf):
        async def events(self) -> AsyncIterator[Ended]:
            await asyncio.sleep(0.05)
            return
            yield

    assert "its event stream ended" in judge(Ends).verdict("progress").about


# --- a server that stops

class Dies(Outside):
    """A second prompt in a session kills it."""

    alive: ClassVar[bool] = True

    async def open(self) -> None:
        self.accepted = 0
        if not self.alive:
            raise ConnectionRefusedError("nobody listens")

    async def accept(self, session: str, prompt: Sent) -> None:
        self.accepted += 1
        if self.accepted > 1:
            Dies.alive = False
            raise ConnectionResetError("reset by peer")
        await super().accept(session, prompt)


class Revived(Dies):
    async def revive(self) -> None:
        Dies.alive = True


class Restarted(Dies):
    async def restart(self) -> None:
        Dies.alive = True


SHORT = replace(FEW, histories=40, repeats=1, limit=20)


@pytest.mark.parametrize("adapter", [Dies, Revived, Restarted])
def test_a_server_that_dies_has_broken_progress_and_may_come_back(adapter: type[Dies]) -> None:
    Dies.alive = True
    report = judge(adapter, profile=SHORT)
    assert report.broken == ["progress"]
    found = report.verdict("progress").finding
    assert found is not None
    assert len([do for do in found.script.everything if do.what == "accept"]) == 2
    assert "ConnectionResetError: reset by peer" in report.verdict("progress").about
    if adapter is Dies:
        assert "give the adapter a `revive` method" in report.stopped
        assert report.unplayed
        assert "random histories did not run" in str(report)
    else:
        assert report.unplayed == 0 or "in 10 histories the server was gone" in report.stopped
        assert "one-terminal" in report.kept


def test_a_judgement_that_stopped_never_says_that_all_is_well() -> None:
    class Modest(Dies):
        claims = GUARANTEES - {"progress"}

    one = replace(SHORT, unsteered=1)
    for kind, only in ((Modest, None), (Dies, ["some-terminal"])):
        Dies.alive = True
        report = judge(kind, profile=one, only=only)
        assert report.stopped
        assert "some-terminal" in report.kept
        assert (report.decision, report.ok) == (Decision.UNKNOWN, False), str(report)


@pytest.mark.parametrize("stopped", ["", "the judgement stopped"])
def test_a_judgement_that_stopped_has_not_tested_progress(stopped: str) -> None:
    enough = kit.Judge(Sound, FEW, None, None, lambda *_: None, 0, shown=dict.fromkeys(GUARANTEES, 10**6))
    untested = [v.guarantee for v in enough.verdicts(stopped) if v.status is Status.NOT_TESTED]
    assert untested == ["progress"] * bool(stopped)


def test_nobody_is_judged_who_was_never_there() -> None:
    Dies.alive = False
    with pytest.raises(AdapterError, match="Dies: the server accepted no prompt: ConnectionRefusedError"):
        judge(Dies)


def test_what_was_found_before_an_error_of_the_adapter_is_kept() -> None:
    class Late(NaiveAdapter):
        async def shut(self) -> None:
            raise KeyError("shut")

    with pytest.raises(JudgementStopped) as raised:
        judge(Late, profile=FEW)
    report = raised.value.report
    assert "no-lost-cancel" in report.broken
    assert report.stopped.startswith("the judgement stopped: Late: KeyError")
    assert "the judgement stopped" in str(report)


# --- time

def test_a_budget_that_ran_out_is_told_and_nothing_is_called_kept_for_want_of_time() -> None:
    report = judge(Outside, profile=replace(FEW, histories=200, limit=0))
    assert report.unplayed == 10
    assert "10 of 10 random histories did not run: their time limit of 0 s was reached" in report.notes
    few = [v for v in report.verdicts if v.status is Status.NOT_TESTED]
    assert few
    assert all(v.shown < FEW.unsteered and "10 histories did not run" in v.why for v in few)


def test_when_the_time_is_over_no_more_histories_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Script] = []

    def draw(offers: frozenset[str]) -> SearchStrategy[Script]:
        return scripts(offers).map(lambda made: drawn.append(made) or made)

    monkeypatch.setattr(kit, "draw_scripts", draw)
    judge(Outside, profile=replace(FEW, histories=2000, limit=0))
    assert len(drawn) == 1


def test_patience_grows_with_what_the_server_takes_and_forgets() -> None:
    patience = Patience(3.0)
    patience.times = 1.0
    patience.learn(0.1)
    assert (patience.seconds, patience.call) == (3.0, 3.0)
    patience.learn(2.0)
    assert patience.seconds == 2.0 * FACTOR
    patience.times = CONFIRM
    assert patience.seconds == 2.0 * FACTOR * CONFIRM
    for _ in range(RECENT):
        patience.learn(0.01)
    patience.times = 1.0
    assert patience.seconds == 3.0


def test_time_in_which_the_machine_did_not_look_does_not_count_as_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end comes after a second in which the kit itself hardly ran: its patience is a tenth of that."""
    class Starved(Outside):
        async def accept(self, session: str, prompt: Sent) -> None:
            asyncio.get_running_loop().call_later(1.0, self.tell, Ended(prompt.name, "end_turn"))

    sleep = asyncio.sleep

    async def oversleep(seconds: float) -> None:
        await sleep(max(seconds, 0.2))

    monkeypatch.setattr(observer, "UNSTEERED", 0.0)
    monkeypatch.setattr(observer.asyncio, "sleep", oversleep)
    stage = venue.Outside(Starved, None)
    try:
        assert not stage.play(script("accept A")).complaints
    finally:
        stage.close()


def test_a_silence_is_confirmed_by_waiting_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is slow now and then: each second prompt takes longer than it ever took before."""
    class Moody(Outside):
        sent: ClassVar[list[str]] = []

        async def accept(self, session: str, prompt: Sent) -> None:
            self.sent.append(prompt.name)
            slow = len(self.sent) > 8 and len(self.sent) % 2
            asyncio.get_running_loop().call_later(0.3 if slow else 0.0, self.tell, Ended(prompt.name, "end_turn"))

    monkeypatch.setattr(observer, "UNSTEERED", 0.0)
    report = judge(Moody, profile=replace(FEW, histories=effort(20, 200), limit=10))
    assert "some-terminal" not in report.broken, str(report)


def test_an_open_may_take_longer_than_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    class Handshake(Sound):
        async def open(self) -> None:
            await asyncio.sleep(30)  # in no time: the loop is virtual

        async def session(self) -> str:
            await asyncio.sleep(30)
            return await super().session()

    assert not venue.Inside(Handshake).play(script("accept A")).complaints


def test_one_worker_that_does_not_say_so_is_told_what_to_say() -> None:
    class Quiet(OneWorker):
        capacity = None

    history = Inside(Quiet).play(script("accept A; accept B @2"))
    assert [c.guarantee for c in history.complaints] == ["all-done"]
    assert "no turn is running in its session, but it does not start (turns of other sessions are running" in (
        history.complaints[0].says)
    assert not Inside(OneWorker).play(script("accept A; accept B @2")).complaints


# --- interrupted

async def test_an_interrupt_while_reading_stops_is_not_swallowed() -> None:
    class Reluctant(Outside):
        async def events(self) -> AsyncIterator[Event]:
            try:
                async for event in super().events():
                    yield event
            finally:
                await asyncio.sleep(0.2)

    watching = Observer(Reluctant(), None)
    watching.start_reading()
    await asyncio.sleep(0.01)
    stopping = asyncio.create_task(watching.stop_reading())
    await asyncio.sleep(0.05)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping


def test_an_adapter_without_a_method_is_told_which() -> None:
    class Unfinished(Adapter):
        pass

    with pytest.raises(AdapterError, match=r"Unfinished needs `async def accept\(self, session, prompt\)`"):
        judge(Unfinished)


def test_what_an_adapter_gets_wrong_is_told_before_the_server_is_accused() -> None:
    class Translated(NaiveAdapter):
        def tell(self, event: Event) -> None:
            super().tell(Ended(event.name, "finished"))

    class Hasty(NaiveAdapter):
        def accept(self, session: str, prompt: Sent) -> None:  # type: ignore[override]
            self.tell(Ended(prompt.name, "end_turn"))

    class Loose(NaiveAdapter):
        def tell(self, event: Event) -> None:
            super().tell((event.name, "end_turn"))  # type: ignore[arg-type]

    for kind, says in ((Translated, r"Translated reported the outcome 'finished'; translate it into one of end_turn"),
                       (Hasty, r"Hasty.accept is not async; write `async def accept\(…\)`"),
                       (Loose, r"Loose reported \('cm-\d+-000', 'end_turn'\); report Ended")):
        with pytest.raises(AdapterError, match=says):
            judge(kind)
    with pytest.raises(TypeError, match=r"judge\(NaiveAdapter\(\)\): pass the class itself, judge\(NaiveAdapter\)"):
        judge(NaiveAdapter())  # type: ignore[arg-type]


def test_a_server_that_is_outside_and_does_not_say_so_is_told_what_to_do() -> None:
    class Outside(NaiveAdapter):
        async def accept(self, session: str, prompt: Sent) -> None:
            await asyncio.open_connection("127.0.0.1", 1)

    with pytest.raises(AdapterError, match="set `outside = True` if it uses sockets"):
        judge(Outside)


def test_scripts_get_smaller_and_end() -> None:
    big = script("accept A, cancel; accept B anonymous + release @2, accept C; fail + accept D; again")
    seen, left = set(), [replace(big, late=(1, 2), departures=((3, 2), (5, 1)))]
    while left and len(seen) < 3000:
        current = left.pop()
        smaller = [s for s in current.smaller() if s.size < current.size and s not in seen]
        assert all(isinstance(s, Script) for s in smaller)
        seen.update(smaller)
        left += smaller[:3]
    assert any(len(s.everything) <= 1 for s in seen)
