/* The Cancelmark protocol in Promela, for SPIN: written from protocol.md, by its rules, and from nothing else.

   One process, one loop; each turn of the loop is one action, and each action is one d_step. So a state that SPIN
   stores is a state of the protocol, and SPIN's counts can be compared with those of `cancelmark check`. What is worked
   out within a step, and what an observer sees of it, is `hidden`: it is not part of the state. formal.md says how to
   run it, and what must be switched off so that SPIN counts every state.

   Bounds: -DPROMPTS=3 -DCANCELS=2 -DCLEARS=1 -DREQUEUES=1 -DCRASHES=1 -DCLOSES=1 -DSESSIONS=2 */

#ifndef PROMPTS
#define PROMPTS 2
#endif
#ifndef CANCELS
#define CANCELS 0
#endif
#ifndef CLEARS
#define CLEARS 0
#endif
#ifndef REQUEUES
#define REQUEUES 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef CLOSES
#define CLOSES 0
#endif
#ifndef SESSIONS
#define SESSIONS 1
#endif

/* Seeded bugs: -DBUG=MARK_NOT_ASKED breaks the protocol on purpose. The names are those of tests/model/test_promela.py. */
#define MARK_NOT_ASKED 1
#define BUSY_BEFORE_MARK 2
#define DOES_NOT_WAIT 3
#define NO_RECORD 4
#define TRIED_AGAIN 5
#define MARK_TOO_HIGH 6
#define QUEUE_SURVIVES 7
#define SILENT_DROP 8
#define EARLY_END 9
#define IDLE_CANCEL_ASKS 10
#define CANCEL_EVERYWHERE 11
#define ACCEPTS_WHILE_CLOSING 12
#define FOLDS_RUN_IDS 13
#define STOPPING_TURN_FOLDS 14
#define LAST_GOES_FIRST 15
#define ERROR_STRANDS 16
#define START_BEFORE_END 17
#define NEIGHBOURS_TEXT 18
#define RECOVERY_FORGETS_QUEUE 19
#define RECOVERY_FORGETS_MARK 20
#define CANCEL_STOPS_NOBODY 21
#define CLEAR_STOPS 22
#define CLEAR_KEEPS_RUN_IDS 23
#define DROPPED_AT_HANDOFF 24
#ifndef BUG
#define BUG 0
#endif

#define EVERYWHERE SESSIONS

/* ---- The state ---- */

mtype = { ACCEPTED, CANCELED_ON_ENTRY, QUEUED, ACTIVE, DONE };
mtype = { end_turn, error, canceled, folded };
mtype = { by_clear, by_cancel };

byte seq;                    /* R1: the latest seq given out */
bit closing;                 /* R15 */
bit down;                    /* R16: crashed and not yet recovered */
byte mark[SESSIONS];         /* R2 */

mtype state[PROMPTS + 1];    /* by seq; 0: not accepted yet. Nothing is at 0, so that seq 0 is before all prompts */
byte home[PROMPTS + 1];      /* the prompt's session */
bit run_id[PROMPTS + 1];
mtype outcome[PROMPTS + 1];  /* of a prompt that is done */

/* History, which the protocol never reads: what the guarantees speak about. */
mtype reach[PROMPTS + 1];    /* the strongest call that reached the prompt between its acceptance and its end */
byte ends[PROMPTS + 1];      /* terminal events; counting stops at 2, which is one too many already */

/* How much of the bounds is spent; seq counts the prompts. */
byte cancels, clears, requeues, crashes, closes;

/* ---- What an observer sees of one step ---- */

hidden byte i, j, k, first, called_in;
hidden byte busy, idle, was_closing, starts, asks, late, foreign, into_stopping;
hidden byte was_mark[SESSIONS];
hidden mtype was[PROMPTS + 1];
hidden mtype was_outcome[PROMPTS + 1];
hidden mtype was_reach[PROMPTS + 1];
hidden byte was_ends[PROMPTS + 1];
hidden byte started[PROMPTS + 1];
hidden byte recorded[PROMPTS + 1];
hidden byte told_to_stop[PROMPTS + 1];

