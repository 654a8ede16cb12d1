"""The protocol as a game in the terminal: one step at a time, and questions about it."""
