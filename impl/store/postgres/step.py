"""The one statement that commits a step. It compares and writes; the node computes what the step consists of.

**One statement**, because a node that hangs between two statements would hold a lock for as long as it hangs. Each
statement inside the function sees what was committed before the session was locked (READ COMMITTED). The function also
checks run ids and whether the session is closing, and assigns the seq.

**Three comparisons**, under the lock of the session's row:
- whether the step was committed before (`dup`);
- whether the node still owns the session (`lost`): the fence;
- whether the session is still at the version on which the step was computed (`stale`).

A turn's messages are written by the same statement. They name their prompt, and are refused once it is done: a
connection that is cut may deliver them after the end was committed on another.

A claim, which starts an epoch, needs two more comparisons: the session is unowned, or its owner is dead (else
`held`).

**Offsets** of events are taken from the workspace's counter at the end. Its lock lasts until the commit, so offsets are
in the order of commits and have no gap. Locks are always taken in one order: workspace, sessions, counter.

**A prompt that the step accepts** has no seq before. The rest of the step refers to it as 0, and to its message as p0.

**Several steps in one statement**, each of another session: `step_all`. Each is compared and committed by itself. A
step that fails, or whose session is locked by another statement, is answered with `alone`: nothing of it is kept, it
must be sent alone, and the others do not wait for it. Steps come in the order of their workspaces, so two such
statements take the counters in the same order.
"""

REFUSED = "CM001"  # an operation contradicts what is stored; the detail has its index
CLOSING = "CM002"  # the session accepts nothing more
WORN_OUT = "CM003"  # the sequence was reset: its next seq is already covered by a cancel

