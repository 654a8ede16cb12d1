"""Other protocols than the reference, as values: what others do, and what one could get wrong."""
