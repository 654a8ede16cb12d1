"""The server: workspaces over HTTP and server-sent events. specs/wire.md has its calls."""
