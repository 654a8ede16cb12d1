/* The Cancelmark protocol in Promela, for SPIN: written from protocol.md, by its rules, and from nothing else.

   One process, one loop; each turn of the loop is one action, and each action is one d_step. So a state that SPIN
   stores is a state of the protocol, and SPIN's counts can be compared with those of `cancelmark check`. What is worked
   out within a step, and what an observer sees of it, is `hidden`: it is not part of the state. formal.md says how to
   run it, and what must be switched off so that SPIN counts every state.

   Bounds: -DPROMPTS=3 -DCANCELS=2 -DCLEARS=1 -DREQUEUES=1 -DCRASHES=1 -DCLOSES=1 -DSESSIONS=2
   Features: -DREVOKE -DSTOP -DHOLD -DREPLACE -DNEXT -DINTERRUPT -DREJECT -DASK; none of them is the reference protocol.
   Bounds of their calls: -DREVOKES=1 -DSTOPS=1 -DHOLDS=1 -DREPLACES=1 -DNEXTS=1 -DASKS=2 */

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
#ifndef REVOKES
#define REVOKES 0
#endif
#ifndef STOPS
#define STOPS 0
#endif
#ifndef HOLDS
#define HOLDS 0
#endif
#ifndef REPLACES
#define REPLACES 0
#endif
#ifndef NEXTS
#define NEXTS 0
#endif
#ifndef ASKS
#define ASKS 0
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
#define REVOKE_RAISES_MARK 25
#define REVOKE_MISSES_ACCEPTED 26
#define STOP_MISSES_ACCEPTED 27
#define STOP_RAISES_MARK 28
#define ENTERS_WHILE_HELD 29
#define HANDS_OFF_WHILE_HELD 30
#define FOLDS_WHILE_HELD 31
#define RECOVERY_FORGETS_HOLD 32
#define RESUME_STRANDS 33
#define CANCEL_RESUMES 34
#define REPLACES_WHAT_BEGAN 35
#define RECOVERY_FORGETS_TEXT 36
#define RECOVERY_FORGETS_PLACE 37
#define HANDOFF_BY_SEQ 38
#define INTERRUPT_AT_ACCEPT 39
#define INTERRUPT_STOPS_ANYBODY 40
#define COVERED_INTERRUPTS 41
#define FOLDS_PAST_INTERRUPT 42
#define REJECT_ASKS_BUSY 43
#define REJECT_FORGETS_HOLD 44
#define REQUEUE_PARKS 45
#define CANCEL_LEAVES_OPEN 46
#define CLOSE_LEAVES_OPEN 47
#define STOP_LEAVES_OPEN 48
#define REVOKE_LEAVES_OPEN 49
#define INTERRUPT_LEAVES_OPEN 50
#define PERMISSION_OUTLIVES_CANCEL 51
#define CANCELED_TURN_ASKS 52
#define END_LEAVES_OPEN 53
#define QUESTION_SURVIVES_SUMMARY 54
#define PERMISSION_SURVIVES_SUMMARY 55
#define ANSWERS_WHAT_IS_OPEN 56
#define LAST_ANSWER_WINS 57
#define LATE_ANSWER_CONFIRMED 58
#define TIMEOUT_ALLOWS 59
#define RUNS_WHILE_OPEN 60
#define PERMISSION_NOT_USED_UP 61
#define DENY_STOPS 62
#define RECOVERY_SILENT 63
#define START_NOT_JOURNALED 64
#define RECOVERY_RUNS 65
#define RECOVERY_DOUBTS_ALLOWED 66
#define HOLD_WITHDRAWS 67
#ifndef BUG
#define BUG 0
#endif

#define EVERYWHERE SESSIONS

/* A caller may resume what is not held, at any time: nothing happens, for ever. -DIDLE_RESUMES=0 leaves that out, so that
   `progress` is about the system. */
#ifndef IDLE_RESUMES
#define IDLE_RESUMES true
#endif

/* ---- The state ---- */

mtype = { ACCEPTED, CANCELED_ON_ENTRY, QUEUED, ACTIVE, DONE };
mtype = { end_turn, error, canceled, folded };
mtype = { by_clear, by_cancel };
mtype = { queue, reject, interrupt };  /* R35: what a prompt does that finds the session busy */
#if ASK
mtype = { OPEN, ALLOWED, DENIED, RAN, WITHDRAWN, VOID };  /* R36: a question */
#define MOST 2  /* questions of a prompt: a limit of this model */
#define NUMBERED(p, n) ((p) * MOST + (n) - 1)
#define QUESTIONS ((PROMPTS + 1) * MOST)
#endif

