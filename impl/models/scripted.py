"""A deterministic model for tests and demos: streams a script, or echoes the prompt. No network, no clock of its own.

A script is a sequence of *beats*: the deltas to stream, and what happens between them. It is divided into scenes, each
of which ends with a `Finish` or a `Fail`, or at the end of the script; each step plays one scene. So a script can call
a tool in one step and answer in the next, or fail once and then succeed:

    ScriptedModel([*call("c1", "read", {"path": "a"}), Finish(FinishReason.TOOL_USE), *say("It says hello.")])
    ScriptedModel({"hi": [Fail(ModelError(Failure.RATE_LIMIT, "slow down")), *say("hello")]})

Scenes are played in order, one per call, and start over after the last. Two models with the same script and the same
calls stream the same deltas, regardless of timing. The script is responsible for the guarantees of models; a test may
break them deliberately.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..models import (
    ChatMessage,
    Delta,
    Failure,
    Finish,
    FinishReason,
    ModelError,
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
    """Waits for this long, using the model's `sleep`."""

    seconds: float


@dataclass(frozen=True)
class Wait:
    """Waits until the gate with this name is open."""

    gate: str


@dataclass(frozen=True)
class Fail:
    """Raises this error: a `ModelError`, or one that a model should never raise."""

    error: Exception


@dataclass(frozen=True)
class Stubborn:
    """Plays these beats uninterruptibly: swallows and counts cancellations, and delays a `close` until the waits are
    over. A turn with such a step has to be abandoned."""

    beats: tuple["Beat", ...]


Beat = Delta | Delay | Wait | Fail | Stubborn


@dataclass(frozen=True)
class Request:
    """The arguments of a step."""

    number: int
    """The number of this call of the model, from 1."""
    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...]

    @property
    def prompt(self) -> str:
        """The text of the last user message; empty if there is none."""
        return next((m.text for m in reversed(self.messages) if m.role is Role.USER), "")


Choose = Callable[[Request], Iterable[Beat] | None]
Script = Iterable[Beat] | Mapping[str, Iterable[Beat]] | Choose


class Gate:
    """A gate at which steps wait until a test opens it. Not thread-safe: use it in the event loop of the steps."""

    def __init__(self) -> None:
        self.arrivals = 0
        """The number of steps that have ever arrived."""
        self._opened = asyncio.Event()
        self._arrived = asyncio.Event()

    def open(self) -> None:
        """Releases all waiting steps and all later ones."""
        self._opened.set()

    async def reached(self, arrivals: int = 1) -> None:
        """Waits until this many steps have arrived."""
        while self.arrivals < arrivals:
            await self._arrived.wait()

    async def pass_through(self) -> None:
        """Arrives, and waits until the gate is open."""
        self.arrivals += 1
        self._arrived.set()
        self._arrived = asyncio.Event()
        await self._opened.wait()


