"""The operations that journal a step, to be committed together."""

from collections.abc import Callable, Container, Iterator

from cancelmark.model.effects import Answered, Ask, End, Fold, Record, Unsure, Withdraw
from cancelmark.model.family import RUN_ID
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.session import DEFAULT_TRAITS

from ..store import (
    ASK,
    TERMINAL,
    AcceptPrompt,
    AppendEvent,
    ChangePrompt,
    HoldSession,
    Json,
    MessageRecord,
    MovePrompt,
    Operation,
    PutMessage,
    RaiseMark,
    ReplaceText,
    SetQuestions,
)
from ..wire import to_json
from .messages import canceled_messages
from .questions import show_question
from .run import Run
from .session import LivePrompt, Session, TakenStep


class Journal:
    """Collects the operations of a session's steps. `mark` and `held` are the stored values. With a shared store
    (`unnumbered` is given) it also names the steps, and the store assigns seqs to the `unnumbered` prompts: these have
    seq 0 here, and their messages the id p0."""

    def __init__(self, session: Session, mark: int, held: bool, run_of: Callable[[LivePrompt], Run],
                 unnumbered: Container[int] | None) -> None:
        self.operations: list[Operation] = []
        self.actions: list[list[object]] = []
        self.records: list[tuple[Run, MessageRecord]] = []  # of prompts that were canceled before they ran
        self._session, self._mark, self._held, self._run_of = session, mark, held, run_of
        self._shared, self._unnumbered = unnumbered is not None, unnumbered or ()
        self._runs: dict[int, Run] = {}

    def add(self, step: TakenStep) -> None:
        """Add everything of the step that must survive a crash."""
        if self._shared:
            self.actions.append(self._name(step))
        add = self.operations.append
        if step.mark > self._mark:
            self._mark = step.mark
            add(RaiseMark(self._session.id, step.mark))
        if step.held is not self._held:
            self._held = step.held
            add(HoldSession(self._session.id, step.held))
        accepted = step.prompt if step.action == "accept" else None
        if accepted:
            traits = step.changed[-1].traits if step.changed else DEFAULT_TRAITS
            seq = 0 if accepted.seq in self._unnumbered else accepted.seq
            add(AcceptPrompt(seq, self._session.id, step.text, accepted.run_id,
                             tuple(accepted.attachments), traits))
        for prompt, traits, _ in step.changed:
            if prompt is not accepted:
                add(ChangePrompt(prompt.seq, traits))
        if step.was is not None and step.prompt:
            add(ReplaceText(step.prompt.seq, step.text, step.was))
        for prompt, questions in step.asked:
            add(SetQuestions(prompt.seq, tuple(questions)))
        hosts = {e.seq: e.into for e in step if isinstance(e, Fold)} if step.action == "step" else {}
        for prompt, row in step.moved:
            run = self._runs.get(prompt.seq) or self._runs.setdefault(prompt.seq, self._run_of(prompt))
            if row.source is State.ACTIVE:
                self.operations += map(PutMessage, run.messages)
            if row.outcome is Outcome.FOLDED or (row.dest is State.ACTIVE and not run.is_resumed):
                add(PutMessage(run.message._replace(id="p0") if prompt.seq in self._unnumbered else run.message))
            seq = 0 if prompt.seq in self._unnumbered else prompt.seq
            add(MovePrompt(seq, row.dest, row.outcome, hosts.get(prompt.seq)))
        for effect in step:
            match effect:
                case Ask(seq, n) | Answered(seq, n) | Withdraw(seq, n) | Unsure(seq, n):
                    prompt, question = self._find_question(step, seq, n)
                    shown = show_question(self._session.id, seq, prompt.run_id, n, question)
                    add(AppendEvent(self._session.id, ASK, to_json(shown), prompt.run_id))
                case Record(seq):
                    self.operations += map(PutMessage, self._hand_over())  # the messages of the running turn come first
                    run = self._runs[seq]
                    for message in canceled_messages(run.message, seq):
                        self.records.append((run, message))
                        add(PutMessage(message))
                case End(seq, outcome) if outcome is not Outcome.FOLDED:
                    run = self._runs[seq]
                    payload = run.result(outcome).to_json(seq)
                    add(AppendEvent(self._session.id, TERMINAL, payload, run.prompt.run_id))

    def _find_question(self, step: TakenStep, seq: int, n: int) -> tuple[LivePrompt, Json]:
        """A question as the step has left it, with its prompt. Later steps may have changed it."""
        for prompt, questions in step.asked:
            if prompt.seq == seq:
                return prompt, questions[n - 1]
        prompt = self._runs[seq].prompt  # the step has reported it, and ended the prompt
        return prompt, prompt.questions[n - 1]

    def _hand_over(self) -> Iterator[MessageRecord]:
        """The messages that the running turn has not written yet."""
        for prompt in self._session.active:
            if (turn := self._run_of(prompt).turn):
                yield from turn.hand_over()

    def _name(self, step: TakenStep) -> list[object]:
        """The step as data: action, seq, variant, and the mark and hold after it."""
        variant, prompt = getattr(step.variant, "value", step.variant), step.prompt
        seq = None if prompt is None else 0 if prompt.seq in self._unnumbered else prompt.seq
        if step.action == "accept":
            mode = step.variant.removesuffix(RUN_ID) if isinstance(step.variant, str) else ""
            variant, seq = [mode, bool(prompt and prompt.run_id is not None)], None
        return [step.action, seq, variant, step.mark, step.held]