byte seq;                    /* R1: the latest seq given out */
bit closing;                 /* R15 */
bit down;                    /* R16: crashed and not yet recovered */
byte mark[SESSIONS];         /* R2 */

mtype state[PROMPTS + 1];    /* by seq; 0: not accepted yet. Nothing is at 0, so that seq 0 is before all prompts */
byte home[PROMPTS + 1];      /* the prompt's session */
bit run_id[PROMPTS + 1];
mtype outcome[PROMPTS + 1];  /* of a prompt that is done */
bit revoked[PROMPTS + 1];    /* R30 */
byte front[PROMPTS + 1];     /* R34: what has a higher one goes first */
byte version[PROMPTS + 1];   /* R33: of its text */
bit begun[PROMPTS + 1];      /* R33: it has been active; kept only where texts can be replaced */
bit urgent[PROMPTS + 1];     /* R35: accepted with interrupt */
bit held[SESSIONS];          /* R32 */
#if ASK
mtype question[QUESTIONS];   /* R36: by prompt and number; 0: not asked. A prompt that is done has none */
#endif

/* History, which the protocol never reads: what the guarantees speak about. */
mtype reach[PROMPTS + 1];    /* the strongest call that reached the prompt between its acceptance and its end: by_cancel
                                is a cancel, close, revoke, stop or interrupt */
byte ends[PROMPTS + 1];      /* terminal events; counting stops at 2, which is one too many already */
byte place[PROMPTS + 1];     /* where callers have put it: what has a higher one goes first */
byte wanted[PROMPTS + 1];    /* the version of its text that callers were told last */
bit ran[PROMPTS + 1];        /* a turn of it was started; kept only where texts can be replaced */
bit told_to_wait[SESSIONS];  /* the last call was a hold, and not a resume */
#if ASK
mtype called[QUESTIONS];     /* what the calls have made of a question */
bit seen_open[QUESTIONS];    /* subscribers have received the question, and neither its answer nor its withdrawal */
#endif

/* How much of the bounds is spent; seq counts the prompts. */
byte cancels, clears, requeues, crashes, closes, revokes, stops, holds, replaces, nexts;
#if ASK
byte questions;
#endif

/* ---- What an observer sees of one step ---- */

hidden byte i, j, k, first, called_in, highest, target;
hidden byte busy, idle, was_closing, starts, asks, late, foreign, into_stopping, past_interrupt, stale;
hidden byte was_mark[SESSIONS];
hidden byte was_held[SESSIONS];
hidden mtype was[PROMPTS + 1];
hidden mtype was_outcome[PROMPTS + 1];
hidden mtype was_reach[PROMPTS + 1];
hidden byte was_ends[PROMPTS + 1];
hidden byte was_covered[PROMPTS + 1];
hidden byte was_revoked[PROMPTS + 1];
hidden byte was_front[PROMPTS + 1];
hidden byte was_version[PROMPTS + 1];
hidden byte started[PROMPTS + 1];
hidden byte recorded[PROMPTS + 1];
hidden byte told_to_stop[PROMPTS + 1];
#if ASK
hidden byte number, answers, recovers, requeued, unsettled;  /* answers: the question that an answer names */
hidden mtype given;
hidden mtype was_question[QUESTIONS];
hidden mtype was_called[QUESTIONS];
hidden mtype answered[QUESTIONS];   /* the answer that was published */
hidden byte tools[QUESTIONS];       /* how often the tool was started */
hidden byte unsure[QUESTIONS];      /* reported as a tool that may have run */
#endif

/* ---- Predicates ---- */

#define here(p, s)      (state[p] && home[p] == (s))
#define live(p)         (state[p] && state[p] != DONE)
#define covered(p)      ((p) <= mark[home[p]] || revoked[p])
#define foldable(p, s)  (here(p, s) && state[p] == QUEUED && !run_id[p])
#define to_enter(p, s)  (here(p, s) && state[p] == ACCEPTED && urgent[p] && !covered(p))
#define ahead_by(by, p, q) (by[p] > by[q] || (by[p] == by[q] && (p) < (q)))
#define ahead(p, q)     ahead_by(front, p, q)
#define put_ahead(p, q) ahead_by(place, p, q)
#define same(p)         (state[p] == was[p] && outcome[p] == was_outcome[p] && reach[p] == was_reach[p] && \
                         ends[p] == was_ends[p] && revoked[p] == was_revoked[p] && front[p] == was_front[p] && \
                         version[p] == was_version[p] && same_questions(p))
