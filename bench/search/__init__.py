"""The explorer, beside another tool, an earlier version and a peer."""
