"""Statistics of seeds: exact intervals, paired tests, corrections and spread. Nothing in here knows pytest.

:mod:`~pytest_microsim.statistics.intervals`, :mod:`~pytest_microsim.statistics.shares` and
:mod:`~pytest_microsim.statistics.corrections` need nothing beside Python. The rest computes with numpy, which the extra
``pytest-microsim[baselines]`` brings.
"""
