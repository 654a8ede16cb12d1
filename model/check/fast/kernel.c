/* The fast explorer's inner loops: states are words, and their moves are looked up in tables.

   This file knows nothing about the protocol. `tables.py` computes each session's moves with the protocol's own rows
   and actions; the loops only add words and remember which they have visited. No function makes system calls, calls
   another library, allocates memory, or shares anything that it writes. Several threads can therefore work on one
   search, as in `kernel.py`. */

#include <stdint.h>

#ifdef __TINYC__
#define __builtin_prefetch(...)
#endif

typedef uint64_t Word;

/* A case applies to words with (word & need) == want. */
typedef struct {
    Word need, want;
    uint32_t moves, moves_end;
    uint32_t unrest; /* liveness properties that unfinished prompts violate at quiescence, one bit each */
    uint16_t quiet;  /* whether the session is quiescent */
    uint16_t urgent; /* whether its moves are taken at once, before all others */
} Case;

/* A move is possible for words with word & left, and leads to (word & keep) + add. */
typedef struct {
    Word left, keep, add;
    uint32_t shows;      /* the number of its set of violations and goals */
    uint16_t changes;    /* whether it changes the session */
    uint16_t everywhere; /* the number of an action on all sessions at once, or 0 */
} Move;

/* The layout of words, and the tables. */
typedef struct {
    int64_t sessions, low, session_bits, prompts, ends, end_bits, symmetric;
    int32_t *case_of; /* by session, and its number, seq and closing: its first case; 0: not tabulated yet */
    const Case *cases;
    const Move *moves;
    const uint32_t *unrest_of_end; /* by end and run id: the liveness properties that the prompt violates */
    int64_t at_rest;               /* the number of liveness properties */
} Plan;

/* Where each violation and goal was first seen, as the index of the state in visiting order; -1: never. */
typedef struct {
    int64_t *shown, *unrest;
    int64_t *crossed; /* by the number of an action on all sessions, closing, and the sessions that it changed */
} Seen;

/* The set: a hash table of 2^bits slots in 2^part_bits partitions, each filled by one thread. 0 is an empty slot. */
typedef struct {
    Word *places;
    int64_t bits, part_bits;
} Set;

#define AHEAD 24     /* prefetch distance, in words */
#define BLOCK 256    /* states that one thread expands before it looks up their successors */
#define MOST 1024    /* maximum number of moves of a word */
#define SESSIONS 8   /* more do not fit into a word */
#define RECENT 10    /* the cache of recent successors has 2^RECENT slots */

static inline Word spread(Word word) { return word * 11400714819323198485u; } /* 2^64 by the golden ratio, odd */

/* The word with its sessions sorted by number, and the ends of finished prompts reassigned accordingly. */
Word canonical(const Plan *plan, Word word) {
    const int64_t bits = plan->session_bits, end_bits = plan->end_bits, sessions = plan->sessions;
    const Word mask = ((Word)1 << bits) - 1;
    for (int64_t i = 1; i < sessions; i++) {
        for (int64_t j = i; j > 0; j--) {
            const int64_t right = plan->low + j * bits, left = right - bits;
            const Word a = word >> left & mask, b = word >> right & mask;
            if (a <= b) break;
            word += ((a - b) << right) - ((a - b) << left);
            for (int64_t p = 0; p < plan->prompts && end_bits; p++) {
                const int64_t at = plan->ends + p * end_bits;
                const Word end = word >> at & (((Word)1 << end_bits) - 1);
                if (!end) continue;
                const int64_t session = (int64_t)(end - 1) % sessions; /* ends are numbered by kind, then by session */
                if (session == j - 1) word += (Word)1 << at;
                else if (session == j) word -= (Word)1 << at;
            }
        }
    }
    return word;
}

static inline const Case *find_case(const Plan *plan, Word word, int64_t session) {
    const Word number = word >> (plan->low + session * plan->session_bits) & (((Word)1 << plan->session_bits) - 1);
    const Word index = number << plan->low | (word & (((Word)1 << plan->low) - 1));
    const Case *found = plan->cases
        + plan->case_of[((Word)session << (plan->session_bits + plan->low)) + index];
    while ((word & found->need) != found->want) found++;
    return found;
}

static inline void note(int64_t *first, int64_t at) {
    if (*first < 0) *first = at;
}

