"""Models of the original server, one per commit. Each revision is written as a subclass of the one before."""

from .machine import Revision
from .r0 import R0
from .r1 import R1
from .r2 import R2
from .r3 import R3
from .r4 import R4

REVISIONS: tuple[Revision, ...] = (R0(), R1(), R2(), R3(), R4())

__all__ = ["REVISIONS", "Revision"]
