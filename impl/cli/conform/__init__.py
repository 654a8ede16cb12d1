"""`cancelmark conform`: which guarantees does a server, or an agent, keep?"""
