"""Running scripts on a server: what clients do, and what they observe."""
