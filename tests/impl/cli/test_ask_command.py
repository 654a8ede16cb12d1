"""The feature `ask` on the command line: checked and drawn; refused by name where it is not supported."""

import pytest
from support.commands import LAST_LINE, read_refusal, run_command

from cancelmark import Runtime, ScriptedModel
from cancelmark.impl.runtime.session import Counter, Session
from cancelmark.model.family import Feature
from cancelmark.model.protocol import Protocol

ASK = Protocol("family:ask", features=frozenset({Feature.ASK}))


def test_check_counts_a_protocol_with_questions() -> None:
    said = run_command("check", "--protocol", "family:ask", "--prompts", "1", "--cancels", "1", "--asks", "1")
    [figures] = LAST_LINE.findall(said.stdout)
    assert figures == ("80", "139", "6", "holds")
    assert "no-late-approval" in said.stdout


def test_check_explores_questions_by_default() -> None:
    said = run_command("check", "--protocol", "family:ask")
    assert "asks=1" in said.stdout
    assert "ask (--asks)" not in said.stdout


def test_check_prints_the_trace_of_a_mistake() -> None:
    said = run_command("check", "--protocol", "seeded:a-permission-outlives-the-cancel", "--prompts", "1", "--cancels",
                       "1", "--asks", "1", code=1)
    assert "no-late-approval is violated; a shortest trace, 6 steps:" in said.stdout
    assert "A has question 1 answered: allow" in said.stdout
    assert "A runs the tool of question 1" in said.stdout


@pytest.mark.parametrize(("form", "text"), [
    ("text", "A asks question 1"), ("mermaid", "Note over P1: has question 1 withdrawn"), ("itf", '"withdraw'),
    ("svg", "<svg")])
def test_a_trace_with_a_question_is_drawn(form: str, text: str) -> None:
    said = run_command("diagram", "--protocol", "family:ask", "--format", form, "trace", "accept A", "enter A", "ask A",
                       "withdraw A 1")
    assert text in said.stdout


@pytest.mark.parametrize("command", [
    ("check", "--cluster"), ("diagram", "session"), ("review",)], ids=" ".join)
def test_a_command_that_does_not_support_questions_says_so(command: tuple[str, ...]) -> None:
    line = read_refusal(*command, "--protocol", "family:ask")
    assert line == (f"cancelmark: --protocol family:ask: `cancelmark {' '.join(command)}` does not support the feature "
                    "ask yet; use `cancelmark check`")


def test_the_runtime_refuses_a_protocol_with_questions() -> None:
    for make in (lambda: Runtime(ScriptedModel(), protocol=ASK), lambda: Session("s", Counter(), protocol=ASK)):
        with pytest.raises(ValueError, match="the runtime does not support the feature ask yet"):
            make()
