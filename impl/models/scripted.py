"""A model without a model: it says what a script tells it to, or echoes the prompt. No network, no clock of its own.

A script is a sequence of *beats*: the deltas to stream, and what happens between them. It is cut into scenes, each of
which ends with a `Finish` or a `Fail`, or where the script ends; each step plays one scene. So a script can call a tool
in one step and speak in the next, or fail once and then work:

    ScriptedModel([*call("c1", "read", {"path": "a"}), Finish(FinishReason.TOOL_USE), *say("It says hello.")])
    ScriptedModel({"hi": [Fail(ModelError(Failure.RATE_LIMIT, "slow down")), *say("hello")]})

Scenes are played in order, one for each call that takes this script, and after the last comes the first again. Two
models with one script that are called alike stream alike, whatever the timing. What models guarantee is the script's to
keep, or to break, if that is what a test is about.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..models import (
    Delta,
    Finish,
    FinishReason,
    Message,
    ReasoningDelta,
    Role,
    TextDelta,
    Tool,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)

Sleep = Callable[[float], Awaitable[object]]

ECHO_CHUNKS = 8
_WORD = re.compile(r"\s*\S+\s*")


@dataclass(frozen=True)
class Delay:
    """Nothing happens for this long, by the model's `sleep`."""

    seconds: float


@dataclass(frozen=True)
class Wait:
    """The step waits until the gate of this name is open."""

    gate: str


@dataclass(frozen=True)
class Fail:
    """The step raises this: a `ModelError`, or anything else that a model should never raise."""

    error: Exception


@dataclass(frozen=True)
class Stubborn:
    """While these beats play, the step does not let itself be stopped: a cancellation is swallowed and counted, and a
    `close` takes until their waits are over. This is what a turn looks like that has to be abandoned."""

    beats: tuple["Beat", ...]


Beat = Delta | Delay | Wait | Fail | Stubborn


@dataclass(frozen=True)
class Request:
    """What a step was asked."""

    number: int
    """Which call of the model this is, from 1."""
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]

    @property
    def prompt(self) -> str:
        """The text of the last message that a user sent; empty if there is none."""
        return next((m.text for m in reversed(self.messages) if m.role is Role.USER), "")


Choose = Callable[[Request], Iterable[Beat] | None]
Script = Iterable[Beat] | Mapping[str, Iterable[Beat]] | Choose


class Gate:
    """Where steps wait until somebody lets them pass. All its methods belong to the event loop of the steps."""

    def __init__(self) -> None:
        self.arrivals = 0
        """How many steps have come here, ever."""
        self._opened = asyncio.Event()
        self._arrived = asyncio.Event()

    def open(self) -> None:
        """Lets pass everyone who waits here, and everyone who comes later."""
        self._opened.set()

    async def reached(self, arrivals: int = 1) -> None:
        """Returns once so many steps have come here, at once if they already have."""
        while self.arrivals < arrivals:
            await self._arrived.wait()

    async def pass_through(self) -> None:
        """Arrives, and waits until the gate is open."""
        self.arrivals += 1
        self._arrived.set()
        self._arrived = asyncio.Event()
        await self._opened.wait()


