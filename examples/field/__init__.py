"""Black-box tests of third-party agents and servers: `make field`."""
