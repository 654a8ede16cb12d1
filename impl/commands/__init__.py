"""What people do with a running server: run, send, cancel, queue and watch. Each finds the server by itself.

What only they need is imported when they run, so that the other commands start as quickly as before.
"""
