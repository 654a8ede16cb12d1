"""The fast explorer's inner loop, compiled: states are words, and what they can do is looked up in tables.

Nothing here knows the protocol. `tables` works out, with the protocol's own rows and actions, what each session can do;
the loop only adds up words and remembers which it has met. numba compiles it at its first use on a machine and keeps
the result, beside this file or in the user's cache directory.

One long function, on purpose: numba counts references to an array whenever it is handed to another function, which in
the loop would cost more than everything that is done there.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

Words = NDArray[np.int64]

# Columns of `Plan.cases`: it applies to words with (word & NEED) == WANT; its moves; what unfinished prompts break at
# rest; whether the session is at rest; whether its moves are made before anything else happens.
NEED, WANT, MOVES, MOVES_END, UNREST, QUIET, URGENT, CASE = range(8)
# Columns of `Plan.moves`: possible for words with word & LEFT; leads to (word & KEEP) + ADD; what it shows; and INFO:
LEFT, KEEP, ADD, SHOWS, INFO, MOVE = range(6)
CHANGES, EVERYWHERE = 1, 2  # from EVERYWHERE on: the number of an action that happens in all sessions

# Why a word cannot be expanded: one of its sessions is not in the tables yet, or an action that happens everywhere is
# not possible in all sessions.
NOT_TABLED, NOT_EVERYWHERE = -1, -2

U = np.uint64  # an index that cannot be negative, so that nobody looks whether it is
LAG = 48  # words that wait to be looked up
MULTIPLIER = -7046029254386353131  # 2^64 divided by the golden ratio, odd: spreads words over the set


class Plan(NamedTuple):
    """What the words mean and what they can do. The last three are written to: where things were first seen, as the
    place of the state in the order in which states are met."""

    sessions: int
    low: int
    session_bits: int
    prompts: int
    ends: int  # where the ends begin
    end_bits: int
    symmetric: bool
    cases_of: NDArray[np.int32]  # by session, and its number, seq and closing: its first case; 0: not tabled yet
    cases: Words
    moves: Words
    most: int  # moves that a word can have
    unrest_of_end: Words  # by end and run id: what the prompt breaks at rest
    shown: Words
    crossed: Words  # by the number of an action everywhere, closing, and the sessions that it changed
    unrest: Words


def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Asks the processor to have this item of the array at hand soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        ask = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, number, number, number]))
        options = [ir.Constant(number, n) for n in (1, 3, 1)]  # to be written, to be kept, data
        builder.call(ask, [builder.bitcast(builder.gep(data, [arguments[1]]), pointer), *options])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


prefetch: Any = intrinsic(_prefetch)


def _canonical(
    word: int, sessions: int, low: int, session_bits: int, prompts: int, ends: int, end_bits: int,
) -> int:
    """The word with its sessions in order of their numbers, and the ends of finished prompts moved with them."""
    for i in range(1, sessions):
        for j in range(i, 0, -1):
            right = low + j * session_bits
            left = right - session_bits
            difference = (word >> left & (1 << session_bits) - 1) - (word >> right & (1 << session_bits) - 1)
            if difference <= 0:
                break
            word += (difference << right) - (difference << left)
            if word >> ends & (1 << prompts * end_bits) - 1:
                for p in range(prompts):
                    at = ends + p * end_bits
                    end = (word >> at & (1 << end_bits) - 1) - 1  # ends are numbered by kind, then by session
                    if end >= 0 and end % sessions == j - 1:
                        word += 1 << at
                    elif end >= 0 and end % sessions == j:
                        word -= 1 << at
    return word


canonical = njit(cache=True)(_canonical)


def _compile_search(several: bool) -> Any:
    """The search of one session, or of several: which of the two is known when it is compiled."""

    def search(
        plan: Plan, words: Words, table: Words, progress: Words, end: int, room: int, wanted: Words, found: Words,
    ) -> int:
        (sessions, low, session_bits, prompts, ends, end_bits, symmetric, cases_of, cases, moves, most, unrest_of_end,
         shown, crossed, unrest) = plan
        at, size = progress[0], progress[1]
        adding = len(wanted) == 0
        mask = len(table) - 1
        shift = 64
        while mask >> 64 - shift:
            shift -= 1
        below_mask, number_mask, end_mask = (1 << low) - 1, (1 << session_bits) - 1, (1 << end_bits) - 1
        case_of = np.empty(sessions, np.int64)
        waiting = 1
        while waiting < LAG + most:
            waiting *= 2
        pending = np.empty(waiting, np.int64)
        came = went = 0
        result = 0
        going = True
        while going or went < came:
            going = result == 0 and at < end and size < room
            if going:
                # Which case applies to each session.
                word = words[U(at)]
                below = word & below_mask
                only = -1
                quiet = 1
                case = np.int64(0)
                for i in range(sessions if several else 1):
                    number = word >> low + i * session_bits & number_mask
                    case = np.int64(cases_of[U(i), U(number << low | below)])
                    if case == 0:
                        result = NOT_TABLED
                        break
                    while word & cases[U(case + NEED)] != cases[U(case + WANT)]:
                        case += CASE
                    quiet &= cases[U(case + QUIET)]
                    if several:
                        case_of[U(i)] = case
                        if only < 0 and cases[U(case + URGENT)]:
                            only = i
                if result:
                    continue

                # What the word leads to.
                for i in range(sessions if several else 1):
                    if several:
                        if only >= 0 and i != only:
                            continue
                        case = case_of[U(i)]
                    for move in range(cases[U(case + MOVES)], cases[U(case + MOVES_END)], MOVE):
                        if word & moves[U(move + LEFT)] == 0:
                            continue
                        after = (word & moves[U(move + KEEP)]) + moves[U(move + ADD)]
                        if several:
                            info = moves[U(move + INFO)]
                            if info >= EVERYWHERE:
                                if i > 0:
                                    continue
                                changed = info & CHANGES
                                for j in range(1, sessions):
                                    other = cases[U(case_of[U(j)] + MOVES)]
                                    last = cases[U(case_of[U(j)] + MOVES_END)]
                                    while other < last and moves[U(other + INFO)] // EVERYWHERE != info // EVERYWHERE:
                                        other += MOVE
                                    if other == last:
                                        result = NOT_EVERYWHERE
                                        break
                                    after = (after & moves[U(other + KEEP)]) + moves[U(other + ADD)]
                                    changed |= (moves[U(other + INFO)] & CHANGES) << j
                                    if shown[U(moves[U(other + SHOWS)])] < 0:
                                        shown[U(moves[U(other + SHOWS)])] = at
                                if crossed[info // EVERYWHERE, word & 1, changed] < 0:
                                    crossed[info // EVERYWHERE, word & 1, changed] = at
                            if symmetric:
                                after = canonical(after, sessions, low, session_bits, prompts, ends, end_bits)
                        if shown[U(moves[U(move + SHOWS)])] < 0:
                            shown[U(moves[U(move + SHOWS)])] = at
                        prefetch(table, after * MULTIPLIER >> shift & mask)
                        pending[U(came & waiting - 1)] = after
                        came += 1

                # What is broken if it is at rest.
                if quiet:
                    broken = 0
                    for i in range(sessions):
                        broken |= cases[U((case_of[U(i)] if several else case) + UNREST)]
                    for p in range(prompts):
                        kind = word >> ends + p * end_bits & end_mask
                        broken |= unrest_of_end[2 * kind + (word >> ends - prompts + p & 1)]
                    if broken:
                        for p in range(len(unrest)):
                            if broken >> p & 1 and unrest[p] < 0:
                                unrest[p] = at
                at += 1

            # Words are looked up a little later, when the memory at their place in the set is at hand.
            while came - went > (LAG if going and adding else 0):
                after = pending[U(went & waiting - 1)]
                went += 1
                if adding:
                    place = after * MULTIPLIER >> shift & mask
                    while table[U(place)] != after:
                        if table[U(place)] == 0:
                            table[U(place)] = words[U(size)] = after
                            size += 1
                        else:
                            place = place + 1 & mask
                else:
                    place = np.searchsorted(wanted, after)
                    if place < len(wanted) and wanted[place] == after and found[place] < 0:
                        found[place] = at - 1
        progress[0], progress[1] = at, size
        progress[2] += came
        return result

    return njit(cache=True)(search)


search_one, search_several = _compile_search(several=False), _compile_search(several=True)


def search(
    plan: Plan, words: Words, table: Words, progress: Words, end: int, room: int, wanted: Words, found: Words,
) -> int:
    """Goes on with a breadth-first search: `words` in the order in which they were met, `table` the set of them.

    `progress` is how many have been expanded, how many there are, and the edges seen. It stops when `end` words have
    been expanded, or `room` words have been met. The order is that of the model's `changes`.

    If any words are `wanted` (sorted), no words are added: then `found` is, for each, the first that leads to it.
    """
    chosen = search_one if plan.sessions == 1 else search_several
    stopped: int = chosen(plan, words, table, progress, end, room, wanted, found)
    return stopped


def _refill(words: Words, size: int, table: Words) -> None:
    """Puts the words into an empty set."""
    mask = len(table) - 1
    shift = 64
    while mask >> 64 - shift:
        shift -= 1
    for i in range(size):
        prefetch(table, words[min(i + LAG, size - 1)] * MULTIPLIER >> shift & mask)
        place = words[i] * MULTIPLIER >> shift & mask
        while table[place] != 0:
            place = place + 1 & mask
        table[place] = words[i]


refill = njit(cache=True)(_refill)
