"""The runtime, the server, the clients and the command line: everything that does I/O."""
