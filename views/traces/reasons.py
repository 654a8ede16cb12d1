"""Why a step violates a property: a sentence generated from the step, naming the prompt and what happened to it."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from cancelmark.model import observer
from cancelmark.model.actions import Reach
from cancelmark.model.delivery import DELIVERY
from cancelmark.model.effects import End, Record, Report, Stop
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.properties import SessionStep
from cancelmark.model.server import Change, Server
from cancelmark.model.session import Prompt, label

from .ask_reasons import ASK_REASONS

Reasons = Iterator[str]


def reason(property: str, before: Server, change: Change) -> str:
    """Why the step violates the property, or an empty string if there is no explanation."""
    if property in ON_SERVER:
        return ON_SERVER[property](before, change)
    why = ON_SESSION.get(property)
    if why is None:
        return ""
    return " ".join(dict.fromkeys(
        said for index, move in change.moves for said in why(SessionStep.of(before.sessions[index], move))))


def _names(prompts: Iterable[Prompt]) -> str:
    return " and ".join(p.label for p in prompts)


def _became(p: Prompt) -> str:
    return f"ends {p.outcome.value}" if p.outcome else f"is {p.state.value.replace('_', ' ')}"


def _of(step: SessionStep, seq: int) -> Prompt | None:
    return next((p for p in step.after.prompts if p.seq == seq), None)


def _no_poisoning(step: SessionStep) -> Reasons:
    for p in step.after.prompts:
        if (p.state is State.CANCELED_ON_ENTRY or p.outcome is Outcome.CANCELED) and p.reach is Reach.NOTHING:
            yield f"{p.label} {_became(p)}, but nothing has canceled it since it was accepted."


def _no_late_fold(step: SessionStep) -> Reasons:
    for p, into in zip(step.folded, step.into):
        if into.reach is Reach.CANCEL:
            yield (f"{p.label} folds into the turn of {into.label}, which has been canceled: {p.label} will end "
                   "with that turn.")
        else:
            yield (f"{p.label} folds into the turn of {into.label}, which a pending interrupt will stop: {p.label} "
                   "will end with that turn.")


def _no_lost_cancel(step: SessionStep) -> Reasons:
    reached = {p.seq for p in step.after.prompts if p.reach is Reach.CANCEL}
    for p in step.started:
        if p.seq in reached:
            yield f"{p.label} starts, although it was canceled after it was accepted."
    for p in step.folded:
        if p.seq in reached:
            yield f"{p.label} folds into a turn, although it was canceled after it was accepted."
    waiting = {p.seq for p in step.before.live if p.state is not State.ACTIVE}
    for p in step.after.prompts:
        if p.seq in reached & waiting and p.outcome not in (None, Outcome.CANCELED, Outcome.FOLDED):
            yield f"{p.label} ends {p.outcome.value}, although it was canceled before its turn started."


def _cancel_stops(step: SessionStep) -> Reasons:
    reached = {p.seq for p in step.after.prompts if p.reach is Reach.CANCEL}
    asked = {e.seq for e in step.effects if isinstance(e, Stop)}
    for p in step.before.active:
        if p.reach is not Reach.CANCEL and p.seq in reached - asked:
            yield f"The {step.call} covers {p.label}, which is running, but does not ask its turn to stop."
    for seq in sorted(asked - reached):
        yield f"The turn of {label(seq)} is asked to stop, but no call has canceled {label(seq)}."


def _queue_dropped(step: SessionStep) -> Reasons:
    waiting = {p.seq for p in step.before.queue if p.reach is Reach.NOTHING}
    for p in step.after.prompts:
        if p.outcome is not Outcome.CANCELED and (
                p.reach is Reach.CLEAR or (p.reach is Reach.CANCEL and p.seq in waiting)):
            yield f"{p.label} was queued when the {step.call} arrived, but it {_became(p)} instead of ending canceled."


def _no_loss(step: SessionStep) -> Reasons:
    after = {p.seq for p in step.after.prompts}
    for p in step.before.prompts:
        if p.seq not in after:
            yield f"{p.label} was {p.state.value.replace('_', ' ')}, and this step loses it."


def _one_terminal(step: SessionStep) -> Reasons:
    for p in step.after.prompts:
        if p.ends > 1:
            yield f"The step publishes a second terminal event for {p.label}."


def _single_active(step: SessionStep) -> Reasons:
    if len(step.after.active) > 1:
        yield f"{_names(step.after.active)} are active at the same time."


def _fifo(step: SessionStep) -> Reasons:
    for p in step.started:
        for q in step.after.queue:
            if observer.place(q) < observer.place(p):
                why = "accepted earlier" if q.seq < p.seq else "moved to the front"
                yield f"{p.label} starts, while {q.label}, which was {why}, is still queued."


def _no_absorption(step: SessionStep) -> Reasons:
    for p, into in zip(step.folded, step.into):
        if p.run_id:
            yield (f"{p.label} folds into the turn of {into.label}, so clients that wait on the run id of {p.label} "
                   "receive no terminal event.")


def _attribution(step: SessionStep) -> Reasons:
    for e in step.effects:
        if isinstance(e, End | Report) and e.of != e.seq:
            yield f"The terminal event of {label(e.seq)} carries the result of {label(e.of)}."
    for e in step.ended:
        p = _of(step, e.seq)
        if p is None or p.outcome is not e.outcome:
            actual = _became(p) if p else "no longer exists"
            yield f"The terminal event reports that {label(e.seq)} ended {e.outcome.value}, but it {actual}."


def _idle_cancel_noop(step: SessionStep) -> Reasons:
    changed = "has an effect" if step.after.held == step.before.held else "changes the hold"
    yield f"Every prompt was already done, but this {step.call} {changed}."


def _record(step: SessionStep) -> Reasons:
    waiting = {p.seq for p in step.before.prompts if p.state is State.CANCELED_ON_ENTRY}
    for p in step.after.prompts:
        if p.state is State.DONE and p.seq in waiting and Record(p.seq) not in step.effects:
            yield f"{p.label} is done, but its messages were not written."


def _prompt_terminal(step: SessionStep) -> Reasons:
    silent = [p for p in step.after.prompts if p.state is State.DONE and not p.ends]
    started = _names(step.started)
    if silent:
        yield f"{started} starts before the terminal event of {_names(silent)}, which is done, has been published."
    else:
        yield f"The turn of {started} starts before a terminal event that this step publishes."


# --- Properties of the family's calls

def _spared(step: SessionStep, prompts: Iterable[Prompt]) -> Reasons:
    """The target prompts that the call fails to cancel."""
    for p in prompts:
        now = _of(step, p.seq)
        if now and now.outcome is not Outcome.CANCELED and not step.after.covered(now):
            yield f"The {step.call} targets {p.label} but does not cancel it."


def _harmed(step: SessionStep, meant: Iterable[Prompt]) -> Reasons:
    """The prompts that the call changes although they are not its targets."""
    apart = {p.seq for p in meant}
    for p in step.before.prompts:
        now = _of(step, p.seq)
        if p.seq not in apart and (now != p or step.after.covered(p) != step.before.covered(p)):
            yield f"The {step.call} does not target {p.label} but changes it."


def _revoke_exact(step: SessionStep) -> Reasons:
    meant = [step.prompt] if step.prompt else []
    yield from _spared(step, meant)
    yield from _harmed(step, meant)
    if step.after.held != step.before.held:
        yield "The revoke changes whether the session is held."


def _keeps_queue(step: SessionStep) -> Reasons:
    yield from _harmed(step, observer.in_front(step.before, None, step.variant))


def _stop_heard(step: SessionStep) -> Reasons:
    yield from _spared(step, observer.in_front(step.before, None, step.variant))


def _held(step: SessionStep) -> Reasons:
    for p in step.started:
        if p.state is not State.ACTIVE:
            yield f"{p.label} starts, although the session is held."
    for p in step.folded:
        yield f"{p.label} folds into a turn, although the session is held."
    running = {p.seq for p in step.before.active}
    for p in step.after.queue:
        if p.seq in running:
            yield f"{p.label} was running and must continue during a hold, but it is queued instead."


def _edited(step: SessionStep) -> Reasons:
    if step.call == "replace" and step.prompt:
        p = step.prompt
        why = ("is already canceled" if p.reach is not Reach.NOTHING else "has already started"
               if observer.wish_of(p).ran else f"is already {p.state.value}")
        yield f"The server accepts the new text, although {p.label} {why}: the language model will never receive it."
    for p in step.started + step.folded:
        if p.version != observer.wish_of(p).version:
            yield f"{p.label} runs with an older text than the last one that the server accepted."


def _send_now(step: SessionStep) -> Reasons:
    for p in observer.interrupted(step.before, step.prompt, None):
        yield (f"{step.prompt.label if step.prompt else 'An interrupt'} enters but does not ask {p.label}, which was "
               "accepted earlier, to stop.")


def _reject(step: SessionStep) -> Reasons:
    if step.before.live:
        yield f"The prompt requires an idle session, but {_names(step.before.live)} is not done."
    else:
        yield "The prompt requires an idle session, but the session is held."


ON_SESSION: Mapping[str, Callable[[SessionStep], Reasons]] = {
    "no-poisoning": _no_poisoning, "no-late-fold": _no_late_fold, "no-lost-cancel": _no_lost_cancel,
    "cancel-stops": _cancel_stops, "queue-dropped": _queue_dropped, "no-loss": _no_loss, "one-terminal": _one_terminal,
    "single-active": _single_active, "fifo": _fifo, "no-absorption": _no_absorption, "attribution": _attribution,
    "idle-cancel-noop": _idle_cancel_noop, "record": _record, "prompt-terminal": _prompt_terminal,
    "revoke-exact": _revoke_exact, "keeps-queue": _keeps_queue, "stop-heard": _stop_heard, "held": _held,
    "edited": _edited, "send-now": _send_now, "reject": _reject, **ASK_REASONS,
}


def _isolation(before: Server, change: Change) -> str:
    own = change.call.session
    if own is None:
        return f"The {change.call.name} applies to every session instead of one."
    others = [str(i + 1) for i, s in enumerate(before.sessions) if i != own and change.after.sessions[i] != s]
    return f"{change.call.name} applies to session {own + 1} but also changes session {' and '.join(others)}."


def _closed(before: Server, change: Change) -> str:
    if change.call.name == "accept":
        return "A prompt is accepted although the server is closing."
    return "The server's closing flag changes in a step that is neither a close nor a restart."


ON_SERVER: Mapping[str, Callable[[Server, Change], str]] = {"isolation": _isolation, "closed": _closed}


def rest_reason(property: str, prompt: Prompt) -> str:
    """Why a prompt violates the property at quiescence."""
    if property == DELIVERY.id:
        return f"The subscriber did not receive the terminal event of {prompt.label} exactly once."
    if prompt.state is not State.DONE:
        return f"{prompt.label} is {prompt.state.value.replace('_', ' ')}, and no remaining action will ever finish it."
    return f"{prompt.label} is done, but its terminal event was never published."
