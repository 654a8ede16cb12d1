"""The kit's timeouts, calibrated to this server on this machine.

No client can observe that something will never happen. The kit waits several times longer than anything has taken so
far, including a few plain prompts at the start, and reports how long it waited. Before a timeout becomes a finding, the
history is replayed with a longer timeout.
"""

from collections import deque

PLAIN_PROMPTS = 3  # plain prompts for the initial calibration
FACTOR = 4.0  # the timeout, in multiples of the longest recent wait that succeeded
CONFIRM = 3.0  # multiplier when a finding is being confirmed
FIRST = 10.0  # multiplier for the plain prompts at the start, before anything is known
RECENT = 200  # waits that are remembered: a busy machine may become idle
STEP = 0.25  # seconds between two polls of a server in this process, during calibration


class Patience:
    """The timeouts of one judgement."""

    def __init__(self, floor: float) -> None:
        self.floor = floor  # the minimum, in seconds
        self.turn = 0.0  # seconds in which a turn that the kit does not control has certainly ended
        self.times = CONFIRM
        self._waits: deque[float] = deque(maxlen=RECENT)

    def learn(self, seconds: float) -> None:
        """Record how long a successful wait took."""
        self._waits.append(seconds)

    @property
    def learning(self) -> bool:
        return self.times == FIRST

    @property
    def call(self) -> float:
        """The timeout of a call, in seconds."""
        return min(self.times, CONFIRM) * self._usual

    @property
    def _usual(self) -> float:
        return max(self.floor, FACTOR * max(self._waits, default=0.0))

    @property
    def seconds(self) -> float:
        """The timeout without any observation, after which an expected event counts as missing."""
        return max(self.turn, self.times * self._usual)
