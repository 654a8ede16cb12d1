"""What the course needs besides: recordings and their pictures, predictions, hidden bugs, the race as an animation."""
