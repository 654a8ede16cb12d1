"""From the observations of a server to the guarantees that they break, and those that they test."""
