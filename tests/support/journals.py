"""Judges what a cluster has left in its database: the journal of steps, replayed through the protocol, against the rows
and the log."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cancelmark.impl.runtime.session import Counter, NotAllowed, Session
from cancelmark.model.effects import End
from cancelmark.model.family import Feature
from cancelmark.model.lifecycle import IllegalTrigger, Outcome
from cancelmark.model.protocol import FAMILY

LOOKS = 3  # of its owner since a prompt was canceled: the second of them has certainly seen the cancel

# What is written of a prompt by a transaction that does not end it: when it is done, or when it is canceled and still
# runs; the latter with the number of whole looks that its owner has made since the cancel.
AUDIT = """
CREATE TABLE cancelmark.late_messages (id text);
CREATE TABLE cancelmark.ends (workspace_id uuid, seq bigint, transaction xid8);  -- a step may have a part of one
CREATE INDEX ends_of_prompt ON cancelmark.ends (workspace_id, seq);
CREATE TABLE cancelmark.covered_messages (seq bigint, transaction xid8, looks int);
CREATE TABLE cancelmark.looks (node uuid, began timestamptz);
CREATE INDEX looks_of_node ON cancelmark.looks (node, began);
CREATE TABLE cancelmark.cancels (workspace_id uuid, session_id text, mark bigint, at timestamptz);
CREATE FUNCTION cancelmark.audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM cancelmark.ends e WHERE e.workspace_id = new.workspace_id
               AND e.seq = substring(new.id FROM '^p([0-9]+)')::bigint AND e.transaction <> pg_current_xact_id()) THEN
        INSERT INTO cancelmark.late_messages VALUES (new.id);
    END IF;
    INSERT INTO cancelmark.covered_messages
        SELECT p.seq, pg_current_xact_id(), (SELECT count(*) FROM cancelmark.looks l WHERE l.node = s.owner
            AND l.began > (SELECT min(c.at) FROM cancelmark.cancels c WHERE c.workspace_id = s.workspace_id
                           AND c.session_id = s.id AND c.mark >= p.seq))
        FROM cancelmark.prompts p JOIN cancelmark.sessions s
            ON s.workspace_id = p.workspace_id AND s.id = p.session_id AND s.mark >= p.seq
        WHERE p.workspace_id = new.workspace_id AND p.state = 'active'
            AND p.seq = substring(new.id FROM '^p([0-9]+)')::bigint;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER audit AFTER INSERT OR UPDATE ON cancelmark.messages DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION cancelmark.audit();
CREATE FUNCTION cancelmark.note_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO cancelmark.ends VALUES (new.workspace_id, new.seq, pg_current_xact_id());
    RETURN NULL;
END $$;
CREATE TRIGGER note_end AFTER UPDATE ON cancelmark.prompts FOR EACH ROW
    WHEN (old.state <> 'done' AND new.state = 'done') EXECUTE FUNCTION cancelmark.note_end();
CREATE FUNCTION cancelmark.note_cancel() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO cancelmark.cancels VALUES (new.workspace_id, new.id, new.mark, clock_timestamp());
    RETURN NULL;
END $$;
CREATE TRIGGER note_cancel AFTER UPDATE ON cancelmark.sessions FOR EACH ROW WHEN (old.mark <> new.mark)
    EXECUTE FUNCTION cancelmark.note_cancel();