/* ---- Questions ---- */

#define here(p, s)      (state[p] && home[p] == (s))
#define live(p)         (state[p] && state[p] != DONE)
#define covered(p)      ((p) <= mark[home[p]])
#define foldable(p, s)  (here(p, s) && state[p] == QUEUED && !run_id[p])
#define working(p, s)   (state[p] == ACCEPTED || state[p] == CANCELED_ON_ENTRY || state[p] == ACTIVE)

#if PROMPTS == 1
#define SOME(what, s) (what(1, s))
#elif PROMPTS == 2
#define SOME(what, s) (what(1, s) || what(2, s))
#elif PROMPTS == 3
#define SOME(what, s) (what(1, s) || what(2, s) || what(3, s))
#elif PROMPTS == 4
#define SOME(what, s) (what(1, s) || what(2, s) || what(3, s) || what(4, s))
#elif PROMPTS == 5
#define SOME(what, s) (what(1, s) || what(2, s) || what(3, s) || what(4, s) || what(5, s))
#else
#error "PROMPTS: give 1 to 5"
#endif
#if SESSIONS < 1 || SESSIONS > 3
#error "SESSIONS: give 1 to 3"
#endif

/* Quiescence: nothing is left that the system does by itself. Callers and faults may still act. */
#define at_rest (!down && !SOME(working, 0))

inline ask_busy(s) {
    busy = down;
    for (k : 1 .. PROMPTS) {
        if :: here(k, s) && state[k] == ACTIVE -> busy = true :: else fi
    }
}

/* ---- What a step asks the world to do ---- */

inline start(p) {
    state[p] = ACTIVE;
    started[p] = true; starts = true; asks = true
}

/* R14: the terminal event of p, with the text of prompt `whose`. */
inline publish(p, how, whose) {
    if :: ends[p] < 2 -> ends[p]++ :: else fi;
    if :: starts -> late = true :: else fi;
    if :: (whose) != (p) || outcome[p] != how -> foreign = true :: else fi;
    asks = true
}

inline end_as(p, how) {
    state[p] = DONE; outcome[p] = how;
    publish(p, how, p)
}

/* ---- The guarantees, judged after every step ---- */

