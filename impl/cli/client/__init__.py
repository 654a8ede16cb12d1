"""Commands for a server that runs: to send, watch, cancel, hold and edit prompts."""
