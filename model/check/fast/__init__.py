"""The fast engine of the search: the same states in the same order, on machine words. Needs numba."""
