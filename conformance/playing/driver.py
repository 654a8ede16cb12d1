"""Runs a script on a server: calls the adapter and controls the turns. The observer records what is observed."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from time import perf_counter

from cancelmark.model.calls import CALLS_BY_WORD, NAMED
from cancelmark.model.session import label

from ..adapter import Adapter, Refused, Sent, ServerGone, is_gone
from ..adapter.process import DYING, ServerProcess, find_exited
from ..judging.family import replaces_of
from ..judging.guarantees import judge_history
from ..judging.history import CLIENTS, ENDING, MODEL, SERVER, STOP, ClientCall, History, Track, at_session
from .observer import PAUSE, Hangs, Observer, Steering, call_adapter
from .script import TURNS, Batch, Do, Script

LIMIT = 26  # prompts in a history: there are no more letters
COARSE = 0.002  # seconds: the event loop's timers are at least this accurate
SESSION_CALLS = {*CALLS_BY_WORD, "delete"} - {*NAMED}
WORDS = {"release": "answer", "fail": "failure", "again": "tool call", "outgrow": "context overflow",
         "flood": "long answer", "summarize": "summary"}


class Driver:
    """Runs one script on one adapter."""

    def __init__(self, adapter: Adapter, steering: Steering | None, name: str) -> None:
        self.adapter, self.steering, self.name = adapter, steering, name
        self.observer = Observer(adapter, steering)
        self.history = self.observer.history
        self.sent: dict[str, Sent] = {}  # by name

    async def play(self, script: Script) -> History:
        """Run the script and check the history. After its last step all turns are released, and every prompt must end.
        """
        history, adapter = self.history, self.adapter
        try:
            await call_adapter(adapter, "open", adapter.open())
            self.observer.start_reading()
            sessions = 1 + max((do.session for do in script.everything), default=0)
            self.observer.sessions = [
                await call_adapter(adapter, "session", adapter.session()) for _ in range(sessions)]
            await call_adapter(adapter, "warm", adapter.warm(script.at_once))
            for batch in script.batches:
                await self._play_batch(batch)
            await self._end_all_turns()
            await self.observer.ask_messages()
            if not self.observer.shut and (dead := await self._find_dead(0)):
                raise ServerGone(dead[0].exited)
        except Hangs as hangs:
            history.complain("progress", str(hangs))
            history.silences.add("progress")
        except Exception as error:
            await self._note_gone(error)
        finally:
            await self._leave()
        judge_history(history)
        return history

    async def _note_gone(self, error: Exception) -> None:
        """Report that the server is gone. Re-raise any other error: it is the adapter's."""
        dead = [] if self.history.gone else await self._find_dead(DYING)
        if not (dead or is_gone(error)):
            raise error
        if not self.history.gone:
            self.history.gone = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            self.history.note(SERVER, "", "is gone")
            how = "".join(f"; {server.exited}" for server in dead if server.exited not in self.history.gone)
            self.history.complain("progress", f"the server is gone ({self.history.gone:.400}{how}).")

    async def _leave(self) -> None:
        """Close the adapter, and restart a server that is gone if the adapter can."""
        adapter, history = self.adapter, self.history
        try:
            await self.observer.stop_reading()
        except Exception as error:
            await self._note_gone(error)
        finally:
            if self.steering and adapter.outside:
                for p in history.prompts:
                    self.steering.release(p.name)  # a turn that never ends could block the next histories
            if history.gone:
                with suppress(Exception):  # the next history shows whether it succeeded
                    await call_adapter(adapter, "revive", self._revive())
            with suppress(*([Exception] if history.gone else [Hangs])):
                await call_adapter(adapter, "close", adapter.close())

    async def _find_dead(self, seconds: float) -> list[ServerProcess]:
        return await find_exited(seconds) if self.adapter.outside else []

    async def _revive(self) -> None:
        if self.adapter.offers("revive"):
            await self.adapter.revive()
        elif dead := await self._find_dead(0):
            for server in dead:
                await server.start()
        else:
            await self.adapter.restart()

    async def _play_batch(self, batch: Batch) -> None:
        doing = []
        for n, do in enumerate(batch.together):
            await self._wait(batch.gap(n))
            doing.append(asyncio.ensure_future(self._do(do)))
        results = await asyncio.gather(*doing, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        await self._wait(batch.pause)
        if batch.rest and self.steering:
            await self.observer.rest()
        elif batch.rest:
            await asyncio.sleep(PAUSE)  # waiting for every turn to end would leave nothing to cancel
        else:
            self.observer.look_at_turns()

    async def _wait(self, microseconds: int) -> None:
        """Sleep with microsecond accuracy. The event loop would round up to milliseconds."""
        if not microseconds:
            return
        until = perf_counter() + microseconds / 1e6
        if not self.adapter.outside or microseconds / 1e6 > COARSE:
            await asyncio.sleep(microseconds / 1e6)
        while self.adapter.outside and perf_counter() < until:
            await asyncio.sleep(0)

    async def _do(self, do: Do) -> None:
        adapter, observer = self.adapter, self.observer
        match do.what:
            case "accept" | "lose":
                await self._send(do)
            case "resend" | "reuse" if do.back <= len(self.history.prompts) and not observer.shut:
                await (self._resend if do.what == "resend" else self._reuse)(self.history.prompts[-do.back], do)
            case what if what in TURNS:
                self._steer_turn(do)
            case what if what in SESSION_CALLS and not observer.shut and do.session not in observer.deleted:
                if do.what == "delete":
                    observer.deleted.add(do.session)
                what = f"{do.what}_{do.how}" if do.how else do.what
                call = getattr(adapter, what)
                await self._make_call(ClientCall(what, do.session, 0), call, observer.sessions[do.session])
            case what if what in NAMED and do.back <= len(self.history.prompts) and not observer.shut:
                await self._name(self.history.prompts[-do.back], do.what)
            case "shut" if not self.observer.shut:
                await self.observer.watch_again()
                self.observer.shut = True
                await self._make_call(ClientCall("shut", None, 0), self.adapter.shut)
            case "restart" if not self.observer.shut:
                await self._restart()
            case "leave":
                await observer.leave_events(long=do.how == "long")
            case "slow":
                await observer.read_slowly()
            case "return":
                await observer.watch_again()
            case "attach" if not observer.shut:
                self.history.note(CLIENTS, "", "another client attaches")
                await call_adapter(adapter, "attach", adapter.attach())

    async def _send(self, do: Do) -> None:
        history, n = self.history, len(self.history.prompts)
        if n == LIMIT or do.session in self.observer.deleted or not await self._is_free(do.session):
            return
        n = len(self.history.prompts)
        name = f"cm-{self.name}-{n:03}"
        wants = self.adapter.always or do.if_busy
        sent = Sent(name, f"Say something about {name}", name if do.run_id else None, do.how == "failing", wants)
        p = Track(label(n + 1), name, do.session, do.run_id, 0, fails=sent.fails, if_busy=wants)
        history.prompts.append(p)
        self.sent[name] = sent
        if self.steering:
            self.steering.hold(name)
        p.begin = history.note(CLIENTS, SERVER, do.write(n))
        interrupt = ClientCall("interrupt", do.session, p.begin, by=p)
        if wants == interrupt.what:
            history.calls.append(interrupt)
            self._settle_turns(do.session)
        if do.what == "lose":
            await call_adapter(self.adapter, "lose", self.adapter.lose(self.observer.sessions[do.session], sent))
            history.note(CLIENTS, "", f"the response to {p.label} is lost")
        elif await self._accept(p.label, do.session, sent):
            p.accepted = inf if p.refused else min(p.accepted, history.now)
            interrupt.end = p.accepted
        else:
            p.refused, p.answered = True, history.now

    async def _is_free(self, session: int) -> bool:
        """Whether a prompt may be sent to this session. Clients that send one at a time first wait for prompts that are
        about to end."""
        def busy() -> bool:
            return any(not p.ended and not p.refused for p in self.history.prompts_of(session))

        if self.adapter.one_at_a_time and busy():
            await self.observer.rest()
        return not (self.adapter.one_at_a_time and busy())

    async def _accept(self, name: str, session: int, sent: Sent) -> bool:
        """Send the prompt, and return whether the server accepted it."""
        call = self.adapter.accept(self.observer.sessions[session], sent)
        try:
            await call_adapter(self.adapter, "accept", call)
            accepted = True
        except Refused:
            accepted = False
        except Exception as error:
            if not (self.observer.shut and is_gone(error)):
                raise
            accepted = False
        self.history.note(SERVER, CLIENTS, f"{name} {'accepted' if accepted else 'refused'}")
        self.observer.news += 1
        return accepted

    async def _resend(self, p: Track, do: Do) -> None:
        """Send the same prompt again, like a client that got no response and retries."""
        if p.refused or not p.run_id:
            return
        known = p.accepted < inf
        self.history.note(CLIENTS, SERVER, f"accept {p.label} again")
        if await self._accept(p.label, p.session, self.sent[p.name]):
            p.accepted = min(p.accepted, self.history.now)
            p.resent += 1
        elif known:
            p.resent += 1
            self.history.complain("run-ids", f"{p.label} was accepted, but refused when resent under its run id.")

    async def _reuse(self, p: Track, do: Do) -> None:
        """Send another prompt under the same run id. The server must refuse it."""
        if p.accepted == inf or not p.run_id:
            return
        name = f"{p.name}-{self.history.now}"
        self.history.others.add(name)
        if self.steering:
            self.steering.hold(name)
            self.steering.release(name)
        other = f"another prompt under the run id of {p.label}"
        self.history.note(CLIENTS, SERVER, f"accept {other}{at_session(do.session)}")
        p.reused += 1
        if await self._accept(other, do.session, Sent(p.name, f"Say something about {name}", p.name)):
            self.history.complain("run-ids", f"the server accepted {other}.")

    async def _name(self, p: Track, what: str) -> None:
        """Make a call that names one prompt. A prompt without a run id can be named once it is accepted."""
        if p.refused or p.session in self.observer.deleted or (p.accepted == inf and not p.run_id):
            return
        sent, session = self.sent[p.name], self.observer.sessions[p.session]
        version = 1 + len(replaces_of(self.history, p)) if what == "replace" else 0
        words = [f"Say something else (text {version + 1}) about {p.name}"] if version else []
        made = ClientCall(what, p.session, 0, of=p.label, version=version)
        await self._make_call(made, getattr(self.adapter, what), session, sent, *words)

    async def _make_call(self, made: ClientCall, call: Callable[..., Awaitable[str | None]], *arguments: object,
                         ) -> None:
        history = self.history
        if made.what in ENDING:
            self._settle_turns(made.session)
        known = history.prompts_of(made.session or 0)
        made.idle = made.what in ("cancel", "stop") and all(p.ended or p.refused for p in known)
        made.begin = history.note(CLIENTS, SERVER, made.text)
        history.calls.append(made)
        try:
            answer = await call_adapter(self.adapter, made.what, call(*arguments))
        except Refused:
            history.note(SERVER, CLIENTS, f"{made.text} refused")
            made.refused = True
            return  # whether it took effect is unknown
        told = ""
        if made.what in STOP and answer is not None:
            stopped = history.find_prompt(answer)
            made.of = stopped.label if stopped else ""
            told = f": {made.of or 'no prompt'}"
        made.end = history.note(SERVER, CLIENTS, f"{made.text} acknowledged{told}")
        made.idle = made.idle and len(history.prompts_of(made.session or 0)) == len(known)
        self.observer.news += 1

    def _settle_turns(self, session: int | None) -> None:
        """Tell the language model that turns of the session, or of all sessions, may be over from now on."""
        for p in self.history.prompts if session is None else self.history.prompts_of(session):
            if self.steering:
                self.steering.settle(p.name)

    def _steer_turn(self, do: Do) -> None:
        """Steer the turn of the named prompt; without a name, the first one started of those running in the session."""
        self.observer.look_at_turns()
        if do.back:
            found = self.history.prompts[-do.back:][:1] if do.back <= len(self.history.prompts) else []
        elif do.what == "summarize":
            found = [p for p in self.history.prompts_of(do.session) if p.summarizing]
        else:
            found = [p for p in self.history.prompts_of(do.session) if p.running]
        found = [p for p in found if not p.let_go]
        if self.steering and found:
            self._steer(min(found, key=lambda p: p.starts[-1:]), do.what)

    def _steer(self, p: Track, how: str) -> None:
        assert self.steering
        at = self.history.note(MODEL, SERVER, f"turn of {p.label}: {WORDS[how]}")
        if how == "summarize":
            p.summarizing, p.will_summarize = False, not p.summarizing
        elif how == "outgrow":
            p.outgrow(at)
        elif how == "again":
            p.calling = p.running
        else:
            p.let_go = ("fail" if how == "fail" else "release", at)
            p.over = at if p.starts else None
        getattr(self.steering, how)(p.name)

    async def _restart(self) -> None:
        await self.observer.watch_again()
        await self.observer.stop_reading()
        for p in self.history.prompts:
            if p.running:
                p.over = self.history.now
        await self._make_call(ClientCall("restart", None, 0), self.adapter.restart)
        self.observer.start_reading()

    async def _end_all_turns(self) -> None:
        """Resume held sessions and release one turn after the other until none is running. Then every prompt must have
        ended."""
        await self.observer.watch_again()
        held = [n for n in range(len(self.observer.sessions)) if self.history.maybe_held(n)]
        if held and not self.observer.shut:
            await self.observer.rest()
            for n in held:
                await self._do(Do("resume", n))
        for _ in range(4 * len(self.history.prompts) + 1):
            await self.observer.rest()
            running = [p for p in self.history.prompts if (p.running or p.summarizing) and p.live and not p.let_go]
            if not running:
                break
            first = min(running, key=lambda p: p.starts[-1])
            self._steer(first, "summarize" if first.summarizing else "release")
        await self.observer.rest()
