"""Tools for the course: recordings and their diagrams, predictions, hidden bugs, and the race as an animation."""
