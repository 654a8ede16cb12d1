"""The guarantees, one record each: how a break is observed, what an adapter needs for that, and how it is checked."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import permutations
from math import inf

from cancelmark.model.calls import FAMILY
from cancelmark.model.family import Feature
from cancelmark.model.family_properties import FAMILY_PROPERTIES, REWORDED
from cancelmark.model.properties import Property

from ..adapter.guarantees import ORDER
from . import decisive, family, judgement
from .history import History, Track

Judge = Callable[[History], None]


@dataclass(frozen=True)
class Guarantee:
    """A guarantee that a server can give, and how the kit observes whether the server keeps it."""

    claim: Property  # its id, sentence and clauses
    sign: str  # what clients and the language model observe when it is broken
    decisive: Callable[[History], bool]  # whether a history would have shown that it is broken
    needs: tuple[str, ...] = ()  # of `NEEDS`
    judge: Judge | None = None  # adds complaints to the history; without one, outcomes and debts show the break
    call: str = ""  # the optional call that it is about; without that call there is nothing to keep

    @property
    def id(self) -> str:
        return self.claim.id

    def sentence(self, features: Collection[Feature] = ()) -> str:
        """The guarantee's sentence, as worded for a server with these optional calls."""
        told = REWORDED.get(self.id)
        return told.sentence if told and told.needs.intersection(features) else self.claim.sentence


@dataclass(frozen=True)
class Need:
    """Something that an adapter may offer besides `accept`, `cancel` and `events`."""

    offer: str  # its name
    missing: str  # why a guarantee is not observable without it


_FEATURES = {p.id: feature.value for p in FAMILY_PROPERTIES for feature in p.needs}


def _feature(name: str) -> Need:
    return Need(f"`{name}`", f"the adapter has no `{name}`" if name in FAMILY else
                f"the adapter does not declare `{name}` in `if_busy`")


NEEDS: Mapping[str, Need] = {
    "steer": Need("turns that the kit controls", "the kit cannot control the server's turns, because the server does "
                  "not use the kit's language model"),
    "fold": Need("`folds`", "no turn of the server can be made to answer a second prompt too (`folds`)"),
    "shut": Need("`shut`", "the adapter cannot close the server (`shut`)"),
    "messages": Need("`messages`", "the adapter cannot read the session's messages (`messages`)"),
    "restart": Need("`restart`", "the adapter cannot restart the server (`restart`)"),
    "leave": Need("`leave`", "the adapter cannot unsubscribe and resume at the same offset (`leave`, `come_back`)"),
    "run_ids": Need("`run_ids`", "the adapter does not declare that the server deduplicates by run id (`run_ids`)"),
    "grace": Need("`grace`", "the adapter does not declare how long the server waits without subscribers (`grace`)"),
    **{name: _feature(name) for name in _FEATURES.values()},
}
NO_STEERING = NEEDS["steer"].missing
NO_OFFSET = "no event carried an offset from which a subscriber could resume, such as an event id"


def each(judge: Callable[[History, Track], None]) -> Judge:
    """Apply the check to each accepted prompt."""
    def judge_prompts(history: History) -> None:
        for p in history.prompts:
            if not p.refused and p.accepted < inf:
                judge(history, p)

    return judge_prompts


def pairs(judge: Callable[[History, Track, Track], None]) -> Judge:
    """Apply the check to each pair of prompts in a session, in both orders."""
    def judge_pairs(history: History) -> None:
        for session in sorted({p.session for p in history.prompts}):
            for p, q in permutations(history.prompts_of(session), 2):
                judge(history, p, q)

    return judge_pairs


_PROPERTIES = {p.id: p for p in ORDER}


def _guarantee(
    id: str, decisive: Callable[[History], bool], *, sign: str, needs: tuple[str, ...] = (), judge: Judge | None = None,
) -> Guarantee:
    call = _FEATURES.get(id, "")
    return Guarantee(_PROPERTIES[id], sign, decisive, ("steer", call) if call else needs, judge, call)