#if ASK
#define kept(q)         (question[q] == was_question[q])
#define same_questions(p) (kept(NUMBERED(p, 1)) && kept(NUMBERED(p, 2)))
#else
#define same_questions(p) true
#endif
#define untouched(p)    (same(p) && !told_to_stop[p] && (!live(p) || covered(p) == was_covered[p]))
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
    busy = down || (held[s] && BUG != ENTERS_WHILE_HELD);
    for (k : 1 .. PROMPTS) {
        if :: here(k, s) && state[k] == ACTIVE -> busy = true :: else fi
    }
}

/* ---- What a step asks the world to do ---- */

/* R33: the latest text that a caller was told is taken. */
inline check_text(p) {
    if :: version[p] != wanted[p] -> stale = true :: else fi
}

inline start(p) {
    check_text(p);
    state[p] = ACTIVE;
#if REPLACE
    begun[p] = true; ran[p] = true;
#endif
    started[p] = true; starts = true; asks = true
}

#if ASK
/* The end of a question, an answer or a withdrawal: subscribers receive one, and only of a question that they know. */
inline publish_end_of(q) {
    if :: seen_open[q] :: else -> unsettled = true fi;
    seen_open[q] = false; asks = true
}

/* R36: withdraws the open questions and voids the permissions, unless a seeded bug spares them. */
inline settle_questions(p, spares_open, spares_allowed) {
    for (number : 1 .. MOST) {
        if
        :: question[NUMBERED(p, number)] == OPEN && !(spares_open) ->
            question[NUMBERED(p, number)] = WITHDRAWN;
            if :: BUG == RECOVERY_SILENT && recovers :: else -> publish_end_of(NUMBERED(p, number)) fi
        :: question[NUMBERED(p, number)] == ALLOWED && !(spares_allowed) -> question[NUMBERED(p, number)] = VOID
        :: else
        fi
    }
}

/* R36i: the tools of this prompt that a crash may have broken. */
inline report_tools(p) {
    for (number : 1 .. MOST) {
        if
        :: (question[NUMBERED(p, number)] == RAN && BUG != RECOVERY_SILENT) ||
           (question[NUMBERED(p, number)] == ALLOWED && BUG == RECOVERY_DOUBTS_ALLOWED) ->
            unsure[NUMBERED(p, number)] = true; asks = true
        :: else
        fi;
        if
        :: BUG == RECOVERY_RUNS && (question[NUMBERED(p, number)] == ALLOWED || question[NUMBERED(p, number)] == RAN) ->
            tools[NUMBERED(p, number)]++; asks = true
        :: else
        fi
    }
}

inline forget_questions(p) {
    for (number : 1 .. MOST) {
        if :: seen_open[NUMBERED(p, number)] -> unsettled = true :: else fi;
        question[NUMBERED(p, number)] = 0; called[NUMBERED(p, number)] = 0; seen_open[NUMBERED(p, number)] = 0
    }
}
#else
inline settle_questions(p, spares_open, spares_allowed) { skip }
inline report_tools(p) { skip }
inline forget_questions(p) { skip }
#endif

/* Nothing asks for these once a prompt is done. */
inline forget(p) {
    revoked[p] = 0; front[p] = 0; version[p] = 0; begun[p] = 0; urgent[p] = 0;
    place[p] = 0; wanted[p] = 0; ran[p] = 0;
    forget_questions(p)
}

/* R14: the terminal event of p, with the text of prompt `whose`. */
inline publish(p, how, whose) {
    if :: ends[p] < 2 -> ends[p]++ :: else fi;
    forget(p);
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
    past_interrupt = false; stale = false;
    idle = true;
    for (i : 0 .. SESSIONS - 1) { was_mark[i] = mark[i]; was_held[i] = held[i] }
    for (i : 1 .. PROMPTS) {
        if :: here(i, s) && live(i) -> idle = false :: else fi;
        was[i] = state[i]; was_outcome[i] = outcome[i]; was_reach[i] = reach[i]; was_ends[i] = ends[i];
        was_covered[i] = covered(i); was_revoked[i] = revoked[i]; was_front[i] = front[i]; was_version[i] = version[i];
        started[i] = false; recorded[i] = false; told_to_stop[i] = false
    }
    begin_questions()
}

#if ASK
inline begin_questions() {
    answers = 0; given = 0; recovers = false; requeued = 0; unsettled = false;
    for (i : 0 .. QUESTIONS - 1) {
        was_question[i] = question[i]; was_called[i] = called[i];
        answered[i] = 0; tools[i] = 0; unsure[i] = false
    }
}

