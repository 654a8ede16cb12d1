"""Tests that are coroutines run."""

from support.coroutines import pytest_pyfunc_call as pytest_pyfunc_call
