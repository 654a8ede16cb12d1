"""What must hold of the family: the reference's properties as its calls make them read, and those of its own."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from . import observer
from .actions import Reach
from .family import Feature, accepted_as
from .properties import PROPERTIES, Property, SessionStep, canceled
from .properties import no_late_fold as no_fold_when_canceled
from .protocol import Behaviour
from .session import ACCEPTED, ACTIVE, QUEUED, Prompt


@dataclass(frozen=True)
class FamilyProperty(Property):
    """A property that features add, or that says more with them than the reference's of the same id."""

    needs: frozenset[Feature] = frozenset()  # any of these


# --- properties of the reference that look at more

def no_late_fold(step: SessionStep) -> bool:
    # Nor does a prompt fold that was accepted after an interrupt: once that enters, it stops the turn.
    if not step.folded:
        return True
    interrupts = [p for p in step.before.live
                  if p.state is ACCEPTED and observer.unreached(p) and observer.wish_of(p).now]
    return no_fold_when_canceled(step) and not any(
        host.seq < p.seq < guest.seq for p in interrupts for guest, host in zip(step.folded, step.into))


def fifo(step: SessionStep) -> bool:
    # A turn that goes on in a held session was active before, and passes nobody.
    return not step.started or all(
        observer.place(p) < observer.place(q) for p in step.started for q in step.after.queue
        if not (p.state is ACTIVE and step.after.wished_hold))


def idle_cancel_noop(step: SessionStep) -> bool:
    idle = step.call in ("cancel", "stop") and not step.variant and not step.before.live
    return not idle or (step.after.prompts == step.before.prompts and not step.effects
                        and step.after.held == step.before.held)


# --- properties of the family's own calls

def _unchanged(step: SessionStep, but: Iterable[Prompt]) -> bool:
    """Whether the step leaves every prompt but these as it was, and reaches none of them."""
    apart = [p.seq for p in but]
    return all(p in step.after.prompts and step.after.covered(p) == step.before.covered(p)
               for p in step.before.prompts if p.seq not in apart)


def _reached(step: SessionStep, prompts: Iterable[Prompt]) -> bool:
    """Whether each of these is canceled now, or will be where it enters or stops."""
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



CALLS = frozenset({Feature.REVOKE, Feature.STOP, Feature.INTERRUPT})  # that cancel one prompt
_BY_ID = {p.id: p for p in PROPERTIES}


def _reworded(id: str, needs: frozenset[Feature], sentence: str, **checks: object) -> FamilyProperty:
    told = {**vars(_BY_ID[id]), **checks, "sentence": sentence}
    return FamilyProperty(**told, needs=needs)


# By id: the sentence that a property has with any of these features. Its check is the family's with every feature.
REWORDED: Mapping[str, FamilyProperty] = {p.id: p for p in (
    _reworded("no-poisoning", CALLS,
              "A prompt is never canceled by a call that came before its acceptance, nor by one that did not reach it. "
              "Calls are cancel, clear_queue, close, revoke, stop, and the entry of an interrupt."),
    _reworded("no-late-fold", frozenset({Feature.INTERRUPT}),
              "A turn that a call has canceled takes nobody in; nor does a turn take in a prompt that was accepted "
              "after an interrupt which is still to enter and to stop that turn.", on_session=no_late_fold),
    _reworded("no-lost-cancel", CALLS,
              "A prompt that a cancel, revoke, stop or interrupt has reached never starts or folds; if it was not "
              "running it ends canceled."),
    _reworded("cancel-stops", CALLS,
              "A cancel, revoke, stop or interrupt asks the running turn that it reaches to stop, and nothing else "
              "does."),
    _reworded("fifo", frozenset({Feature.NEXT, Feature.INTERRUPT}),
              "No prompt becomes active past a queued prompt that is ahead: one that was moved to the front later, or "
              "else was accepted earlier.", on_session=fifo),
    _reworded("idle-cancel-noop", frozenset({Feature.STOP, Feature.HOLD}),
              "A cancel or stop of an idle session changes no prompt and not the hold, and asks for nothing.",
              on_session=idle_cancel_noop),
    _reworded("all-done", frozenset({Feature.HOLD}),
              "At quiescence every prompt is done, or is queued in a session that is held."),
    _reworded("some-terminal", frozenset({Feature.HOLD}),
              "At quiescence every prompt has its terminal event, or is queued in a session that is held."),
)}


def _added(id: str, feature: Feature, sentence: str, check: Callable[[SessionStep], bool], *clauses: str,
           ) -> FamilyProperty:
    return FamilyProperty(id, sentence, check, clauses=clauses, needs=frozenset({feature}))


FAMILY_PROPERTIES: tuple[FamilyProperty, ...] = (
    _added("revoke-exact", Feature.REVOKE, "A revoke reaches its prompt and changes nobody else.", revoke_exact,
           "R30a", "R30b"),
    _added("keeps-queue", Feature.STOP, "A stop changes no prompt but the one in front.", keeps_queue, "R31b"),
    _added("stop-heard", Feature.STOP,
           "A stop reaches the prompt in front, whether it is active or still to enter.", stop_heard, "R31a"),
    _added("held", Feature.HOLD,
           "Between a hold and the next resume no prompt starts that was not active, none folds, and the running turn "
           "is not parked.", held, "R32a", "R32b", "R32c"),
    _added("edited", Feature.REPLACE,
           "What starts or folds is the latest text that a caller was told is taken; none is taken once the prompt has "
           "begun or is canceled.", edited, "R33a", "R33b"),
    _added("send-now", Feature.INTERRUPT,
           "An interrupt that enters, not canceled and not held, has the active prompt that was accepted before it "
           "asked to stop.", send_now, "R35b"),
    _added("reject", Feature.REJECT,
           "A prompt that was accepted with reject found every other prompt done and the session not held.", reject,
           "R35a"),
)

ALL_PROPERTIES: tuple[Property, ...] = (*(REWORDED.get(p.id, p) for p in PROPERTIES), *FAMILY_PROPERTIES)


def properties_for(protocol: Behaviour) -> tuple[Property, ...]:
    """What must hold of a protocol with its features, in the words that these need."""
    return _properties_with(getattr(protocol, "features", frozenset()))


@cache
def _properties_with(features: frozenset[Feature]) -> tuple[Property, ...]:
    if not features:
        return PROPERTIES
    return (*(_say(p, features) for p in PROPERTIES), *(p for p in FAMILY_PROPERTIES if p.needs & features))


def _say(reference: Property, features: frozenset[Feature]) -> Property:
    told = REWORDED.get(reference.id)
    if told is None or told.needs & features:
        return told or reference
    return replace(reference, on_session=told.on_session)
