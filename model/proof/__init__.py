"""A proof without a bound: the guarantees hold for any number of prompts, cancels, sessions and crashes.

The explorer sees every state within bounds. Here nothing is enumerated. A state is a handful of functions of an
*uninterpreted* set of prompts; an invariant is a list of named sentences about such a state; and a solver shows that
the invariant holds at the start (initiation), that every action leads from a state in which it holds to one in which
it holds (consecution), and that each guarantee follows. This is the third statement of the protocol, written from
specs/protocol.md like the Promela model, and it shares no code with the other two.

- `logic`           the universe of prompts and sessions, and a state over it
- `actions`         what can happen
- `invariant`       what always holds, and which guarantees that amounts to
- `steps`           what each step must respect
- `instances`       from questions about any number of prompts to questions without a quantifier
- `prover`          the obligations and their verdicts
- `counterexample`  what a broken obligation looks like
- `fence`           several servers: at most one turn counts, for any number of nodes

Needs z3-solver: the extra `prove`.
"""