/* Whatever cancels, ends or requeues the prompt withdraws what is open, and voids what is allowed. */
inline note_questions() {
    for (i : 1 .. PROMPTS) {
        for (number : 1 .. MOST) {
            if
            :: state[i] == ACTIVE && reach[i] != by_cancel && requeued != i
            :: else ->
                if
                :: called[NUMBERED(i, number)] == OPEN -> called[NUMBERED(i, number)] = WITHDRAWN
                :: called[NUMBERED(i, number)] == ALLOWED -> called[NUMBERED(i, number)] = VOID
                :: else
                fi
            fi
        }
    }
}

#define is_settled(what)   ((what) == WITHDRAWN || (what) == VOID)
#define has_answer(what)   ((what) == ALLOWED || (what) == DENIED || (what) == RAN)
#define is_unsettled(what) ((what) == OPEN || (what) == ALLOWED)

inline judge_question(p, q) {
    JUDGE(no-late-approval, !answered[q] || !is_settled(was_called[answers]));
    JUDGE(no-late-approval,
          !tools[q] || ((was_called[q] == ALLOWED || was_called[q] == RAN) && state[p] == ACTIVE));
    JUDGE(tool-once, tools[q] <= 1 && !(tools[q] && was_called[q] == RAN));
    JUDGE(one-answer, !has_answer(was_called[answers]) || (!answered[q] && (answers / MOST != p || kept(q))));
    JUDGE(answer-exact, !answers || q == answers || (!answered[q] && kept(q)));
    JUDGE(answer-exact, !answers || answers / MOST == p || !was[p] || same(p));
    JUDGE(answer-heard, was_called[answers] != OPEN || answered[answers] == given);
    JUDGE(answer-heard, !is_unsettled(called[q]) || question[q] == called[q]);
    JUDGE(ask-settled, !unsettled && (!seen_open[q] || called[q] == OPEN));
    JUDGE(may-have-run, !recovers || unsure[q] == (was[p] == ACTIVE && was_called[q] == RAN))
}

inline judge_questions() {
    note_questions();
    for (i : 1 .. PROMPTS) {
        for (number : 1 .. MOST) { judge_question(i, NUMBERED(i, number)) }
    }
}
#else
inline begin_questions() { skip }
inline judge_questions() { skip }
#endif

#define folds(p)   (was[p] != DONE && outcome[p] == folded)
#define goes_on(p) (was[p] == ACTIVE && told_to_wait[home[p]])  /* R32: a hold is for the queue, and not for the turn */
#define waits(p)   (state[p] == QUEUED && told_to_wait[home[p]])

