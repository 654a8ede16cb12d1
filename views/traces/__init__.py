"""One trace for people and tools: text, timeline, sequence diagram, chain, ITF, and why its last step is wrong."""
