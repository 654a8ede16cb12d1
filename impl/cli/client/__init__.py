"""Client commands: send, watch, cancel, hold and edit prompts on a running server."""
