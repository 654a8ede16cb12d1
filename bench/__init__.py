"""What is measured, and how to measure it again: `cancelmark bench`, one module a subject."""