STEP = r"""
CREATE OR REPLACE FUNCTION step(
    node uuid, home uuid, sid text, step_id text, known bigint, fence bigint, claim text, frees text,
    actions json, operations json,
    OUT o_status text, OUT o_version bigint, OUT o_epoch bigint, OUT o_owner uuid, OUT o_places bigint[],
    OUT o_seqs bigint[])
LANGUAGE plpgsql SET search_path = cancelmark, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_variable
DECLARE
    s sessions%ROWTYPE;
    was sessions%ROWTYPE;
    present bool := false;
    op json;
    i int := -1;
    whose text;
    number bigint;
    taken bigint;  -- the seq of the prompt that the step has accepted
    now_s bigint := extract(epoch FROM clock_timestamp())::bigint;
    noted json[] := '{}';
BEGIN
    o_places := '{}';
    o_seqs := '{}';
    IF sid <> '' THEN
        SELECT * INTO s FROM sessions WHERE workspace_id = home AND id = sid FOR NO KEY UPDATE;
        present := FOUND;
    END IF;
    IF step_id <> '' THEN
        SELECT 'dup', t.version, t.epoch, t.node, t.places, t.seqs
            INTO o_status, o_version, o_epoch, o_owner, o_places, o_seqs FROM steps t
            WHERE t.workspace_id = home AND t.id = step_id;
        IF FOUND THEN
            IF o_epoch IS DISTINCT FROM s.epoch OR s.owner IS DISTINCT FROM node THEN
                o_owner := NULL;
            END IF;
            RETURN;
        END IF;
        o_places := '{}';
        o_seqs := '{}';
    END IF;
    o_version := coalesce(s.version, 0);
    IF fence IS NOT NULL AND present AND (s.epoch <> fence OR s.owner IS DISTINCT FROM node) THEN
        o_status := 'lost';
        RETURN;
    END IF;
    IF known IS NOT NULL AND o_version <> known THEN
        o_status := 'stale';
        RETURN;
    END IF;
    was := s;
    IF claim <> '' THEN
        IF (claim = 'adopt' AND s.owner IS NOT NULL)
           OR (claim = 'recover' AND NOT EXISTS (SELECT FROM nodes n WHERE n.id = s.owner AND n.dead))
           OR EXISTS (SELECT FROM nodes n WHERE n.id = node AND n.dead) THEN
            o_status := 'held';
            RETURN;
        END IF;
        s.owner := node;
        s.epoch := s.epoch + 1;
        s.wanted := false;
    END IF;

    FOR op IN SELECT value FROM json_array_elements(operations) LOOP
        i := i + 1;
        CASE op->>0
        WHEN 'move' THEN
            number := coalesce(nullif((op->>1)::bigint, 0), taken);
            UPDATE prompts SET state = op->>2, outcome = op->>3, taken_in_by = (op->>4)::bigint,
                    done_at = CASE WHEN op->>3 IS NOT NULL THEN now_s END, begun = begun OR op->>2 = 'active'
                WHERE workspace_id = home AND seq = number AND state <> 'done'
                    AND (op->>2 = 'done') = (op->>3 IS NOT NULL)
                RETURNING session_id INTO whose;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'refused' USING ERRCODE = 'CM001', DETAIL = i;
            END IF;
            INSERT INTO transitions (workspace_id, seq, state, outcome)
                VALUES (home, number, op->>2, op->>3);
            IF op->>2 = 'done' THEN
                IF whose = sid THEN
                    s.live := s.live - 1;
                ELSE
                    UPDATE sessions SET live = live - 1 WHERE workspace_id = home AND id = whose;
                END IF;
            END IF;
        WHEN 'message' THEN
            IF NOT (present AND op->>2 = sid) AND NOT EXISTS (
                    SELECT FROM sessions WHERE workspace_id = home AND id = op->>2)
               OR op->>9 IS NOT NULL AND NOT EXISTS (
                    SELECT FROM prompts WHERE workspace_id = home AND seq = (op->>9)::bigint AND state <> 'done') THEN
                RAISE EXCEPTION 'refused' USING ERRCODE = 'CM001', DETAIL = i;
            END IF;
            INSERT INTO messages AS m
                    (workspace_id, id, session_id, role, parts, model, provider, created_at, updated_at)
                VALUES (home, CASE WHEN op->>1 = 'p0' AND taken > 0 THEN 'p' || taken ELSE op->>1 END, op->>2, op->>3,
                    (op->>4)::json, op->>5, op->>6, (op->>7)::bigint, (op->>8)::bigint)
                ON CONFLICT (workspace_id, id) DO UPDATE SET
                    role = excluded.role, parts = excluded.parts, model = excluded.model,
                    provider = excluded.provider, created_at = excluded.created_at, updated_at = excluded.updated_at
                    WHERE m.session_id = excluded.session_id;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'refused' USING ERRCODE = 'CM001', DETAIL = i;
            END IF;
        WHEN 'event' THEN
            IF NOT (present AND op->>1 = sid) AND NOT EXISTS (
                    SELECT FROM sessions WHERE workspace_id = home AND id = op->>1) THEN
                RAISE EXCEPTION 'refused' USING ERRCODE = 'CM001', DETAIL = i;
            END IF;
            noted := noted || op;
        WHEN 'accept' THEN
            IF NOT (present AND op->>2 = sid) AND NOT EXISTS (
                    SELECT FROM sessions WHERE workspace_id = home AND id = op->>2) THEN
                RAISE EXCEPTION 'refused' USING ERRCODE = 'CM001', DETAIL = i;
            END IF;
            IF present AND op->>2 = sid AND s.closing THEN
                RAISE EXCEPTION 'closing' USING ERRCODE = 'CM002';
            END IF;
            number := (op->>1)::bigint;
            IF number = 0 THEN
                number := nextval('seqs');
                IF number <= s.mark THEN
                    RAISE EXCEPTION 'worn out' USING ERRCODE = 'CM003';
                END IF;
                o_seqs := o_seqs || number;
            END IF;
            taken := number;
            INSERT INTO prompts (workspace_id, seq, session_id, text, run_id, state, attachments, front, urgent,
                    revoked, version, begun)
                SELECT home, number, op->>2, op->>3, op->>4, 'accepted', (op->>5)::json,
                    (op->>6)::bigint, (op->>7)::bool, false, 0, false
                WHERE number > 0
                ON CONFLICT DO NOTHING;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'refused' USING ERRCODE = 'CM001', DETAIL = i;
            END IF;
            IF op->>2 = sid THEN
                s.live := s.live + 1;
            ELSE
                UPDATE sessions SET live = live + 1 WHERE workspace_id = home AND id = op->>2;
            END IF;
        WHEN 'mark' THEN
            IF present AND op->>1 = sid THEN
                s.mark := greatest(s.mark, (op->>2)::bigint);
            ELSE
                UPDATE sessions SET mark = greatest(mark, (op->>2)::bigint)
                    WHERE workspace_id = home AND id = op->>1;
                IF NOT FOUND THEN
                    RAISE EXCEPTION 'refused' USING ERRCODE = 'CM001', DETAIL = i;
                END IF;
            END IF;
        WHEN 'hold' THEN
            IF present AND op->>1 = sid THEN
                s.held := (op->>2)::bool;
            ELSE
                UPDATE sessions SET held = (op->>2)::bool WHERE workspace_id = home AND id = op->>1;
                IF NOT FOUND THEN
                    RAISE EXCEPTION 'refused' USING ERRCODE = 'CM001', DETAIL = i;
                END IF;
            END IF;
        WHEN 'change' THEN
            UPDATE prompts SET revoked = (op->>2)::bool, front = (op->>3)::bigint, version = (op->>4)::bigint,
                    urgent = (op->>5)::bool
                WHERE workspace_id = home AND seq = (op->>1)::bigint AND state <> 'done';
            IF NOT FOUND THEN
                RAISE EXCEPTION 'refused' USING ERRCODE = 'CM001', DETAIL = i;
            END IF;
        WHEN 'text' THEN
            UPDATE prompts SET text = op->>2, first = coalesce(first, op->>3)
                WHERE workspace_id = home AND seq = (op->>1)::bigint AND state <> 'done';
            IF NOT FOUND THEN
                RAISE EXCEPTION 'refused' USING ERRCODE = 'CM001', DETAIL = i;
            END IF;
        WHEN 'questions' THEN
            UPDATE prompts SET questions = (op->>2)::json
                WHERE workspace_id = home AND seq = (op->>1)::bigint AND state <> 'done';
            IF NOT FOUND THEN
                RAISE EXCEPTION 'refused' USING ERRCODE = 'CM001', DETAIL = i;
            END IF;
        WHEN 'session' THEN
            PERFORM FROM workspaces WHERE id = home FOR KEY SHARE;
            IF NOT FOUND THEN  -- it was forgotten
                RAISE EXCEPTION 'closing' USING ERRCODE = 'CM002';
            END IF;
            INSERT INTO sessions
                    (workspace_id, id, title, created_at, mark, held, closing, owner, epoch, version, live,
                    wanted)
                VALUES (home, op->>1, op->>2, (op->>3)::bigint, 0, false, EXISTS (
                    SELECT FROM sessions c WHERE c.workspace_id = home AND c.closing), NULL, 0, 0, 0, false)
                ON CONFLICT DO NOTHING;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'refused' USING ERRCODE = 'CM001', DETAIL = i;
            END IF;
            IF op->>1 = sid THEN
                SELECT * INTO s FROM sessions WHERE workspace_id = home AND id = sid FOR NO KEY UPDATE;
                present := true;
                was := s;
            END IF;
        WHEN 'drop' THEN
            UPDATE logs SET floor = floor + 1
                WHERE workspace_id = home AND floor + 1 = (op->>1)::bigint AND floor + 1 < latest;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'refused' USING ERRCODE = 'CM001', DETAIL = i;
            END IF;
            DELETE FROM events WHERE workspace_id = home AND place = (op->>1)::bigint;
        WHEN 'forget' THEN
            IF op->>2 IS NULL THEN
                DELETE FROM prompts p WHERE p.workspace_id = home AND p.seq = (op->>1)::bigint AND p.state = 'done'
                    AND p.digest IS NULL AND p.run_id IS NULL
                    AND p.seq < (SELECT max(seq) FROM prompts WHERE workspace_id = home);
            ELSE
                UPDATE prompts p SET text = '', attachments = NULL, questions = NULL, digest = op->>2
                    WHERE p.workspace_id = home AND p.seq = (op->>1)::bigint AND p.state = 'done'
                    AND p.digest IS NULL AND p.run_id IS NOT NULL
                    AND p.seq < (SELECT max(seq) FROM prompts WHERE workspace_id = home);
            END IF;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'refused' USING ERRCODE = 'CM001', DETAIL = i;
            END IF;
            DELETE FROM transitions WHERE workspace_id = home AND seq = (op->>1)::bigint;
        END CASE;
    END LOOP;

    IF present THEN
        IF known IS NOT NULL THEN
            s.version := s.version + 1;
        END IF;
        IF frees <> '' THEN
            s.owner := NULL;
            s.wanted := frees = 'handover';
        END IF;
        IF s IS DISTINCT FROM was THEN
            UPDATE sessions SET mark = s.mark, held = s.held, owner = s.owner, epoch = s.epoch, version = s.version,
                live = s.live, wanted = s.wanted WHERE workspace_id = home AND id = sid;
        END IF;
        o_version := s.version;
    END IF;
    IF cardinality(noted) > 0 THEN
        UPDATE logs SET latest = latest + cardinality(noted) WHERE workspace_id = home RETURNING latest INTO number;
        number := number - cardinality(noted);
        FOREACH op IN ARRAY noted LOOP
            number := number + 1;
            INSERT INTO events (workspace_id, place, session_id, type, payload, run_id, made_at)
                VALUES (home, number, op->>1, op->>2, (op->>3)::json, op->>4, now_s);
            o_places := o_places || number;
        END LOOP;
    END IF;
    o_status := 'ok';
    o_epoch := s.epoch;
    o_owner := s.owner;
    IF step_id <> '' THEN
        INSERT INTO steps (id, workspace_id, session_id, computed, version, epoch, node, claim, released, actions,
                places, seqs)
            VALUES (step_id, home, sid, known IS NOT NULL AND present, o_version, coalesce(s.epoch, 0), node, claim,
                frees, actions, o_places, o_seqs);
    END IF;
END
$$;
"""