inline judge() {
    for (i : 0 .. SESSIONS - 1) {
        JUDGE(isolation, called_in == EVERYWHERE || called_in == i || (mark[i] == was_mark[i] && held[i] == was_held[i]))
    }
    for (i : 1 .. PROMPTS) {
        JUDGE(no-loss, !was[i] || state[i]);
        JUDGE(isolation, called_in == EVERYWHERE || !was[i] || called_in == home[i] || same(i));
        JUDGE(no-poisoning, reach[i] || (state[i] != CANCELED_ON_ENTRY && outcome[i] != canceled));
        JUDGE(no-lost-cancel, reach[i] != by_cancel ||
              (!started[i] && !folds(i) &&
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
            JUDGE(fifo, !started[i] || goes_on(i) || state[j] != QUEUED || home[i] != home[j] || put_ahead(i, j))
        }
        JUDGE(held, !told_to_wait[home[i]] || !(started[i] || folds(i)) || goes_on(i));
        JUDGE(held, !goes_on(i) || state[i] != QUEUED);
        if :: at_rest ->
            JUDGE(all-done, !state[i] || state[i] == DONE || waits(i));
            JUDGE(some-terminal, !state[i] || ends[i] || waits(i))
        :: else
        fi
    }
    judge_questions();  /* not last: SPIN refuses a d_step that ends with a loop */
    JUDGE(closed, called_in == EVERYWHERE || closing == was_closing);
    JUDGE(no-late-fold, !into_stopping && !past_interrupt);
    JUDGE(edited, !stale);
    JUDGE(attribution, !foreign);
    JUDGE(prompt-terminal, !late)
}

/* Liveness beyond quiescence: every run comes to rest, with everything ended. The callers' bounds see to it that they
   stop; the system itself has no bound. */
#define unended(p, s) (state[p] && !(state[p] == DONE && ends[p] == 1) && !waits(p))
ltl progress { [] <> (at_rest && !SOME(unended, 0)) }

inline judge_idle(s) {
    JUDGE(idle-cancel-noop, !idle || (!asks && held[s] == was_held[s]));
    for (i : 1 .. PROMPTS) {
        JUDGE(idle-cancel-noop, !idle || home[i] != s || same(i))
    }
}

/* ---- The actions ---- */

#define NAME(p) ('A' + (p) - 1)

inline told_in(s) {
    if :: SESSIONS > 1 -> printf("@%d\n", s + 1) :: else -> printf("\n") fi
}

/* R34: ahead of everything in the session that is not done, unless it is there already. `by` says what puts prompts in
   order: the protocol's own, or what callers have asked for. */
#define put_to_front(by, p) \
    highest = 0; \
    for (k : 1 .. PROMPTS) { \
        if :: here(k, home[p]) && live(k) && by[k] > highest -> highest = by[k] :: else fi \
    } \
    by[p] = highest + 1

#define move_to_front(by, p) \
    j = false; \
    for (k : 1 .. PROMPTS) { \
        if :: k != p && here(k, home[p]) && live(k) && ahead_by(by, k, p) -> j = true :: else fi \
    } \
    if :: j -> put_to_front(by, p) :: else fi

/* R1, R35 */
inline accept(s, named, if_busy) {
    begin(s);
    seq++;
    if
    :: named -> printf("accept(%c, run id)", NAME(seq))
    :: !named && if_busy == queue -> printf("accept(%c)", NAME(seq))
    :: else -> printf("accept(%c, %e)", NAME(seq), if_busy)
    fi;
    told_in(s);
    state[seq] = ACCEPTED; home[seq] = s; run_id[seq] = named;
    if
    :: if_busy == interrupt ->
        urgent[seq] = true;
        put_to_front(place, seq);
        put_to_front(front, seq);
        for (i : 1 .. PROMPTS) {
            if :: BUG == INTERRUPT_AT_ACCEPT && here(i, s) && state[i] == ACTIVE -> revoke_one(i, false) :: else fi
        }
    :: else
    fi;
    JUDGE(closed, !closing);
    JUDGE(reject, if_busy != reject || (idle && !told_to_wait[s]));
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

/* R35: an interrupt stops the turn of a prompt that was accepted before it, unless it cannot follow. */
inline send_now(p) {
    if
    :: (!covered(p) || BUG == COVERED_INTERRUPTS) && !held[home[p]] && BUG != INTERRUPT_AT_ACCEPT ->
        for (k : 1 .. PROMPTS) {
            if
            :: here(k, home[p]) && state[k] == ACTIVE && (k < p || BUG == INTERRUPT_STOPS_ANYBODY) ->
                revoke_one(k, BUG == INTERRUPT_LEAVES_OPEN)
            :: else
            fi
        }
    :: else
    fi
}

#define interrupts(p, q) (urgent[p] && !reach[p] && !told_to_wait[home[p]] && home[q] == home[p] && (q) < (p) && \
                          was[q] == ACTIVE)

inline enter(p) {
    begin(home[p]); printf("enter(%c)", NAME(p)); told_in(home[p]);
    for (i : 1 .. PROMPTS) {
        if :: interrupts(p, i) -> reach[i] = by_cancel :: else fi
    }
    if :: urgent[p] -> send_now(p) :: else fi;
    let_in(p);
    for (i : 1 .. PROMPTS) {
        JUDGE(send-now, !interrupts(p, i) || covered(i))
    }
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
        :: foldable(i, home[p]) || (BUG == FOLDS_RUN_IDS && here(i, home[p]) && state[i] == QUEUED) ->
            for (j : 1 .. PROMPTS) {
                if :: here(j, home[p]) && state[j] == ACCEPTED && urgent[j] && !reach[j] && p < j && j < i ->
                    past_interrupt = true
                :: else
                fi
            }
            check_text(i);
            end_as(i, folded)
        :: else
        fi
    }
    judge()
}

/* R11: the first in the queue becomes active. R32: not while the session is held. */
inline hand_off(s) {
    first = 0;
    for (k : 1 .. PROMPTS) {
        if
        :: here(k, s) && state[k] == QUEUED && (!held[s] || BUG == HANDS_OFF_WHILE_HELD) &&
           (first == 0 || BUG == LAST_GOES_FIRST || (ahead(k, first) && BUG != HANDOFF_BY_SEQ)) ->
            first = k
        :: else
        fi
    }
    if :: first -> start(first) :: else fi
}

/* R10 */
inline requeue(p) {
    begin(home[p]); printf("requeue(%c)", NAME(p)); told_in(home[p]);
    requeues++;
#if ASK
    requeued = p;
#endif
    settle_questions(p, BUG == QUESTION_SURVIVES_SUMMARY, BUG == PERMISSION_SURVIVES_SUMMARY);
    if
    :: held[home[p]] && BUG != REQUEUE_PARKS -> start(p)  /* R32: it goes on at once */
    :: else -> state[p] = QUEUED; hand_off(home[p])
    fi;
    judge()
}

