"""r3: drain under the lock (seed 004). The drain checks the mark before it releases the lock; nothing else changes."""

from dataclasses import dataclass

from ..actions import Variant
from .agent import World
from .r2 import R2


@dataclass(frozen=True)
class R3(R2):
    """Drops or folds a prompt in the step that takes it from the queue."""

    name = "r3"
    title = "check under the lock: the mark is checked in the step that dequeues a prompt"

    def step(self, w: World, head: int, _: Variant) -> None:
        """004 drainUncanceledQueue."""
        super().step(w, head, _)
        self.fold(w, head, _)
