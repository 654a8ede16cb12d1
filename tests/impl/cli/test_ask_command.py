"""The feature `ask` on the command line: checked and drawn, and the questions of a server listed and answered."""

import json
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest
from support.commands import LAST_LINE, read_refusal, run_command
from support.servers import PATIENCE, Process


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


@pytest.mark.long
@pytest.mark.parametrize("feature", ["ask", "replace", "next"])
def test_a_session_with_calls_without_end_is_drawn(feature: str) -> None:
    said = run_command("diagram", "session", "--protocol", f"family:{feature}", "--format", "mermaid")
    assert feature in said.stdout


def test_a_session_with_too_many_features_is_not_drawn() -> None:
    assert "its 8 features have too many states; choose up to 4, such as family:ask,hold" in read_refusal(
        "diagram", "session", "--protocol", "family")


# --- the questions of a running server

class User:
    """A user at a terminal, in a workspace of a server."""

    def __init__(self, server: Process, directory: Path) -> None:
        self.where = ("--server", server.url, "--workspace", str(directory))

    def does(self, *words: str, code: int = 0) -> str:
        return run_command(*words, *self.where, code=code).stdout

    def asks(self) -> list[str]:
        """The open questions."""
        return [ask["ask"] for ask in json.loads(self.does("ask", "--json"))]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with Process(tmp_path_factory.mktemp("server") / "data", "--pace", "0") as server:
        yield server


@pytest.fixture
def user(server: Process, tmp_path: Path) -> User:
    user = User(server, tmp_path)
    user.does("send", "ask: hello")
    end = monotonic() + PATIENCE
    while not user.asks():
        assert monotonic() < end
        sleep(0.02)
    return user


def test_a_user_lists_a_question_and_allows_it(user: User) -> None:
    (ask,) = user.asks()
    listed = user.does("ask").splitlines()
    assert listed[0].split() == ["ask", "tool", "question", "status"]
    assert listed[1].split() == [ask, "repeat", "Repeat", "'hello'?", "open"]
    assert user.does("answer", "allow") == f"question {ask}: allowed\n"
    assert "it had this answer already" in user.does("answer", ask, "allow")
    assert user.does("answer", ask, "deny", code=1) == f"question {ask} is closed: allowed, started\n"
    assert json.loads(user.does("answer", ask, "deny", "--json", code=1))["effect"] == "none"
    assert "allowed, started" in user.does("ask", ask)
    assert user.does("ask") == "session default has no open questions\n"


def test_a_cancel_withdraws_the_question_of_a_user(user: User) -> None:
    (ask,) = user.asks()
    user.does("cancel")
    assert user.does("answer", ask, "allow", code=1) == f"question {ask} is closed: withdrawn (canceled)\n"


@pytest.mark.parametrize(("words", "says"), [
    (("answer", "maybe"), "expected [SEQ.N] allow, or [SEQ.N] deny"),
    (("answer", "999.1", "allow"), "has no prompt 999"),
    (("answer", "allow", "--value", "{"), "--value {: not JSON"),
    (("answer", "allow", "--option", "always"), "is not an option of this question; leave it out"),
    (("ask", "999.1"), "has no question 999.1; cancelmark ask --all lists them"),
])
def test_a_wrong_answer_is_refused_and_the_question_stays_open(user: User, words: tuple[str, ...], says: str) -> None:
    assert says in read_refusal(*words, *user.where)
    assert len(user.asks()) == 1