/* R11, R12 */
inline finish(p, how) {
    begin(home[p]); printf("finish(%c, %e)", NAME(p), how); told_in(home[p]);
    settle_questions(p, BUG == END_LEAVES_OPEN, false);
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
        if
        :: here(k, s) && state[k] == ACTIVE && !covered(k) ->
            told_to_stop[k] = true; asks = true;
            settle_questions(k, BUG == (called_in == EVERYWHERE -> CLOSE_LEAVES_OPEN : CANCEL_LEAVES_OPEN),
                             BUG == PERMISSION_OUTLIVES_CANCEL)
        :: else
        fi
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
    cancel_in(s);
    if
    :: BUG == CANCEL_EVERYWHERE -> for (i : 0 .. SESSIONS - 1) { cancel_in(i) }
    :: BUG == IDLE_CANCEL_ASKS && idle && seq -> asks = true
    :: BUG == CANCEL_RESUMES -> held[s] = false
    :: else
    fi;
    judge_idle(s);
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
    judge_idle(s);
    judge()
}

/* R30 */
inline revoke_one(p, leaves_open) {
    if
    :: covered(p) || state[p] == CANCELED_ON_ENTRY || state[p] == DONE
    :: else ->
        if
        :: state[p] == ACCEPTED && BUG == REVOKE_MISSES_ACCEPTED
        :: state[p] == QUEUED -> end_as(p, canceled)
        :: state[p] == ACTIVE ->
            told_to_stop[p] = true; asks = true; revoked[p] = true;
            settle_questions(p, leaves_open, false)
        :: else -> revoked[p] = true
        fi
    fi
}

inline revoke(p) {
    begin(home[p]); printf("revoke(%c)", NAME(p)); told_in(home[p]);
    revokes++;
    if :: live(p) -> reach[p] = by_cancel :: else fi;
    revoke_one(p, BUG == REVOKE_LEAVES_OPEN);
    if :: BUG == REVOKE_RAISES_MARK && p > mark[home[p]] -> mark[home[p]] = p :: else fi;
    JUDGE(revoke-exact, !live(p) || covered(p));
    for (i : 1 .. PROMPTS) {
        JUDGE(revoke-exact, i == p || untouched(i))
    }
    judge_idle(home[p]);
    judge()
}

/* R31: whom a stop is for: the active prompt, else the first that is still to enter, unless the session is held. */
#define find_target(s, keeps, by) \
    target = 0; \
    for (k : 1 .. PROMPTS) { \
        if \
        :: here(k, s) && state[k] == ACTIVE -> target = k \
        :: here(k, s) && state[k] == ACCEPTED && !keeps && \
           (target == 0 || (state[target] == ACCEPTED && ahead_by(by, k, target))) -> target = k \
        :: else \
        fi \
    }

inline stop(s, and_hold) {
    begin(s); if :: and_hold -> printf("stop(hold)") :: else -> printf("stop") fi; told_in(s);
    stops++;
    if :: and_hold -> told_to_wait[s] = true :: else fi;
    find_target(s, told_to_wait[s], place);
    if :: target -> reach[target] = by_cancel :: else fi;
    j = target;
    if :: and_hold -> held[s] = true :: else fi;
    find_target(s, held[s], front);
    if
    :: target == 0 || (BUG == STOP_MISSES_ACCEPTED && state[target] == ACCEPTED)
    :: else ->
        revoke_one(target, BUG == STOP_LEAVES_OPEN);
        if :: BUG == STOP_RAISES_MARK && target > mark[s] -> mark[s] = target :: else fi
    fi;
    JUDGE(stop-heard, !j || !live(j) || covered(j));
    for (i : 1 .. PROMPTS) {
        JUDGE(keeps-queue, i == j || untouched(i))
    }
    if :: and_hold :: else -> judge_idle(s) fi;
    judge()
}

/* R32 */
inline hold(s) {
    begin(s); printf("hold"); told_in(s);
    holds++;
    told_to_wait[s] = true;
    held[s] = true;
    for (k : 1 .. PROMPTS) {
        if :: BUG == HOLD_WITHDRAWS && here(k, s) && state[k] == ACTIVE -> settle_questions(k, false, false) :: else fi
    }
    judge()
}

inline resume(s) {
    begin(s); printf("resume"); told_in(s);
    told_to_wait[s] = false;
    held[s] = false;
    ask_busy(s);
    if :: !busy && BUG != RESUME_STRANDS -> hand_off(s) :: else fi;
    judge()
}

