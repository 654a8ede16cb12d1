"""The review: every check, and one page that shows what was found and lets the reader play it."""
