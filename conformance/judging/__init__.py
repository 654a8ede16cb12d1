"""From what was seen of a server to what it breaks, and to what was put to the test."""