STEP_ALL = r"""
CREATE OR REPLACE FUNCTION step_all(
    asked json,
    OUT o_status text, OUT o_version bigint, OUT o_epoch bigint, OUT o_owner uuid, OUT o_places bigint[],
    OUT o_seqs bigint[])
RETURNS SETOF record LANGUAGE plpgsql SET search_path = cancelmark, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_variable
DECLARE
    one json;
BEGIN
    FOR one IN SELECT value FROM json_array_elements(asked) LOOP
        o_status := 'alone';
        BEGIN
            PERFORM FROM sessions WHERE workspace_id = (one->>1)::uuid AND id = one->>2 FOR NO KEY UPDATE SKIP LOCKED;
            IF FOUND THEN
                SELECT s.* INTO o_status, o_version, o_epoch, o_owner, o_places, o_seqs
                    FROM step((one->>0)::uuid, (one->>1)::uuid, one->>2, one->>3, (one->>4)::bigint, (one->>5)::bigint,
                        one->>6, one->>7, one->8, one->9) s;
            END IF;
        EXCEPTION WHEN OTHERS THEN
            o_status := 'alone';
        END;
        RETURN NEXT;
    END LOOP;
END
$$;
"""

FORGET = r"""
CREATE FUNCTION forget(home uuid) RETURNS void
LANGUAGE plpgsql SET search_path = cancelmark, pg_temp AS $$
BEGIN
    PERFORM FROM workspaces WHERE id = home FOR UPDATE;  -- no session is made from now on
    PERFORM FROM sessions WHERE workspace_id = home ORDER BY id FOR UPDATE;  -- and no step is taken
    DELETE FROM lives WHERE workspace_id = home;
    DELETE FROM events WHERE workspace_id = home;
    DELETE FROM messages WHERE workspace_id = home;
    DELETE FROM transitions WHERE workspace_id = home;
    DELETE FROM prompts WHERE workspace_id = home;
    DELETE FROM sessions WHERE workspace_id = home;
    DELETE FROM steps WHERE workspace_id = home;
    DELETE FROM logs WHERE workspace_id = home;
    DELETE FROM workspaces WHERE id = home;
END
$$;
"""