/* R33 */
inline replace(p) {
    begin(home[p]); printf("replace(%c)", NAME(p)); told_in(home[p]);
    replaces++;
    wanted[p]++;
    version[p]++;
    JUDGE(edited, !ran[p] && !reach[p]);
    judge()
}

/* R34 */
inline next(p) {
    begin(home[p]); printf("next(%c)", NAME(p)); told_in(home[p]);
    nexts++;
    move_to_front(place, p);
    move_to_front(front, p);
    judge()
}

#if ASK
/* The first question of the prompt in this state; 0: not asked yet. */
inline find_question(p, in_state) {
    first = 0;
    for (k : 1 .. MOST) {
        if :: !first && question[NUMBERED(p, k)] == in_state -> first = NUMBERED(p, k) :: else fi
    }
}

/* R36a */
inline ask_question(p) {
    begin(home[p]); printf("ask(%c)", NAME(p)); told_in(home[p]);
    questions++;
    find_question(p, 0);
    question[first] = OPEN; called[first] = OPEN; seen_open[first] = true; asks = true;
    judge()
}

inline give_answer(q, how) {
    answered[q] = how; publish_end_of(q)
}

/* R36b, R36c */
inline answer(p, n, how) {
    begin(home[p]);
    if
    :: how == ALLOWED -> printf("answer(%c, %d allow)", NAME(p), n)
    :: else -> printf("answer(%c, %d deny)", NAME(p), n)
    fi;
    told_in(home[p]);
    answers = NUMBERED(p, n); given = how;
    if :: called[answers] == OPEN -> called[answers] = how :: else fi;
    if
    :: BUG == ANSWERS_WHAT_IS_OPEN ->
        find_question(p, OPEN);
        if :: first -> question[first] = how; give_answer(first, how) :: else fi
    :: BUG == LATE_ANSWER_CONFIRMED && question[answers] != OPEN -> give_answer(answers, how)
    :: else -> question[answers] = how; give_answer(answers, how)
    fi;
    if :: BUG == DENY_STOPS && how == DENIED -> revoke_one(p, false) :: else fi;
    judge()
}

/* R36d */
inline run_tool(p, n) {
    begin(home[p]); printf("run(%c, %d)", NAME(p), n); told_in(home[p]);
    called[NUMBERED(p, n)] = RAN;
    if :: BUG != PERMISSION_NOT_USED_UP -> question[NUMBERED(p, n)] = RAN :: else fi;
    tools[NUMBERED(p, n)]++; asks = true;
    judge()
}

/* R36f */
inline withdraw(p, n) {
    begin(home[p]); printf("withdraw(%c, %d)", NAME(p), n); told_in(home[p]);
    if :: called[NUMBERED(p, n)] == OPEN -> called[NUMBERED(p, n)] = WITHDRAWN :: else fi;
    question[NUMBERED(p, n)] = (BUG == TIMEOUT_ALLOWS -> ALLOWED : WITHDRAWN);
    publish_end_of(NUMBERED(p, n));
    judge()
}
#endif

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
#if ASK
    for (k : 0 .. QUESTIONS - 1) {
        if :: BUG == START_NOT_JOURNALED && question[k] == RAN -> question[k] = ALLOWED :: else fi
    }
#endif
    JUDGE(closed, closing == was_closing);
    judge()
}

/* R17: while the server is recovering every session is busy, so what was accepted lines up behind what was queued. */
inline recover() {
    begin(EVERYWHERE); printf("recover\n");
#if ASK
    recovers = true;
#endif
    for (i : 1 .. PROMPTS) {
        if
        :: state[i] == ACTIVE -> report_tools(i); settle_questions(i, false, false); end_as(i, error)
        :: state[i] == QUEUED && BUG == RECOVERY_FORGETS_QUEUE -> state[i] = 0
        :: else
        fi
    }
    if
    :: BUG == RECOVERY_FORGETS_MARK -> for (i : 0 .. SESSIONS - 1) { mark[i] = 0 }
    :: BUG == RECOVERY_FORGETS_HOLD -> for (i : 0 .. SESSIONS - 1) { held[i] = false }
    :: BUG == RECOVERY_FORGETS_TEXT -> for (i : 1 .. PROMPTS) { version[i] = 0 }
    :: BUG == RECOVERY_FORGETS_PLACE -> for (i : 1 .. PROMPTS) { front[i] = 0 }
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
                (!held[home[p]] || BUG == FOLDS_WHILE_HELD) && \
                (!SOME(to_enter, home[p]) || BUG == FOLDS_PAST_INTERRUPT) && SOME(foldable, home[p]) -> take_in(p) } \
    :: d_step { !down && state[p] == ACTIVE && !covered(p) && requeues < REQUEUES -> requeue(p) } \
    :: d_step { !down && state[p] == ACTIVE -> finish(p, end_turn) } \
    :: d_step { !down && state[p] == ACTIVE -> finish(p, error) } \
    :: d_step { !down && state[p] == ACTIVE && covered(p) -> finish(p, canceled) } \
    REVOKING(p) REPLACING(p) MOVING(p) ASKING(p)

