"""The properties of the family: the reference's properties, reworded where its calls require it, and its own."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from . import ask_properties, observer
from .actions import Reach
from .family import Feature, accepted_as
from .properties import PROPERTIES, Property, SessionStep, canceled
from .properties import no_late_fold as no_fold_when_canceled
from .protocol import Behaviour
from .session import ACCEPTED, ACTIVE, QUEUED, Prompt


@dataclass(frozen=True)
class FamilyProperty(Property):
    """A property that features add, or a reference property of the same id that they extend."""

    needs: frozenset[Feature] = frozenset()  # applies if the protocol has any of these


# --- Reference properties with an extended check

def no_late_fold(step: SessionStep) -> bool:
    # A prompt accepted after a pending interrupt must not fold either: the interrupt will stop the turn when it enters.
    if not step.folded:
        return True
    interrupts = [p for p in step.before.live
                  if p.state is ACCEPTED and observer.unreached(p) and observer.wish_of(p).now]
    return no_fold_when_canceled(step) and not any(
        host.seq < p.seq < guest.seq for p in interrupts for guest, host in zip(step.folded, step.into))


def fifo(step: SessionStep) -> bool:
    # A turn that resumes in a held session was active before, so it overtakes no queued prompt.
    return not step.started or all(
        observer.place(p) < observer.place(q) for p in step.started for q in step.after.queue
        if not (p.state is ACTIVE and step.after.wished_hold))


def idle_cancel_noop(step: SessionStep) -> bool:
    idle = step.call in ("cancel", "stop") and not step.variant and not step.before.live
    return not idle or (step.after.prompts == step.before.prompts and not step.effects
                        and step.after.held == step.before.held)


# --- Properties of the family's own calls

def _unchanged(step: SessionStep, but: Iterable[Prompt]) -> bool:
    """Whether the step neither changes nor cancels any prompt except `but`."""
    apart = [p.seq for p in but]
    return all(p in step.after.prompts and step.after.covered(p) == step.before.covered(p)
               for p in step.before.prompts if p.seq not in apart)


def _reached(step: SessionStep, prompts: Iterable[Prompt]) -> bool:
    """Whether each of these prompts is canceled, or is covered and so will be canceled when it enters or stops."""
    return all(canceled(now) or step.after.covered(now)
               for p in prompts for now in step.after.prompts if now.seq == p.seq)


def revoke_exact(step: SessionStep) -> bool:
    if step.call != "revoke" or step.prompt is None:
        return True
    return _unchanged(step, [step.prompt]) and _reached(step, [step.prompt]) and step.after.held == step.before.held


def keeps_queue(step: SessionStep) -> bool:
    return step.call != "stop" or _unchanged(step, observer.in_front(step.before, None, step.variant))


def stop_heard(step: SessionStep) -> bool:
    return step.call != "stop" or _reached(step, observer.in_front(step.before, None, step.variant))


def held(step: SessionStep) -> bool:
    running = [p.seq for p in step.before.active]
    return not step.after.wished_hold or not (step.folded or any(p.state is not ACTIVE for p in step.started)
                                              or any(p.seq in running for p in step.after.queue))


def edited(step: SessionStep) -> bool:
    if step.call == "replace" and step.prompt is not None and (
            step.prompt.state not in (ACCEPTED, QUEUED) or step.prompt.reach is not Reach.NOTHING
            or observer.wish_of(step.prompt).ran):
        return False
    return all(p.version == observer.wish_of(p).version for p in step.started + step.folded)


def send_now(step: SessionStep) -> bool:
    return step.call != "enter" or _reached(step, observer.interrupted(step.before, step.prompt, None))


def reject(step: SessionStep) -> bool:
    wanted_idle = step.call == "accept" and accepted_as(step.variant, Feature.REJECT)
    return not wanted_idle or not (step.before.live or step.before.wished_hold)



CALLS = frozenset({Feature.REVOKE, Feature.STOP, Feature.INTERRUPT})  # those that cancel a single prompt
_BY_ID = {p.id: p for p in PROPERTIES}


def _reworded(id: str, needs: frozenset[Feature], sentence: str, **checks: object) -> FamilyProperty:
    fields = {**vars(_BY_ID[id]), **checks, "sentence": sentence}
    return FamilyProperty(**fields, needs=needs)


# By id. The new sentence applies if the protocol has any of the features; the family's check applies with any feature.
REWORDED: Mapping[str, FamilyProperty] = {p.id: p for p in (
    _reworded("no-poisoning", CALLS,
              "A prompt is never canceled by a call sent before the prompt was accepted, nor by a call that did not "
              "target it. The calls are cancel, clear_queue, close, revoke, stop, and the entry of an interrupt."),
    _reworded("no-late-fold", frozenset({Feature.INTERRUPT}),
              "A canceled turn folds no prompts. A turn also folds no prompt that was accepted after a pending "
              "interrupt, because the interrupt will stop that turn when it enters.", on_session=no_late_fold),
    _reworded("no-lost-cancel", CALLS,
              "A prompt targeted by a cancel, revoke, stop or interrupt never starts or folds; unless it was already "
              "running, it ends canceled."),
    _reworded("cancel-stops", CALLS,
              "A cancel, revoke, stop or interrupt asks the running turn that it targets to stop; nothing else does."),
    _reworded("fifo", frozenset({Feature.NEXT, Feature.INTERRUPT}),
              "No prompt starts before a queued prompt ahead of it. The prompt most recently moved to the front comes "
              "first; prompts that were not moved follow in seq order.", on_session=fifo),
    _reworded("idle-cancel-noop", frozenset({Feature.STOP, Feature.HOLD}),
              "Canceling or stopping an idle session changes neither prompts nor the hold, and has no effects.",
              on_session=idle_cancel_noop),
    _reworded("all-done", frozenset({Feature.HOLD}),
              "At quiescence every prompt is done or is queued in a held session."),
    _reworded("some-terminal", frozenset({Feature.HOLD}),
              "At quiescence every prompt has its terminal event or is queued in a held session."),
)}


def _added(id: str, feature: Feature, sentence: str, check: Callable[[SessionStep], bool], *clauses: str,
           ) -> FamilyProperty:
    return FamilyProperty(id, sentence, check, clauses=clauses, needs=frozenset({feature}))


FAMILY_PROPERTIES: tuple[FamilyProperty, ...] = (
    _added("revoke-exact", Feature.REVOKE, "A revoke cancels its prompt and changes no other prompt.", revoke_exact,
           "R30a", "R30b"),
    _added("keeps-queue", Feature.STOP, "A stop changes no prompt except the one in front.", keeps_queue, "R31b"),
    _added("stop-heard", Feature.STOP,
           "A stop cancels the prompt in front, whether it is active or has not entered yet.", stop_heard, "R31a"),
    _added("held", Feature.HOLD,
           "Between a hold and the next resume, no waiting prompt starts or folds, and the running turn continues.",
           held, "R32a", "R32b", "R32c"),
    _added("edited", Feature.REPLACE,
           "A prompt starts or folds with the last text that the server accepted for it. The server accepts no new "
           "text once the prompt has started or is canceled.", edited, "R33a", "R33b"),
    _added("send-now", Feature.INTERRUPT,
           "An interrupt that enters an unheld session, and is not canceled itself, asks the active prompt to stop if "
           "that prompt was accepted earlier.", send_now, "R35b"),
    _added("reject", Feature.REJECT,
           "A prompt sent with reject is accepted only if every other prompt is done and the session is not held.",
           reject, "R35a"),
)

ASK_PROPERTIES: tuple[FamilyProperty, ...] = (
    _added("no-late-approval", Feature.ASK,
           "A tool that a turn asked about starts only if a client allowed it while the question was open, and never "
           "after a call has canceled the prompt, or its turn has ended or was requeued.",
           ask_properties.no_late_approval, "R36b", "R36d", "R36g", "R36h"),
    _added("tool-once", Feature.ASK, "A tool that was allowed starts at most once.", ask_properties.tool_once, "R36d"),
    _added("one-answer", Feature.ASK, "A question takes one answer; later answers change nothing.",
           ask_properties.one_answer, "R36c"),
    _added("answer-exact", Feature.ASK, "An answer changes the question that it names, and nothing else.",
           ask_properties.answer_exact, "R36a", "R36b"),
    _added("answer-heard", Feature.ASK,
           "An open question takes an answer. A tool that was allowed can start until a call cancels the prompt, or "
           "its turn ends or is requeued.", ask_properties.answer_heard, "R36b", "R36j"),
    _added("ask-settled", Feature.ASK,
           "No question outlives its turn: subscribers receive exactly one end of it, an answer or a withdrawal, in "
           "the step in which it happens and before the prompt's terminal event.", ask_properties.ask_settled,
           "R36a", "R36f", "R36g", "R36h", "R36i"),
    _added("may-have-run", Feature.ASK, "After a crash, exactly the tools that had started are reported as such.",
           ask_properties.may_have_run, "R36e", "R36i"),
)

# Those of `FAMILY`.
ALL_PROPERTIES: tuple[Property, ...] = (*(REWORDED.get(p.id, p) for p in PROPERTIES), *FAMILY_PROPERTIES)


def properties_for(protocol: Behaviour) -> tuple[Property, ...]:
    """The properties that apply to a protocol with its features, worded for those features."""
    return _properties_with(getattr(protocol, "features", frozenset()))


@cache
def _properties_with(features: frozenset[Feature]) -> tuple[Property, ...]:
    if not features:
        return PROPERTIES
    added = (p for p in (*FAMILY_PROPERTIES, *ASK_PROPERTIES) if p.needs & features)
    return (*(_adapt(p, features) for p in PROPERTIES), *added)


def _adapt(reference: Property, features: frozenset[Feature]) -> Property:
    reworded = REWORDED.get(reference.id)
    if reworded is None or reworded.needs & features:
        return reworded or reference
    return replace(reference, on_session=reworded.on_session)


EVERY_PROPERTY = _properties_with(frozenset(Feature))  # of a protocol with all features
