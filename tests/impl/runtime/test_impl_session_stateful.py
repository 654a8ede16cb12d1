"""Random histories of the runtime's own sessions: neither the oracle nor any property of the model has a complaint."""

from hypothesis import settings
from support.budget import effort
from support.runtime_sessions import HISTORIES, STEP_COUNT, RuntimeSessions

TestRuntimeSessions = RuntimeSessions.TestCase
TestRuntimeSessions.settings = settings(
    max_examples=effort(HISTORIES // 16, HISTORIES), stateful_step_count=STEP_COUNT, deadline=None)
