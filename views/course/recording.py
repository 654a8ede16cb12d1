"""A recording of what a server did, which the oracle can check and a diagram can show."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, nextafter

from cancelmark.model.oracle import Call, CallKind, End, Prompt, Span, judge


class Recording:
    """A history that is recorded as it happens. Every event has its own distinct time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._now = -inf
        self._prompts: dict[str, Prompt] = {}
        self.calls: list[Call] = []

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts in order of acceptance."""
        return list(self._prompts.values())

    @property
    def ends(self) -> dict[str, str]:
        """The outcomes of the prompts that have ended, by name."""
        return {p.name: p.ends[-1].outcome for p in self.prompts if p.ends}

    def accept(self, name: str, run_id: bool = False) -> None:
        if name in self._prompts:
            raise ValueError(f"prompt {name} was already accepted; give each prompt its own name")
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
        """The oracle's findings, one sentence per violation. In a `complete` history every prompt has had time to
        end."""
        return judge(self.prompts, self.calls, complete)

    def _prompt(self, name: str) -> Prompt:
        if name not in self._prompts:
            raise LookupError(f"prompt {name} was never accepted; accepted: {', '.join(self._prompts) or 'none'}")
        return self._prompts[name]

    def _moment(self) -> Span:
        self._now = max(self._clock(), nextafter(self._now, inf))
        return Span(self._now, self._now)
