"""Verdicts over whole groups of seeds. Pure mathematics: nothing in here knows pytest."""
