/* The fast explorer's inner loops: states are words, and what they can do is looked up in tables.

   Nothing here knows the protocol. `tables.py` works out, with the protocol's own rows and actions, what each session
   can do; the loops only add up words and remember which they have met. No function calls the system or another
   library, allocates, or shares anything that it writes: several threads can work on one search, as `kernel.py` has
   them do. */

#include <stdint.h>

#ifdef __TINYC__
#define __builtin_prefetch(...)
#endif

typedef uint64_t Word;

/* What applies to words with (word & need) == want. */
typedef struct {
    Word need, want;
    uint32_t moves, moves_end;
    uint32_t unrest; /* what unfinished prompts break at rest: a bit for each property */
    uint16_t quiet;  /* whether the session is at rest */
    uint16_t urgent; /* whether its moves are made before anything else happens */
} Case;

/* Possible for words with word & left; leads to (word & keep) + add. */
typedef struct {
    Word left, keep, add;
    uint32_t shows;      /* the number of what it shows */
    uint16_t changes;    /* whether it changes the session */
    uint16_t everywhere; /* the number of an action that happens in all sessions at once, or 0 */
} Move;

/* What the words mean and what they can do. */
typedef struct {
    int64_t sessions, low, session_bits, prompts, ends, end_bits, symmetric;
    int32_t *case_of; /* by session, and its number, seq and closing: its first case; 0: not tabled yet */
    const Case *cases;
    const Move *moves;
    const uint32_t *unrest_of_end; /* by end and run id: what the prompt breaks at rest */
    int64_t at_rest;               /* properties that are judged at rest */
} Plan;

/* Where things were first seen, as the place of the state in the order in which states are met; -1: nowhere. */
typedef struct {
    int64_t *shown, *unrest;
    int64_t *crossed; /* by the number of an action everywhere, closing, and the sessions that it changed */
} Seen;

/* The set: 2^bits places, of which each of 2^part_bits parts is filled by one thread. 0 is an empty place. */
typedef struct {
    Word *places;
    int64_t bits, part_bits;
} Set;

#define AHEAD 24     /* words from asking for a place in memory until it is looked at */
#define BLOCK 256    /* states that one thread expands before it looks up what they led to */
#define MOST 1024    /* moves of a word */
#define SESSIONS 8   /* more do not fit into a word */
#define RECENT 10    /* bits of a place among the words that were led to last */

static inline Word spread(Word word) { return word * 11400714819323198485u; } /* 2^64 by the golden ratio, odd */

/* The word with its sessions in order of their numbers, and the ends of finished prompts moved with them. */
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

/* What happens in all sessions at once; 0 if it is not possible in one of them. */
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

/* Notes what is broken if the system is at rest in this word. */
static void judge_rest(const Plan *plan, const Seen *seen, Word word, uint32_t broken, int64_t at) {
    for (int64_t p = 0; p < plan->prompts; p++) {
        const Word end = word >> (plan->ends + p * plan->end_bits) & (((Word)1 << plan->end_bits) - 1);
        broken |= plan->unrest_of_end[2 * end + (word >> (plan->ends - plan->prompts + p) & 1)];
    }
    for (int64_t p = 0; broken && p < plan->at_rest; p++)
        if (broken >> p & 1) note(&seen->unrest[p], at);
}

/* Writes what the word at this place leads to, in the order of the model's `changes`; returns the end of what it has
   written, or 0 if an action that happens everywhere is not possible in all sessions. */
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

/* Drops the words that were led to a little while ago, as half of them were: they are in the set, or on their way there.
   `recent` has a place for each of 2^RECENT words, which the processor has at hand. Returns the end of what is left. */
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

/* Puts words into the set. With `kept`, those that were there already become 0 where they are; otherwise the new ones
   are written to `out`. Returns how many are new. */
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

/* Goes on with a breadth-first search: `words` in the order in which they are met, `pending` for what a block leads to.
   `progress` is how many have been expanded, how many there are, and the edges seen. It stops when `end` words have
   been expanded or `room` words have been met. Returns 0, or -1 if an action that happens everywhere is not possible
   in all sessions. */
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

/* --- several threads, in three rounds: each expands a share of the words, each looks up what falls into its part of
   the set, and each collects what is new from its share. So words are met in the same order as by one thread. */

/* What the words from `at` to `end` lead to, but for what is dropped, by parts, and for each in which part it is. `outs`
   is where each part is written to, and afterwards where it ends. Returns the edges, or -1 as `search` does. */
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

/* Puts words into the set; those that were there already become 0. Returns how many are new. */
int64_t put(const Set *set, Word *words, int64_t count) { return put_in(set, words, count, words, 1); }

/* Writes the words that are new, in the order in which they were met. */
void collect(Word **parted, const uint8_t *parts, int64_t new, Word *words) {
    for (Word *end = words + new; words < end;) {
        const Word word = *parted[*parts++]++;
        *words = word;
        words += word != 0;
    }
}

/* --- besides */

/* Collects what sessions of these words are not tabled yet, each once, as session << 32 | index: `room` at most. */
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
            *first = -1; /* once is enough */
            found[count++] = i << 32 | index;
        }
    }
    return count;
}

/* For each of the words that are `wanted`, in ascending order: the first place from `at` to `end` that leads to it. */
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

/* Puts words that are all different into an empty set. */
void refill(const Set *set, const Word *words, int64_t count) {
    Word new[BLOCK + 1];
    for (int64_t at = 0; at < count; at += BLOCK)
        put_in(set, words + at, count - at < BLOCK ? count - at : BLOCK, new, 0);
}