/* The successor by an action on all sessions at once; 0 if a session does not allow it. */
static Word happen_everywhere(
    const Plan *plan, const Seen *seen, const Case *const *cases, const Move *move, Word word, int64_t at) {
    Word after = (word & move->keep) + move->add;
    Word changed = move->changes;
    for (int64_t j = 1; j < plan->sessions; j++) {
        const Move *other = plan->moves + cases[j]->moves, *last = plan->moves + cases[j]->moves_end;
        while (other < last && other->everywhere != move->everywhere) other++;
        if (other == last) return 0;
        after = (after & other->keep) + other->add;
        changed |= (Word)other->changes << j;
        note(&seen->shown[other->shows], at);
    }
    note(&seen->crossed[(2 * (Word)move->everywhere + (word & 1)) << plan->sessions | changed], at);
    return after;
}

/* Records the liveness violations if the system is quiescent in this word. */
static void judge_rest(const Plan *plan, const Seen *seen, Word word, uint32_t broken, int64_t at) {
    for (int64_t p = 0; p < plan->prompts; p++) {
        const Word end = word >> (plan->ends + p * plan->end_bits) & (((Word)1 << plan->end_bits) - 1);
        broken |= plan->unrest_of_end[2 * end + (word >> (plan->ends - plan->prompts + p) & 1)];
    }
    for (int64_t p = 0; broken && p < plan->at_rest; p++)
        if (broken >> p & 1) note(&seen->unrest[p], at);
}

/* Writes the successors of the word at this index, in the order of the model's `changes`. Returns the end of the
   output, or 0 if a session does not allow an action on all sessions. */
static inline __attribute__((always_inline)) Word *lead_on(
    const Plan *plan, const Seen *seen, Word word, int64_t at, Word *out, const int several) {
    const Case *cases[SESSIONS];
    const int64_t sessions = several ? plan->sessions : 1;
    int64_t only = -1;
    uint32_t broken = 0;
    int quiet = 1;
    for (int64_t i = 0; i < sessions; i++) {
        cases[i] = find_case(plan, word, i);
        quiet &= cases[i]->quiet;
        broken |= cases[i]->unrest;
        if (several && only < 0 && cases[i]->urgent) only = i;
    }
    for (int64_t i = 0; i < sessions; i++) {
        if (several && only >= 0 && i != only) continue;
        const Move *last = plan->moves + cases[i]->moves_end;
        for (const Move *move = plan->moves + cases[i]->moves; move < last; move++) {
            if (!(word & move->left)) continue;
            Word after = (word & move->keep) + move->add;
            if (several) {
                if (move->everywhere) {
                    if (i) continue;
                    after = happen_everywhere(plan, seen, cases, move, word, at);
                    if (!after) return 0;
                }
                if (plan->symmetric) after = canonical(plan, after);
            }
            note(&seen->shown[move->shows], at);
            *out++ = after;
        }
    }
    if (quiet) judge_rest(plan, seen, word, broken, at);
    return out;
}

/* Drops recent successors, about half of all: they are already in the set, or on their way there. `recent` is a table
   of 2^RECENT slots that fits into the processor's cache. Returns the end of the remaining words. */
static inline Word *drop_recent(Word *recent, Word *words, const Word *end) {
    Word *out = words;
    for (; words < end; words++) {
        const Word word = *words;
        Word *place = recent + (spread(word) >> (64 - RECENT));
        if (*place == word) continue;
        *out++ = *place = word;
    }
    return out;
}

/* Inserts words into the set. With `kept`, duplicates become 0 in place; otherwise the new words are written to `out`.
   Returns the number of new words. */
static inline __attribute__((always_inline)) int64_t put_in(
    const Set *set, const Word *words, int64_t count, Word *out, const int kept) {
    const int shift = 64 - (int)set->bits;
    const Word mask = ((Word)1 << (set->bits - set->part_bits)) - 1;
    int64_t new = 0;
    for (int64_t i = 0; i < count; i++) {
        if (i + AHEAD < count) __builtin_prefetch(set->places + (spread(words[i + AHEAD]) >> shift), 1);
        const Word word = words[i];
        Word place = spread(word) >> shift, found;
        while ((found = set->places[place]) != word && found)
            place = (place & ~mask) | ((place + 1) & mask);
        if (kept) out[i] = found ? 0 : word;
        else out[new] = word;
        if (!found) {
            set->places[place] = word;
            new++;
        }
    }
    return new;
}

/* --- one thread */

/* Continues a breadth-first search. `words` are in visiting order; `pending` is a buffer for the successors of a block.
   `progress` has the numbers of words expanded, words visited, and edges. It stops when `end` words have been expanded
   or `room` words have been visited. Returns 0, or -1 if a session does not allow an action on all sessions. */
