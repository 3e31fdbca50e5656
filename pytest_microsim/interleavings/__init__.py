"""The race finder: one seed under many schedules of a deterministic machine's threads."""
