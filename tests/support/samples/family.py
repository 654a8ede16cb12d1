"""The family as a server: any protocol with calls of the family, right or wrong, behind an adapter.

The mistakes of `model.variants` are values, so none of them has to be built: a server is nothing but its protocol.
`SHOWN` has for each of them a script in which it shows from outside, and `HIDDEN` why some do not.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import ClassVar

from cancelmark.conformance.adapter import Refused, Sent
from cancelmark.conformance.schedule import checkpoint
from cancelmark.model.actions import Variant
from cancelmark.model.family import HOLD, RUN_ID
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import FAMILY, Protocol
from cancelmark.model.session import Prompt
from cancelmark.model.variants.catalogue import MISTAKES

from .models import ClosingModelAdapter, adapter_of

FAMILY_CALLS = {"revoke": "revoke", "stop": "stop", "stop_hold": "stop_hold", "hold": "hold", "replace": "replace",
                "next": "next", "restart": "crash"}
EVERYTHING = Bounds(requeues=1, crashes=1)


class FamilyAdapter(ClosingModelAdapter):
    """A model with calls of the family. It can be restarted: what is journaled is the state."""

    behaviour: ClassVar[Protocol]

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[int, list[str]] = {}  # of a prompt, in order of version
        has = {(action.name, variant) for action in self.behaviour.actions for variant in action.variants}
        self.calls = {name for name, variant in has if variant != HOLD} | {
            f"{name}_{variant}" for name, variant in has if variant == HOLD}
        self.outgrows = "error" if "requeue" in self.calls else ""
        self.if_busy = frozenset(word for word in ("reject", "interrupt") if ("accept", word) in has)

    def offers(self, what: str) -> bool:
        return super().offers(what) and (what not in FAMILY_CALLS or FAMILY_CALLS[what] in self.calls)

    # --- what clients call

    async def accept(self, session: str, prompt: Sent) -> None:
        if prompt.if_busy == "reject" and "look" in self.calls:
            await checkpoint()
            self.take_or_refuse(session, "look")
        await super().accept(session, prompt)

    def admit(self, session: str, prompt: Sent) -> None:
        if prompt.if_busy:
            named = self.find(session, "accept", variant=prompt.if_busy + RUN_ID)
            self.take_or_refuse(session, "accept", variant=prompt.if_busy + (RUN_ID if named else ""))
        else:
            super().admit(session, prompt)

    async def revoke(self, session: str, prompt: Sent) -> None:
        await checkpoint()
        with suppress(Refused):  # it is done
            self.take_or_refuse(session, "revoke", self.seq_of(prompt))

    async def stop(self, session: str) -> None:
        await self.call(session, "stop")

    async def stop_hold(self, session: str) -> None:
        await self.call(session, "stop", HOLD)

    async def hold(self, session: str) -> None:
        await self.call(session, "hold")

    async def resume(self, session: str) -> None:
        await self.call(session, "resume")

    async def replace(self, session: str, prompt: Sent, text: str) -> None:
        await checkpoint()
        seq = self.seq_of(prompt)
        self.take_or_refuse(session, "replace", seq)
        self.texts.setdefault(seq, [prompt.text]).append(text)

    async def next(self, session: str, prompt: Sent) -> None:
        await checkpoint()
        self.take_or_refuse(session, "next", self.seq_of(prompt))

    async def call(self, session: str, name: str, variant: Variant = None) -> None:
        await checkpoint()
        self.take(session, name, variant=variant)
        if "arrive" in self.calls:
            self.tasks.add(asyncio.create_task(self.arrive(session), name="later"))

    async def arrive(self, session: str) -> None:
        """What a protocol has put off."""
        await checkpoint()
        if move := self.find(session, "arrive"):
            self.apply(session, move)

    def take_or_refuse(self, session: str, name: str, seq: int | None = None, variant: Variant = None) -> None:
        move = self.find(session, name, seq, variant)
        if move is None:
            raise Refused(f"{self.name} cannot {name} {seq or ''} now")
        self.apply(session, move)

    def seq_of(self, prompt: Sent) -> int:
        return next((seq for seq, sent in self.sent.items() if sent.name == prompt.name), 0)

    def text_of(self, prompt: Prompt) -> str:
        return self.texts[prompt.seq][prompt.version] if prompt.seq in self.texts else super().text_of(prompt)

    async def restart(self) -> None:
        for session in self.states:
            self.take(session, "crash")
        await self.close()
        self.tasks.clear()
        self.taken_in.clear()
        for session in self.states:
            self.take(session, "recover")
            for prompt in self.states[session].prompts:
                self.live(session, prompt.seq)


def family_adapter(protocol: Protocol = FAMILY, bounds: Bounds = EVERYTHING) -> type[FamilyAdapter]:
    """The server of a protocol of the family. What has no place in the bounds of a mistake does not happen: turns that
    go on after a summary, and restarts."""
    counts = {"requeue": bounds.requeues, "crash": bounds.crashes, "recover": bounds.crashes}
    left_out = {name for name, n in counts.items() if not n}
    limited = protocol.limited(tuple(action for action in protocol.actions if action.name not in left_out))
    return adapter_of(limited, protocol.name, FamilyAdapter)


def claiming(guarantee: str, mistake: str = "") -> type[FamilyAdapter]:
    """The server with that mistake, or with none, as one that claims this guarantee and no other."""
    made = [family_adapter(m.protocol, m.bounds) for m in MISTAKES if m.name == mistake] or [family_adapter()]
    return type(made[0].__name__, (made[0],), {"claims": frozenset({guarantee})})


SHOWN: Mapping[str, tuple[str, str]] = {
    "revoke raises the mark": ("revoke-exact", "accept A, accept B, revoke B | late 0"),
    "revoke looks at the queue and the turn only": ("revoke-exact", "accept A, revoke A | late 0"),
    "revoke is answered before it is journaled": ("no-lost-cancel", "accept A, revoke A, restart | late 0"),
    "stop asks only what is active": ("stop-heard", "accept A, stop | late 0"),
    "stop raises the mark": ("keeps-queue", "accept A, accept B; stop | late 0"),
    "stop is a flag of the session": ("no-poisoning", "accept A; accept B; accept C; stop + release | late 0 2"),
    "stop is done later, to whoever is active": ("stop-heard", "accept A, stop | late 0"),
    "stop and hold are two steps": ("held", "accept A; accept B; stop hold; resume | late 1"),
    "hold is not asked on entry": ("held", "hold; accept A; resume"),
    "hold is not asked when a turn ends": ("held", "accept A; accept B; hold; release; resume"),
    "hold is not asked when a turn goes on": ("held", "accept A, accept B; hold; outgrow; summarize; resume | late 0"),
    "hold parks a turn that goes on": ("held", "accept A, accept B; hold; outgrow; summarize; resume"),
    "recovery forgets the hold": ("held", "hold; accept A; restart; resume"),
    "a held queue folds": ("held", "accept A; accept B anonymous; hold; again"),
    "resume forgets the handoff": ("all-done", "hold; accept A; resume"),
    "cancel releases the hold": ("held", "hold; cancel; accept A; resume"),
    "replace is taken after the start": ("edited", "accept A; replace A"),
    "replace is taken by a prompt that was requeued": (
        "edited", "accept A, accept B; outgrow; summarize; replace A + replace B | late 0"),
    "replace deletes and inserts": ("edited", "accept A, revoke A, replace A | late 0"),
    "replace is not journaled": ("edited", "accept A; accept B; replace B; restart"),
    "next is not journaled": ("fifo", "accept A; accept B; accept C; next C; restart"),
    "the handoff goes by seq": ("fifo", "accept A; accept B; accept C; next C; release; release"),
    "an interrupt decides where it is accepted": ("send-now", "accept A, accept B interrupt | late 0 2"),
    "an interrupt stops whoever is active": ("no-poisoning", "accept A interrupt, accept B | late 0"),
    "an interrupt interrupts while held": (
        "no-poisoning", "accept A; hold; accept B interrupt; release; resume"),
    "folding goes on while an interrupt is to enter": (
        "no-late-fold", "accept A; accept B interrupt, accept C anonymous, again | late 2"),
    "the place of an interrupt is given on entry": (
        "send-now", "accept A; accept B interrupt, accept C interrupt; release; release | late 0 2"),
    "an interrupt cancels all before it": (
        "no-poisoning", "accept A; accept B; accept C interrupt; release; release"),
    "an interrupt starts beside the stopping turn": ("single-active", "accept A; accept B interrupt"),
    "reject asks whether the session is busy": ("reject", "accept A, accept B reject | late 0"),
    "reject looks first": ("reject", "accept A reject + accept B reject"),
    "reject forgets the hold": ("reject", "hold; accept A reject; resume"),
}
"""By mistake, a guarantee that it breaks, and a script with its schedule that shows the break."""

HIDDEN: Mapping[str, str] = {
    "next queues what is accepted, covered or not": "the server stops the turn in the instant in which it starts, "
                                                    "before it calls the language model, and its prompt ends "
                                                    "canceled as it should",
    "a turn that goes on goes to the front": "clients cannot tell a turn that overtakes others after its summary from "
                                             "one that makes its summary without leaving its position",
    "a covered interrupt interrupts": "clients cannot tell whether the interrupt had entered when it was canceled",
}
"""By mistake, why clients cannot observe it."""
