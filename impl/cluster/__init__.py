"""Several servers on one database: who owns a session, what the others may do in it, and what happens when one dies.

Any node takes the calls of clients, in any session. A session that is busy has one owner, which runs its turns; the
owner looks at what is stored, and does what that asks for, whoever has written it. A node that dies loses its sessions
to others, and nothing that it writes later counts.
"""