int64_t search(
    const Plan *plan, const Seen *seen, const Set *set, Word *words, Word *pending, int64_t *progress,
    int64_t end, int64_t room) {
    Word recent[1 << RECENT] = {0};
    int64_t at = progress[0], size = progress[1];
    while (at < end && size < room) {
        const int64_t last = end - at < BLOCK ? end : at + BLOCK;
        Word *out = pending;
        for (; at < last; at++) {
            const Word *end = plan->sessions == 1 ? lead_on(plan, seen, words[at], at, out, 0)
                                                  : lead_on(plan, seen, words[at], at, out, 1);
            if (!end) return -1;
            progress[2] += end - out;
            out = drop_recent(recent, out, end);
        }
        size += put_in(set, pending, out - pending, words + size, 0);
        progress[0] = at, progress[1] = size;
    }
    return 0;
}

/* --- several threads, in three rounds: each expands a share of the words, each looks up the successors in its own
   partition of the set, and each collects the new words of its share. The visiting order is that of a single thread. */

/* Writes the successors of the words from `at` to `end`, without the dropped ones, by partition, and the partition of
   each. `outs` has the start of each partition's output, and afterwards its end. Returns the number of edges, or -1 as
   `search` does. */
int64_t expand(
    const Plan *plan, const Seen *seen, const Set *set, const Word *words, int64_t at, int64_t end,
    Word **restrict outs, uint8_t *restrict parts) {
    Word pending[MOST], recent[1 << RECENT] = {0};
    int64_t edges = 0;
    for (; at < end; at++) {
        const Word *last = plan->sessions == 1 ? lead_on(plan, seen, words[at], at, pending, 0)
                                               : lead_on(plan, seen, words[at], at, pending, 1);
        if (!last) return -1;
        edges += last - pending;
        last = drop_recent(recent, pending, last);
        for (const Word *after = pending; after < last; after++) {
            const Word part = spread(*after) >> (64 - set->part_bits);
            *parts++ = (uint8_t)part;
            *outs[part]++ = *after;
        }
    }
    return edges;
}

/* Inserts words into the set; duplicates become 0. Returns the number of new words. */
int64_t put(const Set *set, Word *words, int64_t count) { return put_in(set, words, count, words, 1); }

/* Writes the new words in visiting order. */
void collect(Word **parted, const uint8_t *parts, int64_t new, Word *words) {
    for (Word *end = words + new; words < end;) {
        const Word word = *parted[*parts++]++;
        *words = word;
        words += word != 0;
    }
}

/* --- queries */

/* Collects the untabulated sessions of these words, each once, as session << 32 | index: at most `room`. */
int64_t find_untabled(const Plan *plan, const Word *words, int64_t at, int64_t end, Word *found, int64_t room) {
    const Word below = ((Word)1 << plan->low) - 1, mask = ((Word)1 << plan->session_bits) - 1;
    int64_t count = 0;
    for (; at < end; at++) {
        for (Word i = 0; i < (Word)plan->sessions; i++) {
            const Word number = words[at] >> (plan->low + i * plan->session_bits) & mask;
            const Word index = number << plan->low | (words[at] & below);
            int32_t *first = &plan->case_of[(i << (plan->session_bits + plan->low)) + index];
            if (*first) continue;
            if (count == room) return count;
            *first = -1; /* report it only once */
            found[count++] = i << 32 | index;
        }
    }
    return count;
}

/* For each `wanted` word, in ascending order: the index of its first predecessor between `at` and `end`. */
void find_parents(
    const Plan *plan, const Seen *seen, const Word *words, int64_t at, int64_t end, const Word *wanted, int64_t count,
    int64_t *found) {
    Word pending[MOST];
    for (; at < end; at++) {
        const Word *last = plan->sessions == 1 ? lead_on(plan, seen, words[at], at, pending, 0)
                                               : lead_on(plan, seen, words[at], at, pending, 1);
        for (const Word *after = pending; after < last; after++) {
            int64_t low = 0, high = count;
            while (low < high) {
                const int64_t middle = (low + high) / 2;
                if (wanted[middle] < *after) low = middle + 1;
                else high = middle;
            }
            if (low < count && wanted[low] == *after) note(&found[low], at);
        }
    }
}

/* Inserts distinct words into an empty set. */
void refill(const Set *set, const Word *words, int64_t count) {
    Word new[BLOCK + 1];
    for (int64_t at = 0; at < count; at += BLOCK)
        put_in(set, words + at, count - at < BLOCK ? count - at : BLOCK, new, 0);
}
