"""The kit on a server outside that answers several prompts in one turn, and says nothing of whom a cancel reached."""

import asyncio

import httpx2 as httpx
import pytest

from cancelmark.conformance.adapter import Adapter, Ended, Event, Sent
from cancelmark.conformance.adapter.fake_llm import TURN, FakeModel
from cancelmark.conformance.judging.history import History
from cancelmark.conformance.playing.script import script
from cancelmark.conformance.playing.venue import Outside


class Folding(Adapter):
    """A server that answers whatever waits in one turn, and publishes the end of the last. After a cancel nothing is
    published, and what waited stays in the conversation."""

    outside = True
    patience = 0.3

    def __init__(self, url: str) -> None:
        self.url = url
        self.waiting: list[Sent] = []
        self.turn: asyncio.Task[None] | None = None

    async def close(self) -> None:
        await self.cancel("")

    async def accept(self, session: str, prompt: Sent) -> None:
        self.waiting.append(prompt)
        if self.turn is None or self.turn.done():
            self.turn = asyncio.create_task(self.run())

    async def cancel(self, session: str) -> None:
        if self.turn:
            self.turn.cancel()
            await asyncio.gather(self.turn, return_exceptions=True)

    async def run(self) -> None:
        async with httpx.AsyncClient(base_url=self.url, verify=False, timeout=None) as http:
            while prompts := list(self.waiting):
                messages = [{"role": "user", "content": prompt.text} for prompt in prompts]
                answer = await http.post("chat/completions", json={"model": TURN, "messages": messages})
                del self.waiting[:len(prompts)]
                text = answer.json()["choices"][0]["message"]["content"]
                self.tell(Ended(prompts[-1].name, "end_turn", text))


class Guests(Folding):
    """Whoever waits is the guest of the first, and has no end of its own. A cancel reaches nobody, and is answered when
    the turn has begun."""

    folds = True

    async def accept(self, session: str, prompt: Sent) -> None:
        self.waiting.append(prompt)
        self.turn = self.turn or asyncio.create_task(self.run())

    async def cancel(self, session: str) -> None:
        await asyncio.sleep(0.2)

    async def run(self) -> None:
        await asyncio.sleep(0.1)
        async with httpx.AsyncClient(base_url=self.url, verify=False, timeout=None) as http:
            messages = [{"role": "user", "content": prompt.text} for prompt in self.waiting]
            await http.post("chat/completions", json={"model": TURN, "messages": messages})
            self.tell(Ended(self.waiting[0].name, "end_turn"))


class StoppedGuests(Guests):
    """Its turn takes in whoever waits, and a cancel stops the turn before the language model hears of them."""

    async def cancel(self, session: str) -> None:
        if self.turn and not self.turn.done():
            self.turn.cancel()
            self.tell(Ended(self.waiting[0].name, "canceled"))

    async def run(self) -> None:
        if self.waiting[0].run_id:
            async with httpx.AsyncClient(base_url=self.url, verify=False, timeout=None) as http:
                messages = [{"role": "user", "content": self.waiting[0].text}]
                await http.post("chat/completions", json={"model": TURN, "messages": messages})
        await asyncio.sleep(60)


