"""Adapters of the conformance kit for known wire protocols: ours, ACP, A2A and LangGraph."""
