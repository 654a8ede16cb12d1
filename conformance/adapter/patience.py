"""How long a silence has to last before it counts, learned from how long this server takes on this machine.

Nobody can see that something will never happen. The kit waits, and says how long it has waited: several times longer
than anything took that did happen, among it a few plain prompts at the very beginning. Before a silence is called a
finding, the history is played again, and the kit waits longer still.
"""

from collections import deque

PLAIN = 3  # plain prompts from which it is learned at first
FACTOR = 4.0  # times the longest wait that has ended well
CONFIRM = 3.0  # times as long, before it is said that something did not happen
FIRST = 10.0  # times as long for the plain prompts at the beginning, of which nothing is known yet
RECENT = 200  # waits that are remembered: a machine that was busy may not be any more
STEP = 0.25  # seconds between two looks at a server in this process, while it is learned how long it takes


class Patience:
    """Of one judgement."""

    def __init__(self, floor: float) -> None:
        self.floor = floor  # seconds; it is never less
        self.turn = 0.0  # seconds in which a turn that nobody steers has certainly ended
        self.times = CONFIRM
        self._waits: deque[float] = deque(maxlen=RECENT)

    def learn(self, seconds: float) -> None:
        """Something that was waited for has come."""
        self._waits.append(seconds)

    @property
    def learning(self) -> bool:
        return self.times == FIRST

    @property
    def call(self) -> float:
        """Seconds without an answer."""
        return min(self.times, CONFIRM) * self._usual

    @property
    def _usual(self) -> float:
        return max(self.floor, FACTOR * max(self._waits, default=0.0))

    @property
    def seconds(self) -> float:
        """Without any news after which what has not happened counts as missing."""
        return max(self.turn, self.times * self._usual)
