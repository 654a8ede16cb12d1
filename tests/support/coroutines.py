"""Tests that are coroutines: each runs in an event loop of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from inspect import iscoroutinefunction
from typing import Any

import pytest

LIMIT = 300.0  # seconds for a test that hangs


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a coroutine function, by `run_test` of its module if there is one.

    A fixture that is an async context manager is entered around the test, which gets what it yields.
    """
    run = getattr(pyfuncitem.module, "run_test", asyncio.run)
    if examples := getattr(pyfuncitem.obj, "hypothesis", None):
        test = examples.inner_test
        if iscoroutinefunction(test):
            examples.inner_test = lambda *given, **named: run(_inside(test, given, named))
    elif iscoroutinefunction(pyfuncitem.obj):
        run(_inside(pyfuncitem.obj, (), {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
        return True
    return None


async def _inside(test: Callable[..., Awaitable[None]], given: tuple[Any, ...], named: dict[str, Any]) -> None:
    async with asyncio.timeout(LIMIT), AsyncExitStack() as stack:
        for name, value in named.items():
            if isinstance(value, AbstractAsyncContextManager):
                named[name] = await stack.enter_async_context(value)
        await test(*given, **named)
