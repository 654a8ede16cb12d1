"""Playing in the terminal: by key in a real one, by line without one, and being asked."""

import json
import re
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from support.commands import COMMAND, run_command
from support.terminals import Terminal

from cancelmark.impl.cli.game.quiz import CHOICES, Question, ask, questions
from cancelmark.model.check.walk import Walk
from cancelmark.model.lifecycle import State
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.trace import replay
from cancelmark.views.traces.itf import trace_itf

PLAY = [*COMMAND, "play"]


def play(*lines: str, arguments: tuple[str, ...] = (), code: int = 0) -> str:
    said = run_command("play", *arguments, code=code, given="".join(f"{line}\n" for line in lines).encode())
    assert "\x1b" not in said.stdout
    return said.stderr if code else said.stdout


def last_screen(said: str) -> str:
    """What was shown last."""
    return re.split(r"^(?=\w+  step \d+ of \d+$)", said, flags=re.MULTILINE)[-1]


# --- without a terminal

def test_a_race_by_lines() -> None:
    screen = last_screen(play("accept A", "cancel", "accept B", "enter B", "enter A"))
    assert screen.startswith("ref  step 5 of 5\n")
    assert re.search(r"^A +canceled_on_entry  events 0  reached by cancel", screen, re.MULTILINE)
    assert re.search(r"^B +active", screen, re.MULTILINE)
    assert re.search(r"\d settle\(A\) server", screen)


def test_keys_work_by_line_too_and_undo_and_redo() -> None:
    screen = last_screen(play("1", "undo", "redo", "u"))
    assert screen.startswith("ref  step 0 of 1\nno steps yet")
    assert "1 accept(A) client" in screen


def test_what_cannot_be_done_is_said_and_changes_nothing() -> None:
    screen = last_screen(play("accept A", "finish A error"))
    assert screen.startswith("ref  step 1 of 1")
    assert "step 2, 'finish A error': not enabled here; enabled: " in screen
    assert "no action has the key '~'" in play("~")
    assert "goes back" not in play("help")


def test_a_revision_breaks_what_it_breaks() -> None:
    calls = ("accept A", "cancel", "accept B", "enter B", "enter A")
    screen = last_screen(play(arguments=("--revision", "r1", *calls)))
    assert "✗ step 4 violates no-poisoning" in screen
    assert "✗ step 5 violates no-lost-cancel" in screen
    assert "goroutines" in screen


def test_stranded_prompts_are_broken_only_at_rest() -> None:
    said = play("finish(A, error)", "clean_up A", "return A", "return B", arguments=(
        "--revision", "r4", "accept(A, run id)", "accept(B, run id)", "enter A", "enter B"))
    screens = re.split(r"^(?=r4  step)", said, flags=re.MULTILINE)[1:]
    assert ["all-done" in screen for screen in screens] == [False] * 4 + [True]


def test_traces_are_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "trace.itf.json"
    first = play(f"save {path}", arguments=("--revision", "r4", "accept(A, in process)", "look A", "cancel", "begin A"))
    assert f"saved to {path}" in first
    assert json.loads(path.read_text())["#meta"]["protocol"] == "r4"
    loaded = last_screen(play(arguments=("--load", str(path))))
    assert loaded.startswith("r4  step 4 of 4")
    assert "✗ step 4 violates no-lost-cancel" in loaded
    assert last_screen(play(f"load {path}")) == loaded


@pytest.mark.parametrize(("damage", "problem"), [
    (lambda d: d["states"][2].update(call="enter(B)"), "step 2, 'enter(B)': not enabled here"),
    (lambda d: d["states"][2]["sessions"][0].update(mark={"#bigint": "7"}),
     "step 2, 'cancel': protocol ref does not reach the state that the trace has after this step"),
    (lambda d: d["states"][0].update(closing=True), "state 0 is not the initial state of protocol ref"),
    (lambda d: d["#meta"].update(protocol="r9"), "is a trace of protocol r9, which is not built in (r0, r1"),
    (lambda d: d.pop("vars"), '"vars" must be a list'),
])
def test_what_is_no_trace_is_refused(damage: object, problem: str, tmp_path: Path) -> None:
    document = trace_itf(replay(REFERENCE, ["accept A", "cancel", "enter A"]), "ref")
    assert callable(damage)
    damage(document)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document))
    assert problem in play(arguments=("--load", str(path)), code=2)
    assert problem in play(f"load {path}"), "while playing it is said, and play goes on"


@pytest.mark.parametrize(("arguments", "problem"), [
    (("--protocol", "r9"), "no such protocol"),
    (("--sessions", "9"), "must be from 1 to 4"),
    (("--load", "no-such-file"), "cannot read no-such-file"),
    (("--load", "x", "cancel"), "calls and --load are mutually exclusive"),
    (("jump A",), "no such action"),
    (("--quiz", "--questions", "0"), "must be at least 1"),
])
def test_bad_usage(arguments: tuple[str, ...], problem: str) -> None:
    [line] = play(arguments=arguments, code=2).splitlines()
    assert problem in line


def test_a_file_that_is_not_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("accept A")
    assert "is not JSON" in play(arguments=("--load", str(path)), code=2)


