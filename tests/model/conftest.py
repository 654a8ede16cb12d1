"""Tests that are coroutines run, and have a runtime to play with."""

from contextlib import AbstractAsyncContextManager

import pytest
from support.coroutines import pytest_pyfunc_call as pytest_pyfunc_call
from support.runtimes import OpenStore, World, world


@pytest.fixture
def w(open_store: OpenStore) -> AbstractAsyncContextManager[World]:
    return world(open_store())