"""

KINDS = ("lost", "two ends", "message after an end", "poisoned", "cancel lost", "places", "unfinished", "taken twice",
         "against the protocol", "not seen", "wrong answer", "no prompt")


class Problem(NamedTuple):
    """What is wrong, of one of the kinds."""

    kind: str
    says: str


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
    poisoned: list[int]  # accepted below the mark of a cancel that was before


def replay(session_id: str, steps: Iterable[Step]) -> Replayed:
    """Takes every action of the journal, in order, on a session of the protocol."""
    session = Session(session_id, Counter(), protocol=FAMILY)
    told = Replayed({}, [], [], {}, [], [])
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
            before_it = session.mark
            try:
                effects = _take(session, name, seq, variant, mark, seqs)
            except (IllegalTrigger, NotAllowed, KeyError, AssertionError, RuntimeError) as error:
                told.problems.append(f"{where}: the protocol does not allow it: {error!r}")
                continue
            if name == "accept" and session.counter.latest <= before_it:
                told.poisoned.append(session.counter.latest)
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
    prompt = session.prompts[seq or session.counter.latest] if seq is not None else None  # 0: the one just accepted
    return session.take(name, prompt, Outcome(variant) if name == "finish" else variant, mark)


def judge(connection: Any) -> list[Problem]:
    """What is wrong with the database that the cluster has left, and that was audited."""
    def rows(query: str, *values: Any) -> list[tuple[Any, ...]]:
        return list(connection.execute(query, values).fetchall())

    problems = [Problem("message after an end", f"message {id} was written after the end of its prompt")
                for (id,) in rows("SELECT id FROM cancelmark.late_messages")]
    problems += [Problem("cancel lost", f"prompt {seq} has written {number} times after it was canceled and its owner "
                         f"has looked {LOOKS} times") for seq, number in rows(
        "SELECT seq, count(DISTINCT transaction) FROM cancelmark.covered_messages WHERE looks >= %s GROUP BY 1"
        " HAVING count(DISTINCT transaction) > 1", LOOKS)]  # one may have been on its way
    return problems + judge_rows(connection)


def judge_rows(connection: Any) -> list[Problem]:
    """What is wrong with its rows, its journal and its log."""
    def rows(query: str, *values: Any) -> list[tuple[Any, ...]]:
        return list(connection.execute(query, values).fetchall())

    problems = [Problem("unfinished", f"prompt {seq} is {state}") for seq, state in rows(
        "SELECT seq, state FROM cancelmark.prompts WHERE state <> 'done'")]
    problems += [Problem("taken twice", f"the text {text!r} was accepted {number} times") for text, number in rows(
        "SELECT text, count(*) FROM cancelmark.prompts GROUP BY text HAVING count(*) > 1")]
    problems += [Problem("lost", f"prompt {seq} has begun, and its message is not there") for (seq,) in rows(
        "SELECT DISTINCT t.seq FROM cancelmark.transitions t LEFT JOIN cancelmark.messages m"
        " ON m.workspace_id = t.workspace_id AND m.id = 'p' || t.seq WHERE t.state = 'active' AND m.id IS NULL")]
    problems += [Problem("no prompt", f"message {answer} comes before the user's message {id}") for id, answer in rows(
        "SELECT u.id, min(a.id) FROM cancelmark.messages u JOIN cancelmark.messages a ON a.workspace_id ="
        " u.workspace_id AND a.session_id = u.session_id AND a.id LIKE u.id || '-%%' AND a.position < u.position"
        " WHERE u.role = 'user' GROUP BY u.id")]
    for workspace, latest, number, first, last in rows(
            "SELECT l.workspace_id, l.latest, count(e.place), coalesce(min(e.place), 1), coalesce(max(e.place), 0)"
            " FROM cancelmark.logs l LEFT JOIN cancelmark.events e USING (workspace_id) GROUP BY 1, 2"):
        if first != 1 or not latest == number == last:
            problems.append(Problem("places", f"the log of {workspace} has {number} events from {first} to {last}, and "
                                              f"says {latest}"))
    problems += [Problem("two ends", f"prompt {seq} has {number} ends") for seq, number in rows(
        "SELECT (payload->>'seq')::bigint, count(*) FROM cancelmark.events GROUP BY 1 HAVING count(*) > 1")]
    for workspace, id, mark, live in rows("SELECT workspace_id, id, mark, live FROM cancelmark.sessions"):
        problems += _judge_session(rows, workspace, id, mark, live)
    return problems


def _judge_session(rows: Callable[..., list[tuple[Any, ...]]], workspace: Any, id: str, mark: int, live: int,
                   ) -> list[Problem]:
    told = replay(id, [Step(*row) for row in rows(
        "SELECT version, claim, actions, seqs FROM cancelmark.steps WHERE workspace_id = %s AND session_id = %s"
        " AND computed ORDER BY version", workspace, id)])
    problems = [Problem("poisoned", f"{id}: prompt {seq} was accepted below the mark") for seq in told.poisoned]
    wrong = list(told.problems)
    moves: dict[int, list[tuple[str, str | None]]] = {}
    for seq, state, outcome in rows(
            "SELECT t.seq, t.state, t.outcome FROM cancelmark.transitions t JOIN cancelmark.prompts p"
            " USING (workspace_id, seq) WHERE workspace_id = %s AND p.session_id = %s ORDER BY t.position",
            workspace, id):
        moves.setdefault(seq, []).append((state, outcome))
    if moves != told.moves:
        others = {seq for seq in {*moves, *told.moves} if moves.get(seq) != told.moves.get(seq)}
        wrong.append(f"{id}: the rows of prompts {sorted(others)} are not what the journal says")
    ends = rows("SELECT (payload->>'seq')::bigint, payload->>'outcome' FROM cancelmark.events"
                " WHERE workspace_id = %s AND session_id = %s ORDER BY place", workspace, id)
    if ends != told.ends:
        wrong.append(f"{id}: the log has {len(ends)} ends, and they are not the journal's {len(told.ends)}")
    if mark != max([0, *told.marks]) or live != len(told.left):
        wrong.append(f"{id}: mark {mark} and {live} live prompts are not what the journal says")
    return problems + [Problem("against the protocol", one) for one in wrong]