def test_two_sessions() -> None:
    screen = last_screen(play("accept A@1", "accept B@2", "cancel@1", arguments=("--sessions", "2")))
    assert "session 1" in screen
    assert re.search(r"\w enter\(B\)@2 server", screen)


# --- in a terminal

def test_by_key_in_a_terminal(tmp_path: Path) -> None:
    with Terminal(tmp_path, {}, width=110, height=45) as terminal:
        terminal.run(*PLAY)
        terminal.until("1 accept(A) client")
        terminal.type("1")
        shown = terminal.until("step 1 of 1")
        cancel = re.search(r"(\w) cancel client", shown)
        assert cancel
        terminal.type(cancel[1])
        assert "mark   ≤ A" in terminal.until("step 2 of 2")
        terminal.type("u")
        terminal.until("step 1 of 2")
        terminal.type("r")
        terminal.until("step 2 of 2")
        terminal.type("Up")
        terminal.type(":")
        terminal.until("call:")
        terminal.type("-l", "enter A")
        terminal.type("Enter")
        shown = terminal.until("step 3 of 3")
        assert re.search(r"A +canceled_on_entry", shown)
        assert "\x1b[" in terminal.colours
        terminal.type("s")
        terminal.until("save to:")
        terminal.type("-l", "race.json")
        terminal.type("Enter")
        terminal.until("saved to race.json")
        terminal.type("z")
        terminal.until("comes next.")
        terminal.type("1")
        terminal.until(lambda text: "Right. R" in text or "No: " in text)
        terminal.type("q")
        terminal.until(lambda text: text.rstrip().endswith("$"))
        terminal.run("stty", after=" -a | grep -c -- -icanon")
        terminal.until(lambda text: text.splitlines()[-2:] and "\n0\n" in f"\n{text}\n")
    assert (tmp_path / "race.json").exists()


def test_ctrl_c_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    with Terminal(tmp_path, {}, width=110, height=45) as terminal:
        terminal.run(*PLAY)
        terminal.until("1 accept(A) client")
        terminal.type("C-c")
        terminal.until("cancelmark: interrupted")
        terminal.run("stty", after=" -a | grep -c -- -icanon")
        terminal.until(lambda text: "\n0\n" in f"\n{text}\n")


# --- being asked

def test_the_answer_to_will_it_be_canceled_is_the_mark() -> None:
    asked = [q for q in islice(questions(Random(1)), 300) if q.text.endswith("be canceled?")]
    assert {q.answer for q in asked} == {"yes", "no"}
    for question in asked:
        session = question.trace.states[-1].sessions[0]
        label = question.text[len("enter("):][0]
        prompt = next(p for p in session.prompts if p.label == label)
        assert (question.answer == "yes") == (prompt.seq <= session.mark)
        assert ("R4: enter moves" in question.why) == (question.answer == "yes")


def test_every_answer_is_asked_for_and_what_the_model_does() -> None:
    def replayed(question: Question) -> tuple[str, str]:
        """The state of the prompt before and after what comes next."""
        call, _, rest = question.text.partition(" comes next. What happens to ")
        before = question.trace
        after = replay(REFERENCE, [*(str(s.call) for s in before.steps), call])
        seq = ord(rest[0]) - 64
        found = [trace.states[-1].sessions[0].prompt(seq) for trace in (before, after)]
        return tuple(f"it ends: {p.outcome.value}" if p.outcome else p.state.value for p in found)  # type: ignore[return-value]

    asked = [q for q in islice(questions(Random(2)), 600) if "What happens to" in q.text]
    assert {q.answer for q in asked} >= set(CHOICES) - {"it waits: queued"}
    for question in asked:
        before, after = replayed(question)
        words = {State.ACTIVE.value: "it starts: active", State.CANCELED_ON_ENTRY.value: "it is canceled on entry"}
        if before == after:
            assert question.answer in ("nothing: it is unchanged", "it is asked to stop")
        else:
            assert question.answer == words.get(after, after)
        assert re.match(r"R\d+, \w+: ", question.why)


def test_the_quiz_explains_by_rule_and_keeps_the_score() -> None:
    [question] = islice(questions(Random(5)), 1)
    right = question.choices.index(question.answer) + 1
    wrong = right % len(question.choices) + 1
    quiz = ("--quiz", "--questions", "1", "--seed", "5")
    said = play("what?", str(right), arguments=quiz)
    assert question.text in said
    assert "Right. R" in said
    assert said.endswith("1 of 1 right\n")
    assert f"No: {question.answer}. R" in play(str(wrong), arguments=quiz)
    assert play("q", arguments=quiz).endswith("0 of 0 right\n")


def test_a_question_while_playing() -> None:
    said = play("quiz", "accept A", "cancel", "quiz", "yes", "quit", arguments=("--seed", "1"))
    assert "there is nothing to ask about yet" in said
    assert "comes next." in said
    refused = play("quiz", arguments=("--revision", "r1", "accept A"))
    assert "the quiz needs the reference with one session" in refused


def test_there_is_nothing_to_ask_when_all_is_done() -> None:
    assert ask(Walk(REFERENCE), Random(0)) is None
