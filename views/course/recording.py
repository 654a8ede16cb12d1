"""What was seen of a server, written down as it happened: a recording can be judged, and looked at."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, nextafter

from cancelmark.model.oracle import Call, CallKind, End, Prompt, Span, judge


class Recording:
    """A recording in the making. Each thing is noted at the moment at which it happened, and no two share a moment."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._now = -inf
        self._prompts: dict[str, Prompt] = {}
        self.calls: list[Call] = []

    @property
    def prompts(self) -> list[Prompt]:
        """In order of acceptance."""
        return list(self._prompts.values())

    @property
    def ends(self) -> dict[str, str]:
        """How each prompt ended; those that have not are not there."""
        return {p.name: p.ends[-1].outcome for p in self.prompts if p.ends}

    def accept(self, name: str, run_id: bool = False) -> None:
        if name in self._prompts:
            raise ValueError(f"prompt {name} was accepted before; give each prompt a name of its own")
        self._prompts[name] = Prompt(name, self._moment(), run_id)

    def start(self, name: str) -> None:
        prompt = self._prompt(name)
        self._prompts[name] = replace(prompt, starts=(*prompt.starts, self._moment()))

    def end(self, name: str, outcome: str) -> None:
        prompt, now = self._prompt(name), self._moment()
        self._prompts[name] = replace(prompt, ends=(*prompt.ends, End(now.begin, now.end, outcome)))

    def call(self, kind: CallKind) -> None:
        now = self._moment()
        self.calls.append(Call(now.begin, now.end, kind))

    def complaints(self, complete: bool = True) -> list[str]:
        """What the oracle finds wrong with it, a sentence each. In a `complete` one everything has had time to end."""
        return judge(self.prompts, self.calls, complete)

    def _prompt(self, name: str) -> Prompt:
        if name not in self._prompts:
            raise LookupError(f"prompt {name} was never accepted; accepted: {', '.join(self._prompts) or 'nobody'}")
        return self._prompts[name]

    def _moment(self) -> Span:
        self._now = max(self._clock(), nextafter(self._now, inf))
        return Span(self._now, self._now)
