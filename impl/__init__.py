"""What runs: the command line, and everything that touches the world."""
