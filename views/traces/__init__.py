"""One trace for people and tools: text, sequence diagrams, chain, ITF, and why its last step is wrong."""
