"""pytest hooks."""