#if REVOKE
#define REVOKING(p) :: d_step { !down && live(p) && revokes < REVOKES -> revoke(p) }
#else
#define REVOKING(p)
#endif
#define waiting(p) ((state[p] == ACCEPTED || state[p] == QUEUED) && !covered(p))
#if REPLACE
#define REPLACING(p) :: d_step { !down && waiting(p) && (!begun[p] || BUG == REPLACES_WHAT_BEGAN) && \
                                 replaces < REPLACES -> replace(p) }
#else
#define REPLACING(p)
#endif
#if NEXT
#define MOVING(p) :: d_step { !down && waiting(p) && nexts < NEXTS -> next(p) }
#else
#define MOVING(p)
#endif

#if ASK
#define takes_answer(q) (question[q] == OPEN || (BUG == LAST_ANSWER_WINS && is_unsettled(question[q])) || \
                         (BUG == LAST_ANSWER_WINS && question[q] == DENIED) || \
                         (BUG == ANSWERS_WHAT_IS_OPEN && question[q]) || (BUG == LATE_ANSWER_CONFIRMED && question[q]))
#define may_run(q)      (question[q] == ALLOWED || (BUG == RUNS_WHILE_OPEN && question[q] == OPEN))
#define ASKING(p) \
    :: d_step { !down && state[p] == ACTIVE && (!covered(p) || BUG == CANCELED_TURN_ASKS) && \
                !question[NUMBERED(p, MOST)] && questions < ASKS -> ask_question(p) } \
    ON_QUESTION(p, 1) ON_QUESTION(p, 2)
#define ON_QUESTION(p, n) \
    :: d_step { !down && takes_answer(NUMBERED(p, n)) -> answer(p, n, ALLOWED) } \
    :: d_step { !down && takes_answer(NUMBERED(p, n)) -> answer(p, n, DENIED) } \
    :: d_step { !down && may_run(NUMBERED(p, n)) -> run_tool(p, n) } \
    :: d_step { !down && question[NUMBERED(p, n)] == OPEN -> withdraw(p, n) }
#else
#define ASKING(p)
#endif

#define IN_SESSION(s) \
    :: d_step { !down && (!closing || BUG == ACCEPTS_WHILE_CLOSING) && seq < PROMPTS -> accept(s, false, queue) } \
    :: d_step { !down && (!closing || BUG == ACCEPTS_WHILE_CLOSING) && seq < PROMPTS -> accept(s, true, queue) } \
    :: d_step { !down && cancels < CANCELS -> cancel(s) } \
    :: d_step { !down && clears < CLEARS -> clear_queue(s) } \
    INTERRUPTING(s) REJECTING(s) STOPPING(s) STOPPING_AND_HOLDING(s) HOLDING(s)

#if INTERRUPT
#define INTERRUPTING(s) :: d_step { !down && !closing && seq < PROMPTS -> accept(s, false, interrupt) }
#else
#define INTERRUPTING(s)
#endif
#define unfinished(p, s) (here(p, s) && live(p))
#define running(p, s)    (here(p, s) && state[p] == ACTIVE)
#if REJECT
#define REJECTING(s) \
    :: d_step { !down && !closing && seq < PROMPTS && (!held[s] || BUG == REJECT_FORGETS_HOLD) && \
                !(BUG == REJECT_ASKS_BUSY -> SOME(running, s) : SOME(unfinished, s)) -> accept(s, false, reject) }
#else
#define REJECTING(s)
#endif
#if STOP
#define STOPPING(s) :: d_step { !down && stops < STOPS -> stop(s, false) }
#else
#define STOPPING(s)
#endif
#if STOP && HOLD
#define STOPPING_AND_HOLDING(s) :: d_step { !down && stops < STOPS -> stop(s, true) }
#else
#define STOPPING_AND_HOLDING(s)
#endif
#if HOLD
#define HOLDING(s) \
    :: d_step { !down && holds < HOLDS -> hold(s) } \
    :: d_step { !down && (held[s] || IDLE_RESUMES) -> resume(s) }
#else
#define HOLDING(s)
#endif

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
