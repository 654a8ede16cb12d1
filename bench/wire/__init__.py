"""The server over HTTP, as its clients find it."""
