"""What an adapter of a server outside does once for a judgement: it starts the server, and stops it."""

import asyncio
from typing import ClassVar

import pytest

from cancelmark.conformance import Adapter, Ended, Sent, judge
from cancelmark.conformance.playing.venue import AdapterError, NotSteered


class Hosted(Adapter):
    """Does not use the language model, and ends every prompt at once."""

    outside = True
    patience = 0.1
    told: ClassVar[list[str]] = []

    @classmethod
    async def prepare(cls, model_url: str) -> None:
        cls.told.append(f"prepare {model_url}".strip())

    @classmethod
    async def clean_up(cls) -> None:
        cls.told.append("clean up")

    async def open(self) -> None:
        self.told.append("open")

    async def accept(self, session: str, prompt: Sent) -> None:
        self.tell(Ended(prompt.name, "end_turn"))

    async def cancel(self, session: str) -> None:
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def afresh() -> None:
    Hosted.told.clear()


def test_a_server_is_prepared_once_and_cleaned_up_once() -> None:
    judge(Hosted, scripts=["accept A"], times=3)
    first, *between, last = Hosted.told
    assert (first, last) == ("prepare", "clean up")
    assert len(between) >= 3
    assert set(between) == {"open"}


@pytest.mark.real
def test_the_adapter_is_told_where_the_language_model_is() -> None:
    class Steered(Hosted):
        llm_port = 0

    with pytest.raises(NotSteered):
        judge(Steered, scripts=["accept A"], times=1)
    first, *_, last = Hosted.told
    assert first.startswith("prepare http://127.0.0.1:")
    assert first.endswith("/v1")
    assert not first.endswith(":0/v1")
    assert last == "clean up"


def test_what_prepares_badly_is_blamed_and_cleaned_up() -> None:
    class Bad(Hosted):
        @classmethod
        async def prepare(cls, model_url: str) -> None:
            raise OSError("there is no such program")

    with pytest.raises(AdapterError, match=r"Bad: OSError: there is no such program \(in prepare\)"):
        judge(Bad)
    assert Hosted.told == ["clean up"]


def test_what_fails_in_the_clean_up_hides_nothing() -> None:
    class Untidy(Hosted):
        @classmethod
        async def clean_up(cls) -> None:
            raise AttributeError("server")

    class Unstarted(Untidy):
        @classmethod
        async def prepare(cls, model_url: str) -> None:
            raise OSError("there is no such program")

    with pytest.raises(AdapterError, match=r"there is no such program \(in prepare\)"):
        judge(Unstarted)
    report = judge(Untidy, scripts=["accept A"], times=1)
    assert report.notes == ("after the judgement: Untidy: AttributeError: server (in clean_up)",)
    assert report.ok


def test_what_never_gets_ready_is_given_up() -> None:
    class Late(Hosted):
        start_limit = 0.05

        @classmethod
        async def prepare(cls, model_url: str) -> None:
            await asyncio.Event().wait()

    with pytest.raises(AdapterError, match=r"Late: prepare did not return within 0.05 s"):
        judge(Late)
    assert Hosted.told == ["clean up"]
