"""The conformance kit at work: our own runtime and servers on the wire behind its adapters, and `cancelmark conform`."""
