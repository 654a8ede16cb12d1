"""Whether a log of a server is a behaviour of the model."""
