"""`cancelmark conform`: test which guarantees a server or an agent keeps."""
