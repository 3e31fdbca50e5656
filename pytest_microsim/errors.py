"""Errors of the plugin itself; :mod:`microsim_vm.errors` has the root of all, and those of the VM layer."""

from __future__ import annotations

from microsim_vm.errors import MicrosimError


class MarkerError(MicrosimError):
    """A marker cannot be used as written; the message starts with ``file:line``."""


class ScenarioError(MicrosimError):
    """A scenario file cannot be used as written; the message has ``file:line`` of each mistake."""


class NoWorldError(MicrosimError):
    """A test needs a world, and neither marker, command line nor ini file chooses one."""


class ReplayError(MicrosimError):
    """A rollout cannot be replayed, because what it was forked from is no more."""


class RecordError(MicrosimError):
    """A value that cannot be recorded: not a number, or not a finite one."""


class TrajectoryError(MicrosimError):
    """A file of trajectories cannot be read, or a trajectory cannot be written as one."""


class ResultsError(MicrosimError):
    """A results file cannot be read, or not be written."""


class ReportError(MicrosimError):
    """A report cannot be written, or is asked for of what it cannot be made of."""


class BaselineError(MicrosimError):
    """A baseline cannot be read, written or compared with."""
