"""The guarantees, one record each: what shows that it is broken, what that takes, and how a history is judged by it."""

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
    """What a server can promise, and how the kit sees from outside whether it keeps that."""

    claim: Property  # its id, sentence and clauses
    sign: str  # what is seen when it is broken
    decisive: Callable[[History], bool]  # whether a history would have shown that it is broken
    needs: tuple[str, ...] = ()  # of `NEEDS`
    judge: Judge | None = None  # adds what is wrong to the complaints; without one, ends and debts tell
    call: str = ""  # the call of the family that it is about: a server without that has nothing to keep

    @property
    def id(self) -> str:
        return self.claim.id

    def sentence(self, features: Collection[Feature] = ()) -> str:
        """What is guaranteed, in the words that a server with these calls needs."""
        told = REWORDED.get(self.id)
        return told.sentence if told and told.needs.intersection(features) else self.claim.sentence


@dataclass(frozen=True)
class Need:
    """What an adapter may offer besides `accept`, `cancel` and `events`."""

    offer: str  # what it is called
    missing: str  # why a guarantee is not observable without it


_FEATURES = {p.id: feature.value for p in FAMILY_PROPERTIES for feature in p.needs}


def _feature(name: str) -> Need:
    return Need(f"`{name}`", f"the adapter has no `{name}`" if name in FAMILY else
                f"the adapter does not say that a prompt can be sent with `{name}` (`if_busy`)")


NEEDS: Mapping[str, Need] = {
    "steer": Need("turns that are steered", "its turns cannot be steered: it does not use the kit's language model"),
    "fold": Need("turns that take others in", "none of its turns can be made to answer another prompt too"),
    "shut": Need("`shut`", "the adapter cannot close the server"),
    "messages": Need("`messages`", "the adapter cannot read messages"),
    "restart": Need("`restart`", "the adapter cannot restart the server"),
    "leave": Need("`leave`", "the adapter cannot go away and come back to where it was"),
    "run_ids": Need("`run_ids`", "the adapter does not say that the server knows a run id again (`run_ids`)"),
    "grace": Need("`grace`", "the adapter does not say how long the server waits when nobody watches (`grace`)"),
    **{name: _feature(name) for name in _FEATURES.values()},
}
NO_STEERING = NEEDS["steer"].missing
NO_PLACE = "no event has said where to come back to: an id, for instance"


def each(judge: Callable[[History, Track], None]) -> Judge:
    """Judges each prompt that was accepted."""
    def judge_prompts(history: History) -> None:
        for p in history.prompts:
            if not p.refused and p.accepted < inf:
                judge(history, p)

    return judge_prompts


