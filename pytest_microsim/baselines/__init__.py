"""Baselines: what each seed of a test gave, kept beside the test, and compared with what it gives now.

:mod:`~pytest_microsim.baselines.session` knows pytest; nothing else in here does.
"""
