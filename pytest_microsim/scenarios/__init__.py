"""Scenario files: tests written as YAML. Only :mod:`.collection` and :mod:`.running` know pytest."""