GUARANTEES_BY_ID: Mapping[str, Guarantee] = {g.id: g for g in (
    _guarantee("no-poisoning", decisive.poisons,
        sign="a prompt ends canceled, or is recorded as canceled, although no client sent a cancel or clear since it "
        "was accepted"),
    _guarantee("no-late-fold", decisive.folds_late, needs=("steer", "fold"), judge=each(judgement.judge_late_fold),
        sign="a prompt that was accepted after a cancel folds into a turn that the cancel has reached"),
    _guarantee("no-lost-cancel", decisive.loses_cancels, needs=("steer",),
        sign="a prompt was accepted, then the server acknowledged a cancel, but the prompt's turn starts or the prompt "
        "is queued"),
    _guarantee("cancel-stops", decisive.stops, needs=("steer",),
        sign="a turn was running when the server acknowledged a cancel, but the turn continues, or its request to the "
        "language model stays open after the prompt has ended"),
    _guarantee("queue-dropped", decisive.drops_queue, needs=("steer",), judge=each(judgement.judge_clears),
        sign="a prompt was queued when the server acknowledged a cancel or clear, but the prompt is still queued, or "
        "starts after the clear"),
    _guarantee("no-loss", decisive.forgets, needs=("restart",),
        sign="after a restart, a prompt that was accepted before it never starts or ends"),
    _guarantee("one-terminal", decisive.ends, judge=each(judgement.judge_number_of_ends),
        sign="the server publishes two terminal events for one prompt"),
    _guarantee("single-active", decisive.runs_two, needs=("steer",), judge=pairs(judgement.judge_overlap),
        sign="the language model is called for one turn of a session while another turn of that session is running"),
    _guarantee("fifo", decisive.overtakes, needs=("steer",), judge=pairs(judgement.judge_order),
        sign="a prompt starts before one that was accepted earlier and was observed in the queue"),
    _guarantee("no-absorption", decisive.absorbs, needs=("steer", "fold"), judge=each(judgement.judge_absorption),
        sign="the text of a prompt with a run id appears in another prompt's turn"),
    _guarantee("attribution", decisive.attributes, judge=each(judgement.judge_attribution),
        sign="an event names a prompt that no client sent, carries another prompt's answer or error, or misreports how "
        "a turn ended: a turn that is canceled while it is running ends canceled"),
    _guarantee("idle-cancel-noop", decisive.remembers_idle,
        sign="a prompt ends canceled, although every cancel was sent while the session was idle"),
    _guarantee("isolation", decisive.leaks,
        sign="a prompt ends canceled, although every cancel was sent to another session"),
    _guarantee("closed", decisive.closes, needs=("shut",), judge=each(judgement.judge_close),
        sign="a prompt is accepted after the server acknowledged the close"),
    _guarantee("record", decisive.records, needs=("messages",),
        sign="the only prompt of a session was canceled, but the session's messages do not contain its text with a "
        "canceled answer"),
    _guarantee("prompt-terminal", decisive.hands_over, needs=("steer",),
        sign="the next turn is running, but the previous prompt has no terminal event"),
    _guarantee("all-done", decisive.hands_over, needs=("steer",),
        sign="no turn is running, but a waiting prompt does not start"),
    _guarantee("some-terminal", decisive.ends,
        sign="a prompt was canceled or its turn is over, but its terminal event is never published"),
    _guarantee("progress", decisive.makes_progress,
        sign="a call gets no response, the server never becomes quiet, or it is gone"),
    _guarantee("delivery", decisive.delivers, needs=("leave",),
        sign="a subscriber resumed at its offset, or read slowly, and missed a terminal event or received it twice"),
    _guarantee("run-ids", decisive.knows_again, needs=("run_ids",), judge=each(judgement.judge_run_id),
        sign="a prompt that was resent is refused, runs twice or ends twice; or another prompt is accepted under its "
        "run id"),
    _guarantee("outlives-watcher", decisive.outlives, needs=("steer", "leave", "grace"),
        sign="a turn is aborted, or a prompt ends canceled or never ends, because no client was subscribed"),
    _guarantee("revoke-exact", family.revokes,
        sign="the server acknowledged a revoke, but its prompt starts, keeps running or stays queued; or another "
        "prompt ends canceled that no other call could have reached"),
    _guarantee("keeps-queue", family.keeps,
        sign="a prompt was queued behind a running turn when a stop was sent, and ends canceled; or the server reports "
        "that the stop canceled another prompt than the running one"),
    _guarantee("stop-heard", family.stops_one,
        sign="a prompt was running when the server acknowledged a stop, or was the only one, but continues or starts"),
    _guarantee("held", family.parks, judge=each(family.judge_hold),
        sign="a prompt that was waiting when the server acknowledged a hold, or came later, starts or folds before a "
        "resume; or a turn that was running does not continue after its summary"),
    _guarantee("edited", family.edits, judge=each(family.judge_texts),
        sign="the language model receives a text other than the last accepted one; or the server accepts a new text "
        "for a prompt that has started or was canceled"),
    _guarantee("send-now", family.interrupts,
        sign="a prompt was accepted as an interrupt of a running turn, but that turn continues"),
    _guarantee("reject", family.rejects, judge=each(family.judge_reject),
        sign="a prompt that requires an idle session was accepted while another was certainly not done, or while the "
        "session was held"),
)}
"""In the order of reports."""
OF_THE_FAMILY = frozenset(g.id for g in GUARANTEES_BY_ID.values() if g.call)


def judge_history(history: History) -> None:
    """Check the history against every guarantee, and add what is broken to its complaints."""
    for guarantee in GUARANTEES_BY_ID.values():
        if guarantee.judge:
            guarantee.judge(history)
    each(judgement.judge_end)(history)


def find_tested(history: History) -> set[str]:
    """The guarantees that the history has broken, or would have if the server did not keep them."""
    return {g.id for g in GUARANTEES_BY_ID.values() if g.decisive(history)} | history.broken
