"""Judges what a cluster has left in its database: the journal of steps, replayed through the protocol, against the rows
and the log."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cancelmark.impl.runtime.session import Counter, Refused, Session
from cancelmark.model.effects import End
from cancelmark.model.lifecycle import Feature, IllegalTrigger, Outcome
from cancelmark.model.protocol import FAMILY

AFTER_CANCEL = 40  # messages that a turn may write before its node has looked: more than any look takes

# Messages that are written when their prompt is done, by another transaction than the one that has ended it; and those
# that are written when it is canceled, and still runs.
AUDIT = """
CREATE TABLE cancelmark.late_messages (id text);
CREATE TABLE cancelmark.covered_messages (seq bigint);
CREATE FUNCTION cancelmark.audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM cancelmark.prompts p WHERE p.workspace_id = new.workspace_id AND p.state = 'done'
               AND p.seq = substring(new.id FROM '^p([0-9]+)')::bigint AND p.xmin <> pg_current_xact_id()::xid) THEN
        INSERT INTO cancelmark.late_messages VALUES (new.id);
    END IF;
    INSERT INTO cancelmark.covered_messages
        SELECT p.seq FROM cancelmark.prompts p JOIN cancelmark.sessions s
            ON s.workspace_id = p.workspace_id AND s.id = p.session_id AND s.mark >= p.seq
        WHERE p.workspace_id = new.workspace_id AND p.state = 'active'
            AND p.seq = substring(new.id FROM '^p([0-9]+)')::bigint;
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE ON cancelmark.messages FOR EACH ROW EXECUTE FUNCTION cancelmark.audit();
"""


@dataclass(frozen=True)
class Step:
    """One row of the journal."""

    version: int
    claim: str
    actions: Sequence[Sequence[Any]]
    seqs: Sequence[int]


@dataclass
class Replayed:
    """What the journal of one session says."""

    moves: dict[int, list[tuple[str, str | None]]]  # of each prompt: states and outcomes
    ends: list[tuple[int, str]]  # in order
    marks: list[int]
    left: dict[int, str]  # prompts that are not done, with their states
    problems: list[str]


def replay(session_id: str, steps: Iterable[Step]) -> Replayed:
    """Takes every action of the journal, in order, on a session of the protocol."""
    session = Session(session_id, Counter(), protocol=FAMILY)
    told = Replayed({}, [], [], {}, [])
    before = 0
    for step in steps:
        if step.version != before + 1:
            told.problems.append(f"{session_id}: version {step.version} follows {before}")
        before = step.version
        if step.claim == "recover" and [name for name, *_ in step.actions] != ["recover"]:
            told.problems.append(f"{session_id}: version {step.version} claims a dead node's session by "
                                 f"{step.actions}, and not by recovering it")
        seqs = iter(step.seqs)
        for name, seq, variant, mark, held in step.actions:
            where = f"{session_id}: version {step.version}: {name} {seq or ''} {variant or ''}"
            try:
                effects = _take(session, name, seq, variant, mark, seqs)
            except (IllegalTrigger, Refused, KeyError, AssertionError, RuntimeError) as error:
                told.problems.append(f"{where}: the protocol does not allow it: {error!r}")
                continue
            for prompt, row in effects.moved:
                told.moves.setdefault(prompt.seq, []).append((row.dest.value, row.outcome and row.outcome.value))
            told.ends += [(e.seq, e.outcome.value) for e in effects
                          if isinstance(e, End) and e.outcome is not Outcome.FOLDED]
            if (session.mark, session.held) != (mark, held):
                told.problems.append(f"{where}: the journal says mark {mark}, held {held}; it is {session.mark}, "
                                     f"{session.held}")
            told.marks.append(session.mark)
    told.left = {seq: prompt.state.value for seq, prompt in session.prompts.items()}
    return told


def _take(session: Session, name: str, seq: int | None, variant: Any, mark: int, seqs: Any) -> Any:
    if name == "accept":
        mode, has_run_id = variant
        number = next(seqs)
        session.counter.latest = max(session.counter.latest, number)
        return session.accept("", "r" if has_run_id else None, number, Feature(mode) if mode else None)[1]
    session.down = name == "recover"
    prompt = session.prompts[seq] if seq is not None else None
    return session.take(name, prompt, Outcome(variant) if name == "finish" else variant, mark)


def judge(connection: Any) -> list[str]:
    """What is wrong with the database that the cluster has left."""
    def rows(query: str, *values: Any) -> list[tuple[Any, ...]]:
        return list(connection.execute(query, values).fetchall())

    problems = [f"message {id} was written after the end of its prompt" for (id,) in rows(
        "SELECT id FROM cancelmark.late_messages")]
    problems += [f"prompt {seq} has written {number} messages after it was canceled" for seq, number in rows(
        f"SELECT seq, count(*) FROM cancelmark.covered_messages GROUP BY 1 HAVING count(*) > {AFTER_CANCEL}")]
    problems += [f"prompt {seq} is {state}" for seq, state in rows(
        "SELECT seq, state FROM cancelmark.prompts WHERE state <> 'done'")]
    problems += [f"the text {text!r} was accepted {number} times" for text, number in rows(
        "SELECT text, count(*) FROM cancelmark.prompts GROUP BY text HAVING count(*) > 1")]
    for workspace, latest, number, first, last in rows(
            "SELECT l.workspace_id, l.latest, count(e.place), coalesce(min(e.place), 1), coalesce(max(e.place), 0)"
            " FROM cancelmark.logs l LEFT JOIN cancelmark.events e USING (workspace_id) GROUP BY 1, 2"):
        if first != 1 or not latest == number == last:
            problems.append(f"the log of {workspace} has {number} events from {first} to {last}, and says {latest}")
    problems += [f"prompt {seq} has {number} ends" for seq, number in rows(
        "SELECT (payload->>'seq')::bigint, count(*) FROM cancelmark.events GROUP BY 1 HAVING count(*) > 1")]
    for workspace, id, mark, live in rows("SELECT workspace_id, id, mark, live FROM cancelmark.sessions"):
        told = replay(id, [Step(*row) for row in rows(
            "SELECT version, claim, actions, seqs FROM cancelmark.steps WHERE workspace_id = %s AND session_id = %s"
            " AND computed ORDER BY version", workspace, id)])
        problems += told.problems
        moves: dict[int, list[tuple[str, str | None]]] = {}
        for seq, state, outcome in rows(
                "SELECT t.seq, t.state, t.outcome FROM cancelmark.transitions t JOIN cancelmark.prompts p"
                " USING (workspace_id, seq) WHERE workspace_id = %s AND p.session_id = %s ORDER BY t.position",
                workspace, id):
            moves.setdefault(seq, []).append((state, outcome))
        if moves != told.moves:
            wrong = {seq for seq in {*moves, *told.moves} if moves.get(seq) != told.moves.get(seq)}
            problems.append(f"{id}: the rows of prompts {sorted(wrong)} are not what the journal says")
        ends = rows("SELECT (payload->>'seq')::bigint, payload->>'outcome' FROM cancelmark.events"
                    " WHERE workspace_id = %s AND session_id = %s ORDER BY place", workspace, id)
        if ends != told.ends:
            problems.append(f"{id}: the log has {len(ends)} ends, and they are not the journal's {len(told.ends)}")
        if mark != max([0, *told.marks]) or live != len(told.left):
            problems.append(f"{id}: mark {mark} and {live} live prompts are not what the journal says")
    return problems
