"""States and the ways between them: of one prompt, of a session, and of everything that a search has reached."""
