"""An unbounded proof: the guarantees hold for any number of prompts, cancels, sessions and crashes.

The explorer visits every state within bounds. The proof enumerates no states. A state is a set of functions over an
*uninterpreted* sort of prompts, and an invariant is a list of named formulas (conjuncts) about a state. An SMT solver
shows that the invariant holds initially (initiation), that every action preserves it (consecution), and that each
guarantee follows from it. This is the third formulation of the protocol. Like the Promela model it is written from
specs/protocol.md, and it shares no code with the other two.

- `logic`           the universe of prompts and sessions, and states over it
- `actions`         the actions of the protocol
- `invariant`       the invariant, and the claims that make up each guarantee
- `steps`           the properties of each step
- `instances`       reduction of questions about any number of prompts to quantifier-free questions
- `prover`          the proof obligations and their verdicts
- `counterexample`  display of a violated obligation

Needs z3-solver: the extra `prove`.
"""
