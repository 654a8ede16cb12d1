"""Several servers on one database: which one owns a session, what the others may do, and what happens when one dies.

Any node takes clients' calls, for any session. A busy session has one owner, which runs its turns: it reconciles them
with what is stored, whichever node has written that. Other nodes take over the sessions of a node that dies, and the
fence rejects whatever it writes later.
"""