def say(text: str, chunks: int = 1) -> tuple[TextDelta, ...]:
    """The text in `chunks` chunks of about equal length; fewer if it has fewer characters."""
    size = max(1, -(-len(text) // chunks))
    return tuple(TextDelta(text[start:start + size]) for start in range(0, len(text), size))


def call(id: str, name: str, arguments: Mapping[str, object], pieces: int = 1) -> tuple[Delta, ...]:
    """One complete tool call, its arguments in `pieces` pieces."""
    text = json.dumps(arguments)
    return (
        ToolCallStart(id, name),
        *(ToolCallArguments(id, piece.text) for piece in say(text, pieces)),
        ToolCallEnd(id),
    )


def echo(prompt: str) -> tuple[TextDelta, ...]:
    """The answer without a script: the prompt repeated, in at most `ECHO_CHUNKS` chunks that end between words."""
    heard = prompt.strip() or "nothing"
    words = _WORD.findall(f"You said: {heard}\nI am the built-in model, and I repeat what I hear.")
    size = -(-len(words) // ECHO_CHUNKS)
    return tuple(TextDelta("".join(words[start:start + size])) for start in range(0, len(words), size))


class ScriptedModel:
    """Plays a script: one for all prompts, one per exact prompt text, or one chosen by a function at each call.

    A prompt without a script is echoed. A function is called at every step and returns the scene for that step; None
    means the echo. Between any two deltas other tasks run, so that a step can be canceled anywhere.

    Except for a function, a script depends only on the prompt, so the model needs only the last message, however long
    the session is. A function receives all messages, unless `hears` limits them.
    """

    name = "scripted"
    provider = "cancelmark"

    def __init__(
        self, script: Script | None = None, *, sleep: Sleep = asyncio.sleep, hears: int | None = None,
    ) -> None:
        self.hears = hears if callable(script) else 1
        self.calls = 0
        """The number of calls of `step`, even if no delta was consumed."""
        self.running = 0
        """The number of steps in progress."""
        self.ignored = 0
        """The number of cancellations that stubborn beats have swallowed."""
        self._sleep = sleep
        self._gates: dict[str, Gate] = {}
        self._choose = _chooser(script)

    def gate(self, name: str) -> Gate:
        """The gate with this name, for `Wait`. The same name gives the same gate."""
        return self._gates.setdefault(name, Gate())

    def step(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        """Plays the next scene of the script for these messages."""
        self.calls += 1
        request = Request(self.calls, tuple(messages), tuple(tools))
        chosen = self._choose(request)
        return self._play(echo(request.prompt) if chosen is None else tuple(chosen), request)

    async def aclose(self) -> None:
        """Does nothing: there are no resources."""

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
        """Waits as the beat requires, or just long enough for other tasks to run."""
        if not stubborn:
            await self._wait(beat)
            return
        waiting = asyncio.create_task(self._wait(beat))
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError:
                self.ignored += 1
        waiting.result()  # raises if the event loop canceled every task on shutdown

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
    """Cycles through the scenes of one script."""

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
    """The implicit end of a scene without a `Finish`."""
    called = any(isinstance(beat, ToolCallStart) for beat, _ in _flat(scene))
    return Finish(FinishReason.TOOL_USE if called else FinishReason.END_TURN)


def _said(deltas: Iterable[Delta]) -> Iterator[str]:
    for delta in deltas:
        if isinstance(delta, TextDelta | ReasoningDelta | ToolCallArguments):
            yield delta.text


def _words(texts: Iterable[str]) -> int:
    """The number of words, which stand in for tokens."""
    return len("".join(texts).split())


# --- the built-in model of `cancelmark serve`

PACE = 0.4  # seconds between two chunks of an answer
REPEAT = Tool("repeat", "Repeats the text.", {"type": "object", "properties": {"text": {"type": "string"}}})


def demo_model(pace: float = PACE) -> ScriptedModel:
    """A model that repeats its input, pauses `pace` seconds between two chunks, and obeys these prefixes:

    slow: hello            takes ten times as long                 fast: hello       answers immediately
    fail: hello            fails halfway through the answer        stubborn: hello   ignores requests to stop
    ask: hello             calls the tool `repeat`, which asks for permission, and then answers
    """
    return ScriptedModel(lambda request: tuple(_scene(request, pace)), hears=1)  # the prompt


def _scene(request: Request, pace: float) -> Iterator[Beat]:
    directive, colon, rest = request.prompt.strip().partition(":")
    directive = directive.lower() if colon else ""
    pause = pace * {"slow": 10, "fast": 0}.get(directive, 1)
    if directive == "ask" and request.messages[-1].role is not Role.TOOL:
        yield from call("c1", REPEAT.name, {"text": rest.strip()})
        return
    beats = list(_spoken(rest if directive in ("slow", "fast", "fail", "stubborn", "ask") else request.prompt, pause))
    if directive == "stubborn":
        yield Stubborn(tuple(beats))
    elif directive == "fail":
        yield from beats[:len(beats) // 2]
        yield Fail(ModelError(Failure.UNAVAILABLE, "the built-in model fails, because it was told to"))
    else:
        yield from beats


def _spoken(text: str, pause: float) -> Iterator[TextDelta | Delay]:
    for piece in echo(text.strip()):
        yield Delay(pause)
        yield piece