def pairs(judge: Callable[[History, Track, Track], None]) -> Judge:
    """Judges each two prompts of one session, in both orders."""
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
        sign="a prompt ends canceled, or is recorded as canceled, and no cancel or clear was made since its "
        "acceptance"),
    _guarantee("no-late-fold", decisive.folds_late, needs=("steer", "fold"), judge=each(judgement.judge_late_fold),
        sign="a prompt that was accepted after a cancel appears in a turn that the cancel has reached"),
    _guarantee("no-lost-cancel", decisive.loses_cancels, needs=("steer",),
        sign="a prompt was accepted before a cancel that was answered, and its turn starts, or the prompt comes into "
        "the queue"),
    _guarantee("cancel-stops", decisive.stops, needs=("steer",),
        sign="a turn was running when a cancel came that was answered, and the turn goes on, or its request to the "
        "language model stays open after the prompt's end"),
    _guarantee("queue-dropped", decisive.drops_queue, needs=("steer",), judge=each(judgement.judge_clears),
        sign="a prompt was in the queue when a cancel or clear came that was answered, and the prompt is still there, "
        "or starts after the clear"),
    _guarantee("no-loss", decisive.forgets, needs=("restart",),
        sign="after a restart, a prompt that was accepted before it never starts or ends"),
    _guarantee("one-terminal", decisive.ends, judge=each(judgement.judge_number_of_ends),
        sign="two terminal events carry the same name"),
    _guarantee("single-active", decisive.runs_two, needs=("steer",), judge=pairs(judgement.judge_overlap),
        sign="the language model is asked for one turn of a session while it is held in another"),
    _guarantee("fifo", decisive.overtakes, needs=("steer",), judge=pairs(judgement.judge_order),
        sign="a prompt starts before one that was accepted earlier and was seen in the queue"),
    _guarantee("no-absorption", decisive.absorbs, needs=("steer", "fold"), judge=each(judgement.judge_absorption),
        sign="the text of a prompt with a run id appears in another's turn"),
    _guarantee("attribution", decisive.attributes, judge=each(judgement.judge_attribution),
        sign="an event speaks of a prompt that nobody sent, carries another's answer or error, or says that a turn "
        "ended otherwise than it did: a turn that is canceled while it is held ends canceled"),
    _guarantee("idle-cancel-noop", decisive.remembers_idle,
        sign="a prompt ends canceled, and the only cancels were made while the session was idle"),
    _guarantee("isolation", decisive.leaks,
        sign="a prompt ends canceled, and the only cancels were made in another session"),
    _guarantee("closed", decisive.closes, needs=("shut",), judge=each(judgement.judge_close),
        sign="a prompt is accepted after the close was answered"),
    _guarantee("record", decisive.records, needs=("messages",),
        sign="a prompt that was alone was canceled, and its session does not have its text with a canceled answer"),
    _guarantee("prompt-terminal", decisive.hands_over, needs=("steer",),
        sign="the next turn is held, and the end of the one before it does not come"),
    _guarantee("all-done", decisive.hands_over, needs=("steer",),
        sign="no turn is running, and a prompt that waits does not start"),
    _guarantee("some-terminal", decisive.ends,
        sign="a prompt was canceled or its turn is over, and its end never comes"),
    _guarantee("progress", decisive.makes_progress,
        sign="a call is not answered, the server never comes to rest, or it is gone"),
    _guarantee("delivery", decisive.delivers, needs=("leave",),
        sign="a subscriber went away and came back to its place, or read slowly, and has missed an end or sees it "
        "again"),
    _guarantee("run-ids", decisive.knows_again, needs=("run_ids",), judge=each(judgement.judge_run_id),
        sign="a prompt that was sent again is refused, runs or ends twice; or another is accepted under its run id"),
    _guarantee("outlives-watcher", decisive.outlives, needs=("steer", "leave", "grace"),
        sign="a turn is broken off, or a prompt ends canceled or never, because nobody watched"),
    _guarantee("revoke-exact", family.revokes,
        sign="a revoke was answered, and its prompt starts, runs on or stays in the queue; or another prompt ends "
        "canceled that nothing else could have reached"),
    _guarantee("keeps-queue", family.keeps,
        sign="a prompt waited behind a running turn when a stop came, and ends canceled; or the server says that the "
        "stop has reached another"),
    _guarantee("stop-heard", family.stops_one,
        sign="a prompt was running when a stop came that was answered, or was the only one, and goes on or starts"),
    _guarantee("held", family.parks, judge=each(family.judge_hold),
        sign="a prompt that waited when a hold was answered, or came later, starts or is taken in before anybody "
        "resumes; or a turn that was running does not go on after its summary"),
    _guarantee("edited", family.edits, judge=each(family.judge_texts),
        sign="the language model hears another text than the last one that was taken; or a text is taken of a prompt "
        "that has started, or was canceled"),
    _guarantee("send-now", family.interrupts,
        sign="a prompt was accepted to interrupt a running turn, and that turn goes on"),
    _guarantee("reject", family.rejects, judge=each(family.judge_reject),
        sign="a prompt that wants an idle session was accepted, and another was certainly not done, or the session was "
        "held"),
)}
"""In the order in which reports have them."""
OF_THE_FAMILY = frozenset(g.id for g in GUARANTEES_BY_ID.values() if g.call)


def judge_history(history: History) -> None:
    """Adds what is wrong to the history's complaints."""
    for guarantee in GUARANTEES_BY_ID.values():
        if guarantee.judge:
            guarantee.judge(history)
    each(judgement.judge_end)(history)


def find_tested(history: History) -> set[str]:
    """The guarantees that the history could have shown to be broken, and those that it has."""
    return {g.id for g in GUARANTEES_BY_ID.values() if g.decisive(history)} | history.broken
