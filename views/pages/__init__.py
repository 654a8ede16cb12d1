"""Markdown tables, and cluster histories as text and as diagrams."""
