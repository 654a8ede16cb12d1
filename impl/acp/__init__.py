"""The Agent Client Protocol: JSON-RPC over standard input and output, between an editor and an agent."""
