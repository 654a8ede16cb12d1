"""The conformance kit at work: our runtime and servers on the wire behind its adapters, and `cancelmark conform`."""
