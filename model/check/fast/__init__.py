"""The fast engine: visits the same states in the same order, encoded as machine words. Needs a C compiler."""
