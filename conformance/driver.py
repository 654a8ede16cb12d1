"""Plays a script on a server: calls the adapter, and steers the turns. The observer writes down what is seen."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from cancelmark.model.session import label

from .adapter import Adapter, Refused, Sent, Steering, Turns
from .history import CLIENTS, MODEL, SERVER, ClientCall, History, Track
from .judgement import judge_history
from .observer import PAUSE, Hangs, Observer, call_adapter
from .script import Batch, Do, Script

LIMIT = 26  # prompts in a history: there are no more letters


class Driver:
    """One history."""

    def __init__(self, adapter: Adapter, steering: Steering | None, name: str) -> None:
        self.adapter, self.steering, self.name = adapter, steering, name
        self.observer = Observer(adapter, steering)
        self.history = self.observer.history

    async def play(self, script: Script) -> History:
        """Plays it to its end: when the script is over, all turns are released, and every prompt has to end."""
        history, adapter = self.history, self.adapter
        try:
            await call_adapter(adapter, "open", adapter.open())
            self.observer.start_reading()
            sessions = 1 + max((do.session for do in script.everything), default=0)
            self.observer.sessions = [
                await call_adapter(adapter, "session", adapter.session()) for _ in range(sessions)]
            for batch in script.batches:
                await self._play_batch(batch)
            await self._end_all_turns()
            await self.observer.ask_messages()
        except Hangs as hangs:
            history.complain("progress", str(hangs))
            history.silences.add("progress")
        finally:
            try:
                await self.observer.stop_reading()
            finally:
                with suppress(Hangs):
                    await call_adapter(adapter, "close", adapter.close())
        judge_history(history)
        return history

    async def _play_batch(self, batch: Batch) -> None:
        doing = [self._do(do) for do in batch.together]
        results = await asyncio.gather(*doing, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        if batch.rest and self.steering:
            await self.observer.rest()
        elif batch.rest:
            await asyncio.sleep(PAUSE)  # to wait for the end of every turn would leave nothing to cancel
        else:
            self.observer.look_at_turns()

    async def _do(self, do: Do) -> None:
        match do.what:
            case "accept":
                await self._accept(do)
            case "release" | "fail" | "again":
                self._steer_turn(do)
            case "cancel" | "clear" if not self.observer.shut:
                call = self.adapter.cancel if do.what == "cancel" else self.adapter.clear
                await self._make_call(ClientCall(do.what, do.session, 0), call, self.observer.sessions[do.session])
            case "shut" if not self.observer.shut:
                await self.observer.watch_again()
                self.observer.shut = True
                await self._make_call(ClientCall("shut", None, 0), self.adapter.shut)
            case "restart" if not self.observer.shut:
                await self._restart()
            case "leave":
                await self.observer.leave_events()
            case "return":
                await self.observer.watch_again()

    async def _accept(self, do: Do) -> None:
        history, n = self.history, len(self.history.prompts)
        if n == LIMIT:
            return
        name = f"cm-{self.name}-{n:03}"
        p = Track(label(n + 1), name, do.session, do.run_id, 0)
        history.prompts.append(p)
        if self.steering:
            self.steering.hold(name)
        p.begin = history.note(CLIENTS, SERVER, str(do).replace("accept", f"accept {p.label}"))
        sent = Sent(name, f"Say something about {name}", name if do.run_id else None)
        try:
            await call_adapter(self.adapter, "accept", self.adapter.accept(self.observer.sessions[do.session], sent))
        except Refused:
            p.refused = True
            history.note(SERVER, CLIENTS, f"{p.label} is refused")
        else:
            p.accepted = history.note(SERVER, CLIENTS, f"{p.label} is accepted")
        self.observer.news += 1

    async def _make_call(self, client_call: ClientCall, call: Callable[..., Awaitable[None]], *arguments: str) -> None:
        history = self.history
        where = "" if not client_call.session else " @2"
        known = history.prompts_of(client_call.session or 0)
        client_call.idle = client_call.what == "cancel" and all(p.ended or p.refused for p in known)
        client_call.begin = history.note(CLIENTS, SERVER, f"{client_call.what}{where}")
        history.calls.append(client_call)
        try:
            await call_adapter(self.adapter, client_call.what, call(*arguments))
        except Refused:
            history.note(SERVER, CLIENTS, f"{client_call.what}{where} is refused")
            return  # nobody knows whether it took effect
        client_call.end = history.note(SERVER, CLIENTS, f"{client_call.what}{where} is answered")
        client_call.idle = client_call.idle and len(history.prompts_of(client_call.session or 0)) == len(known)
        self.observer.news += 1

    def _steer_turn(self, do: Do) -> None:
        """Of the turns that run in the session: the one that started first."""
        self.observer.look_at_turns()
        running = [p for p in self.history.prompts_of(do.session) if p.running and not p.let_go]
        if self.steering and running:
            p = min(running, key=lambda p: p.starts[-1])
            self._end_turn(p, do.what)

    def _end_turn(self, p: Track, how: str) -> None:
        assert self.steering
        words = {"release": "answers", "fail": "fails", "again": "wants a tool"}[how]
        at = self.history.note(MODEL, SERVER, f"turn of {p.label}: {words}")
        if how == "again":
            if isinstance(self.steering, Turns):
                self.steering.again(p.name)
            return
        p.let_go, p.over = (how, at), at
        (self.steering.release if how == "release" else self.steering.fail)(p.name)

    async def _restart(self) -> None:
        await self.observer.watch_again()
        await self.observer.stop_reading()
        for p in self.history.prompts:
            if p.running:
                p.over = self.history.now
        await self._make_call(ClientCall("restart", None, 0), self.adapter.restart)
        self.observer.start_reading()

    async def _end_all_turns(self) -> None:
        """Turns are let go, one after the other, until nothing runs: then everything has to be over."""
        await self.observer.watch_again()
        for _ in range(3 * len(self.history.prompts) + 1):
            await self.observer.rest()
            running = [p for p in self.history.prompts if p.running and p.live and not p.let_go]
            if not running:
                break
            self._end_turn(min(running, key=lambda p: p.starts[-1]), "release")
        await self.observer.rest()