class Calling(Folding):
    """Its turns call tools. What a canceled turn has said stays in the conversation. A cancel is slow, as at another
    server than that of the turn."""

    folds = True

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.said: list[dict[str, object]] = []

    async def cancel(self, session: str) -> None:
        await asyncio.sleep(0.1)
        if self.turn and not self.turn.done():
            self.turn.cancel()
            self.tell(Ended(self.waiting.pop(0).name, "canceled"))

    async def run(self) -> None:
        async with httpx.AsyncClient(base_url=self.url, verify=False, timeout=None) as http:
            self.said.append({"role": "user", "content": self.waiting[0].text})
            while True:
                answer = await http.post("chat/completions", json={"model": TURN, "messages": self.said})
                self.said.append(said := answer.json()["choices"][0]["message"])
                if not said.get("tool_calls"):
                    self.tell(Ended(self.waiting.pop(0).name, "end_turn", said["content"]))
                    return
                self.said.append({"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "done"})
                self.said += self.find_guests()

    def find_guests(self) -> list[dict[str, object]]:
        return []


class LateTold(Calling):
    """Who watches elsewhere hears late of ends."""

    def tell(self, event: Event) -> None:
        asyncio.get_running_loop().call_later(0.2, super().tell, event)


class LateCalling(Calling):
    """A turn that was asked to stop goes on, and takes in who came after the cancel."""

    async def cancel(self, session: str) -> None:
        await asyncio.sleep(0.1)

    def find_guests(self) -> list[dict[str, object]]:
        guests, self.waiting[1:] = self.waiting[1:], []
        return [{"role": "user", "content": guest.text} for guest in guests]


def played(text: str, kind: type[Folding] = Folding) -> History:
    fake = FakeModel()
    stage = Outside(lambda: kind(fake.url), lambda: fake)
    try:
        return stage.play(script(text))
    finally:
        stage.close()


def test_who_is_answered_in_anothers_turn_is_taken_in_and_not_stranded() -> None:
    history = played("accept A; accept B, accept C; release; release")
    assert history.broken == {"no-absorption"}
    lines = [line.text for line in history.observations]
    assert lines.index("turn of C starts") < lines.index("turn of C includes B")


def test_one_after_the_other_nobody_is_taken_in() -> None:
    assert not played("accept A; accept B; release; release").complaints


def test_a_text_that_stays_after_a_cancel_does_not_count_as_taken_in() -> None:
    history = played("accept A; accept B; cancel; accept C; release")
    assert not any("in it" in line.text for line in history.observations)
    assert history.broken == {"some-terminal"}


def test_who_is_accepted_while_a_cancel_is_may_have_been_canceled_and_is_not_called_stranded() -> None:
    history = played("accept A; cancel + accept B")
    assert {c.guarantee for c in history.complaints if c.says.startswith("B ")} == {"some-terminal"}


def test_who_is_accepted_while_a_cancel_is_and_is_heard_in_anothers_turn_owes_no_end() -> None:
    """It may be a guest of that turn, or canceled with its text left behind: nobody outside can tell."""
    for later in ("release", "cancel, release"):
        history = played(f"cancel + accept A anonymous + accept B anonymous; {later}", Guests)
        assert "A ended: end_turn" in [line.text for line in history.observations]
        assert not [c for c in history.complaints if c.says.startswith("B ")], history.complaints


def test_who_was_canceled_before_the_turn_that_has_its_text_is_owed_an_end() -> None:
    history = played("accept A; accept B anonymous; cancel; accept C; release")
    assert {c.guarantee for c in history.complaints if c.says.startswith("B ")} == {"some-terminal"}


def test_with_a_run_id_an_end_is_owed_all_the_same() -> None:
    history = played("cancel + accept A anonymous + accept B; release", Guests)
    assert "some-terminal" in history.broken


@pytest.mark.parametrize("text", [
    "accept A anonymous, accept B anonymous, cancel", "accept A; again + accept B anonymous, cancel",
])
def test_who_may_have_been_taken_in_by_a_turn_that_was_stopped_before_it_asked_owes_no_end(text: str) -> None:
    history = played(text, StoppedGuests)
    assert "A ended: canceled" in [line.text for line in history.observations]
    assert not [c for c in history.complaints if c.says.startswith("B ")], history.complaints


def test_who_waits_for_a_turn_that_is_held_is_no_guest_and_is_owed_an_end() -> None:
    history = played("accept A; accept B anonymous; cancel", StoppedGuests)
    assert {c.guarantee for c in history.complaints if c.says.startswith("B ")} == {"some-terminal"}


def test_who_comes_behind_the_tool_of_a_turn_that_has_ended_has_a_turn_of_its_own() -> None:
    """The call comes when the cancel is on its way, and stays the last that was said."""
    history = played("accept A; again + cancel; accept B anonymous; release", Calling)
    lines = [line.text for line in history.observations]
    assert lines.index("turn of A continues") < lines.index("A ended: canceled") < lines.index("turn of B starts")
    assert "B ended: end_turn" in lines
    assert not history.complaints


def test_who_comes_behind_the_tool_of_a_turn_that_was_broken_off_has_a_turn_of_its_own() -> None:
    history = played("accept A; again + cancel, accept B anonymous; release", LateTold)
    lines = [line.text for line in history.observations]
    assert lines.index("turn of A aborted") < lines.index("turn of B starts") < lines.index("A ended: canceled")
    assert not history.complaints


def test_who_comes_behind_the_tool_of_a_turn_that_a_cancel_has_reached_was_taken_in() -> None:
    history = played("accept A; cancel; accept B anonymous; again", LateCalling)
    assert "turn of A includes B" in [line.text for line in history.observations]
    assert "no-late-fold" in history.broken