def say(text: str, chunks: int = 1) -> tuple[TextDelta, ...]:
    """The text in so many chunks of about equal length; in fewer if it has fewer characters."""
    size = max(1, -(-len(text) // chunks))
    return tuple(TextDelta(text[start:start + size]) for start in range(0, len(text), size))


def call(id: str, name: str, arguments: Mapping[str, object], pieces: int = 1) -> tuple[Delta, ...]:
    """One whole tool call, its arguments in so many pieces."""
    text = json.dumps(arguments)
    return (
        ToolCallStart(id, name),
        *(ToolCallArguments(id, piece.text) for piece in say(text, pieces)),
        ToolCallEnd(id),
    )


def echo(prompt: str) -> tuple[TextDelta, ...]:
    """The answer without a script: the prompt given back, in at most `ECHO_CHUNKS` chunks that end between words."""
    heard = prompt.strip() or "nothing"
    words = _WORD.findall(f"You said: {heard}\nI am the built-in model, and I repeat what I hear.")
    size = -(-len(words) // ECHO_CHUNKS)
    return tuple(TextDelta("".join(words[start:start + size])) for start in range(0, len(words), size))


class ScriptedModel:
    """Plays a script: one for all prompts, one for each prompt's exact text, or what a function chooses at each call.

    A prompt for which there is no script is echoed. A function is asked at every call and gives the scene for that call
    alone; None means the echo. Between any two deltas other tasks run, so that a step can be canceled anywhere.

    Everything but a function goes by the prompt alone, and hears nothing else, however long the session is. A function
    may look at all that was said, unless `hears` says how much of it the function looks at.
    """

    name = "scripted"
    provider = "cancelmark"

    def __init__(
        self, script: Script | None = None, *, sleep: Sleep = asyncio.sleep, hears: int | None = None,
    ) -> None:
        self.hears = hears if callable(script) else 1
        self.calls = 0
        """How many steps were asked for. Counted when `step` is called, even if nobody takes a delta."""
        self.running = 0
        """How many steps have begun and are not over."""
        self.ignored = 0
        """How many cancellations stubborn beats have swallowed."""
        self._sleep = sleep
        self._gates: dict[str, Gate] = {}
        self._choose = _chooser(script)

    def gate(self, name: str) -> Gate:
        """The gate of this name, which `Wait` waits for. The same name gives the same gate."""
        return self._gates.setdefault(name, Gate())

    def step(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        """Plays the next scene of the script that these messages have."""
        self.calls += 1
        request = Request(self.calls, tuple(messages), tuple(tools))
        chosen = self._choose(request)
        return self._play(echo(request.prompt) if chosen is None else tuple(chosen), request)

    async def aclose(self) -> None:
        """Nothing is held."""

    async def _play(self, scene: tuple[Beat, ...], request: Request) -> AsyncGenerator[Delta, None]:
        self.running += 1
        spoken: list[Delta] = []
        closing = False
        try:
            for beat, stubborn in _flat((*scene, _ending(scene))):
                if closing and not stubborn:
                    return
                await self._get_past(beat, stubborn)
                if closing or isinstance(beat, Delay | Wait):
                    continue
                if isinstance(beat, Fail):
                    raise beat.error.with_traceback(None)
                if isinstance(beat, Finish) and beat.usage is None:
                    beat = Finish(beat.reason, Usage(_words(m.text for m in request.messages), _words(_said(spoken))))
                spoken.append(beat)
                try:
                    yield beat
                except GeneratorExit:
                    if not stubborn:
                        raise
                    closing = True
                if isinstance(beat, Finish):
                    return
        finally:
            self.running -= 1

    async def _get_past(self, beat: Beat, stubborn: bool) -> None:
        """Waits as the beat says, or just long enough for other tasks to run."""
        if not stubborn:
            await self._wait(beat)
            return
        waiting = asyncio.create_task(self._wait(beat))
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError:
                self.ignored += 1
        waiting.result()  # canceled after all, when every task there is was: at the end of the event loop

    def _wait(self, beat: Beat) -> Coroutine[object, object, None]:
        match beat:
            case Wait(gate):
                return self.gate(gate).pass_through()
            case Delay(seconds):
                return _finish(self._sleep(seconds))
            case _:
                return asyncio.sleep(0)


async def _finish(waiting: Awaitable[object]) -> None:
    await waiting


def _chooser(script: Script | None) -> Choose:
    if script is None:
        return lambda request: None
    if callable(script):
        return script
    if isinstance(script, Mapping):
        players = {prompt: _Player(beats) for prompt, beats in script.items()}
        return lambda request: players[request.prompt].next() if request.prompt in players else None
    player = _Player(script)
    return lambda request: player.next()


class _Player:
    """The scenes of one script, in turn, for ever."""

    def __init__(self, beats: Iterable[Beat]) -> None:
        self._scenes: list[list[Beat]] = [[]]
        self._next = 0
        for beat in beats:
            if _ends(self._scenes[-1]):
                self._scenes.append([])
            self._scenes[-1].append(beat)

    def next(self) -> list[Beat]:
        scene = self._scenes[self._next]
        self._next = (self._next + 1) % len(self._scenes)
        return scene


def _flat(beats: Iterable[Beat], stubborn: bool = False) -> Iterator[tuple[Delta | Delay | Wait | Fail, bool]]:
    for beat in beats:
        if isinstance(beat, Stubborn):
            yield from _flat(beat.beats, stubborn=True)
        else:
            yield beat, stubborn


def _ends(scene: Iterable[Beat]) -> bool:
    return any(isinstance(beat, Finish | Fail) for beat, _ in _flat(scene))


def _ending(scene: Iterable[Beat]) -> Finish:
    """How a scene ends that does not say so."""
    called = any(isinstance(beat, ToolCallStart) for beat, _ in _flat(scene))
    return Finish(FinishReason.TOOL_USE if called else FinishReason.END_TURN)


def _said(deltas: Iterable[Delta]) -> Iterator[str]:
    for delta in deltas:
        if isinstance(delta, TextDelta | ReasoningDelta | ToolCallArguments):
            yield delta.text


def _words(texts: Iterable[str]) -> int:
    """What a token is here."""
    return len("".join(texts).split())
