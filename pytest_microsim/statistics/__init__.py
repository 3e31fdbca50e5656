"""Statistics of seeds: intervals, paired tests, corrections and spread. Nothing in here knows pytest.

:mod:`~pytest_microsim.statistics.intervals` and :mod:`~pytest_microsim.statistics.corrections` need nothing beside
Python; the rest computes with numpy and scipy, which the extra ``pytest-microsim[baselines]`` brings.
"""