#define JUDGE(property, holds) \
    if :: holds :: else -> printf("violated: "); printf(#property); printf("\n"); assert(false) fi

inline begin(s) {
    called_in = s; was_closing = closing;
    starts = false; asks = false; late = false; foreign = false; into_stopping = false;
    for (i : 0 .. SESSIONS - 1) { was_mark[i] = mark[i] }
    for (i : 1 .. PROMPTS) {
        was[i] = state[i]; was_outcome[i] = outcome[i]; was_reach[i] = reach[i]; was_ends[i] = ends[i];
        started[i] = false; recorded[i] = false; told_to_stop[i] = false
    }
}

inline judge() {
    for (i : 0 .. SESSIONS - 1) {
        JUDGE(isolation, called_in == EVERYWHERE || called_in == i || mark[i] == was_mark[i])
    }
    for (i : 1 .. PROMPTS) {
        JUDGE(no-loss, !was[i] || state[i]);
        JUDGE(isolation, called_in == EVERYWHERE || !was[i] || called_in == home[i] ||
              (state[i] == was[i] && outcome[i] == was_outcome[i] && reach[i] == was_reach[i] && ends[i] == was_ends[i]));
        JUDGE(no-poisoning, reach[i] || (state[i] != CANCELED_ON_ENTRY && outcome[i] != canceled));
        JUDGE(no-lost-cancel, reach[i] != by_cancel ||
              (!started[i] && !(was[i] != DONE && outcome[i] == folded) &&
               (was[i] == ACTIVE || was[i] == DONE || !was[i] || outcome[i] == 0 || outcome[i] == canceled)));
        JUDGE(cancel-stops, !told_to_stop[i] || reach[i] == by_cancel);
        JUDGE(cancel-stops, was[i] != ACTIVE || was_reach[i] == by_cancel || reach[i] != by_cancel || told_to_stop[i]);
        JUDGE(queue-dropped, outcome[i] == canceled ||
              (reach[i] != by_clear && !(reach[i] == by_cancel && was[i] == QUEUED && was_reach[i] == 0)));
        JUDGE(one-terminal, ends[i] <= 1);
        JUDGE(no-absorption, !(run_id[i] && outcome[i] == folded));
        JUDGE(record, was[i] != CANCELED_ON_ENTRY || state[i] != DONE || recorded[i]);
        JUDGE(prompt-terminal, !starts || state[i] != DONE || ends[i]);
        for (j : 1 .. PROMPTS) {
            JUDGE(single-active, i == j || home[i] != home[j] || state[i] != ACTIVE || state[j] != ACTIVE);
            JUDGE(fifo, !started[i] || state[j] != QUEUED || home[i] != home[j] || i < j)
        }
        if :: at_rest ->
            JUDGE(all-done, !state[i] || state[i] == DONE);
            JUDGE(some-terminal, !state[i] || ends[i])
        :: else
        fi
    }
    JUDGE(closed, called_in == EVERYWHERE || closing == was_closing);
    JUDGE(no-late-fold, !into_stopping);
    JUDGE(attribution, !foreign);
    JUDGE(prompt-terminal, !late)
}

/* Liveness beyond quiescence: every run comes to rest, with everything ended. The callers' bounds see to it that they
   stop; the system itself has no bound. */
#define unended(p, s) (state[p] && !(state[p] == DONE && ends[p] == 1))
ltl progress { [] <> (at_rest && !SOME(unended, 0)) }

/* ---- The actions ---- */

#define NAME(p) ('A' + (p) - 1)

inline told_in(s) {
    if :: SESSIONS > 1 -> printf("@%d\n", s + 1) :: else -> printf("\n") fi
}

/* R1 */
inline accept(s, named) {
    begin(s);
    seq++;
    if :: named -> printf("accept(%c, run id)", NAME(seq)) :: else -> printf("accept(%c)", NAME(seq)) fi;
    told_in(s);
    state[seq] = ACCEPTED; home[seq] = s; run_id[seq] = named;
    JUDGE(closed, !closing);
    judge()
}

/* R3 to R6: the mark before the busy question. */
inline let_in(p) {
    ask_busy(home[p]);
    if
    :: covered(p) && BUG != MARK_NOT_ASKED && !(BUG == BUSY_BEFORE_MARK && busy) -> state[p] = CANCELED_ON_ENTRY
    :: else ->
        if
        :: busy && !(BUG == DOES_NOT_WAIT && !run_id[p]) -> state[p] = QUEUED
        :: else -> start(p)
        fi
    fi
}

inline enter(p) {
    begin(home[p]); printf("enter(%c)", NAME(p)); told_in(home[p]);
    let_in(p);
    judge()
}

/* R8 */
inline fail(p) {
    begin(home[p]); printf("fail(%c)", NAME(p)); told_in(home[p]);
    if
    :: covered(p) -> state[p] = CANCELED_ON_ENTRY
    :: else -> end_as(p, error)
    fi;
    judge()
}

/* R7 */
inline settle(p) {
    begin(home[p]); printf("settle(%c)", NAME(p)); told_in(home[p]);
    if
    :: BUG == TRIED_AGAIN -> state[p] = ACCEPTED
    :: else ->
        recorded[p] = (BUG != NO_RECORD); asks = true;
        end_as(p, canceled)
    fi;
    judge()
}

/* R9. A step that finds nothing to take in changes nothing, and is no step of the protocol. */
inline take_in(p) {
    begin(home[p]); printf("step(%c)", NAME(p)); told_in(home[p]);
    into_stopping = (reach[p] == by_cancel);
    for (i : 1 .. PROMPTS) {
        if
        :: foldable(i, home[p]) || (BUG == FOLDS_RUN_IDS && here(i, home[p]) && state[i] == QUEUED) -> end_as(i, folded)
        :: else
        fi
    }
    judge()
}

/* R11: the first in the queue becomes active. */
inline hand_off(s) {
    first = 0;
    for (k : 1 .. PROMPTS) {
        if
        :: here(k, s) && state[k] == QUEUED && (first == 0 || BUG == LAST_GOES_FIRST) -> first = k
        :: else
        fi
    }
    if :: first -> start(first) :: else fi
}

/* R10 */
inline requeue(p) {
    begin(home[p]); printf("requeue(%c)", NAME(p)); told_in(home[p]);
    requeues++;
    state[p] = QUEUED;
    hand_off(home[p]);
    judge()
}

/* R11, R12 */
inline finish(p, how) {
    begin(home[p]); printf("finish(%c, %e)", NAME(p), how); told_in(home[p]);
    if
    :: BUG == START_BEFORE_END -> state[p] = DONE; outcome[p] = how; hand_off(home[p]); publish(p, how, p)
    :: BUG == NEIGHBOURS_TEXT -> state[p] = DONE; outcome[p] = how; hand_off(home[p]);
        starts = false; if :: first == 0 -> first = p :: else fi; publish(p, how, first); starts = started[first]
    :: BUG == ERROR_STRANDS && how == error -> end_as(p, how)
    :: BUG == DROPPED_AT_HANDOFF -> end_as(p, how);
        for (k : 1 .. PROMPTS) {
            if :: here(k, home[p]) && state[k] == QUEUED && covered(k) -> end_as(k, canceled) :: else fi
        }
        hand_off(home[p])
    :: else -> end_as(p, how); hand_off(home[p])
    fi;
    judge()
}

/* R13: the queue is dropped, of which `with_run_ids` is a part. */
inline drop_queue(s, with_run_ids) {
    for (k : 1 .. PROMPTS) {
        if
        :: here(k, s) && state[k] == QUEUED && (with_run_ids || !run_id[k]) ->
            if
            :: BUG == SILENT_DROP -> state[k] = DONE; outcome[k] = canceled
            :: else -> end_as(k, canceled)
            fi
        :: else
        fi
    }
}

/* R12 */
inline ask_to_stop(s) {
    for (k : 1 .. PROMPTS) {
        if :: here(k, s) && state[k] == ACTIVE && !covered(k) -> told_to_stop[k] = true; asks = true :: else fi
    }
}

inline cancel_in(s) {
    if :: BUG != CANCEL_STOPS_NOBODY -> ask_to_stop(s) :: else fi;
    for (k : 1 .. PROMPTS) {
        if :: here(k, s) && live(k) -> reach[k] = by_cancel :: else fi
    }
    mark[s] = (BUG == MARK_TOO_HIGH -> seq + 1 : seq);
    if :: BUG != QUEUE_SURVIVES && BUG != DROPPED_AT_HANDOFF -> drop_queue(s, true) :: else fi;
    if
    :: BUG == EARLY_END ->
        for (k : 1 .. PROMPTS) {
            if :: here(k, s) && state[k] == ACTIVE -> publish(k, canceled, k) :: else fi
        }
    :: else
    fi
}

inline cancel(s) {
    begin(s); printf("cancel"); if :: BUG == CANCEL_EVERYWHERE -> printf("\n") :: else -> told_in(s) fi;
    cancels++;
    idle = true;
    for (k : 1 .. PROMPTS) {
        if :: here(k, s) && live(k) -> idle = false :: else fi
    }
    cancel_in(s);
    if
    :: BUG == CANCEL_EVERYWHERE -> for (i : 0 .. SESSIONS - 1) { cancel_in(i) }
    :: BUG == IDLE_CANCEL_ASKS && idle && seq -> asks = true
    :: else
    fi;
    JUDGE(idle-cancel-noop, !idle || !asks);
    for (i : 1 .. PROMPTS) {
        JUDGE(idle-cancel-noop, !idle || home[i] != s ||
              (state[i] == was[i] && outcome[i] == was_outcome[i] && reach[i] == was_reach[i] && ends[i] == was_ends[i]))
    }
    judge()
}

/* R13 */
inline clear_queue(s) {
    begin(s); printf("clear_queue"); told_in(s);
    clears++;
    for (k : 1 .. PROMPTS) {
        if :: here(k, s) && state[k] == QUEUED && reach[k] != by_cancel -> reach[k] = by_clear :: else fi
    }
    drop_queue(s, BUG != CLEAR_KEEPS_RUN_IDS);
    if :: BUG == CLEAR_STOPS -> ask_to_stop(s) :: else fi;
    judge()
}

/* R15 */
inline close() {
    begin(EVERYWHERE); printf("close\n");
    closes++;
    closing = true;
    for (i : 0 .. SESSIONS - 1) { cancel_in(i) }
    JUDGE(closed, closing);
    judge()
}

/* R16 */
inline crash() {
    begin(EVERYWHERE); printf("crash\n");
    crashes++;
    down = true;
    JUDGE(closed, closing == was_closing);
    judge()
}

/* R17: while the server is recovering every session is busy, so what was accepted lines up behind what was queued. */
inline recover() {
    begin(EVERYWHERE); printf("recover\n");
    for (i : 1 .. PROMPTS) {
        if
        :: state[i] == ACTIVE -> end_as(i, error)
        :: state[i] == QUEUED && BUG == RECOVERY_FORGETS_QUEUE -> state[i] = 0
        :: else
        fi
    }
    if
    :: BUG == RECOVERY_FORGETS_MARK -> for (i : 0 .. SESSIONS - 1) { mark[i] = 0 }
    :: else
    fi;
    for (i : 1 .. PROMPTS) {
        if :: state[i] == ACCEPTED -> let_in(i) :: else fi
    }
    down = false; closing = false;
    for (i : 0 .. SESSIONS - 1) { hand_off(i) }
    judge()
}

#define ON_PROMPT(p) \
    :: d_step { !down && state[p] == ACCEPTED -> enter(p) } \
    :: d_step { !down && state[p] == ACCEPTED -> fail(p) } \
    :: d_step { !down && state[p] == CANCELED_ON_ENTRY -> settle(p) } \
    :: d_step { !down && state[p] == ACTIVE && (!covered(p) || BUG == STOPPING_TURN_FOLDS) && \
                SOME(foldable, home[p]) -> take_in(p) } \
    :: d_step { !down && state[p] == ACTIVE && !covered(p) && requeues < REQUEUES -> requeue(p) } \
    :: d_step { !down && state[p] == ACTIVE -> finish(p, end_turn) } \
    :: d_step { !down && state[p] == ACTIVE -> finish(p, error) } \
    :: d_step { !down && state[p] == ACTIVE && covered(p) -> finish(p, canceled) }

#define IN_SESSION(s) \
    :: d_step { !down && (!closing || BUG == ACCEPTS_WHILE_CLOSING) && seq < PROMPTS -> accept(s, false) } \
    :: d_step { !down && (!closing || BUG == ACCEPTS_WHILE_CLOSING) && seq < PROMPTS -> accept(s, true) } \
    :: d_step { !down && cancels < CANCELS -> cancel(s) } \
    :: d_step { !down && clears < CLEARS -> clear_queue(s) }

init {
end:
    do
    ON_PROMPT(1)
#if PROMPTS >= 2
    ON_PROMPT(2)
#endif
#if PROMPTS >= 3
    ON_PROMPT(3)
#endif
#if PROMPTS >= 4
    ON_PROMPT(4)
#endif
#if PROMPTS >= 5
    ON_PROMPT(5)
#endif
    IN_SESSION(0)
#if SESSIONS >= 2
    IN_SESSION(1)
#endif
#if SESSIONS >= 3
    IN_SESSION(2)
#endif
    :: d_step { !down && !closing && closes < CLOSES -> close() }
    :: d_step { !down && crashes < CRASHES -> crash() }
    :: d_step { down -> recover() }
    od
}
