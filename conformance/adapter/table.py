"""The base of adapters for servers with all calls of `model.calls`: one method makes every call."""

from collections.abc import Callable, Coroutine
from typing import Any

from cancelmark.model.calls import CALLS_BY_WORD, ClientCall

from .interface import Adapter, Sent


def _made(word: str) -> Callable[..., Coroutine[Any, Any, None]]:
    call = CALLS_BY_WORD[word]

    async def make(self: "TableAdapter", session: str, prompt: Sent | None = None, text: str | None = None) -> None:
        await self.make_call(call, session, prompt, **({} if text is None else {"text": text}))

    return make


class TableAdapter(Adapter):
    """An adapter that implements every call of the table by `make_call`."""

    async def make_call(self, call: ClientCall, session: str, prompt: Sent | None = None, **arguments: Any) -> Any:
        """Make the call, for this prompt if the call names one, with the arguments of the runtime's method."""
        raise NotImplementedError

    async def name_stopped(self, answer: Any) -> str | None:
        """The name of the prompt that a stop has canceled, from its response, as `Adapter.stop` returns it."""
        raise NotImplementedError

    cancel = _made("cancel")
    clear = _made("clear")
    revoke = _made("revoke")
    hold = _made("hold")
    resume = _made("resume")
    replace = _made("replace")
    next = _made("next")

    async def stop(self, session: str) -> str | None:
        return await self.name_stopped(await self.make_call(CALLS_BY_WORD["stop"], session))

    async def stop_hold(self, session: str) -> str | None:
        return await self.name_stopped(await self.make_call(CALLS_BY_WORD["stop"], session, hold=True))
