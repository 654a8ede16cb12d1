"""Our own runtime, and servers on the wire, behind the adapters of the conformance kit."""
