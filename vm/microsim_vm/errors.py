"""Every error this project raises on purpose.

One root, one class per kind of failure, so that a caller can catch as widely or as narrowly as it likes.
A message has up to three parts: what happened, the likely cause, and the next step. They are kept as
attributes too, and every error can be pickled (pytest-xdist and thread pools send them around).
"""

from __future__ import annotations

from typing import Any


class MicrosimError(Exception):
    """Root of the hierarchy.

    Args:
        what: What happened, one sentence.
        cause: The likely cause, where one can be named.
        hint: The next step for the reader.
        details: Long supporting text (a guest traceback, the tail of the console), shown last.
    """

    def __init__(self, what: str, *, cause: str = "", hint: str = "", details: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        lines = [self.what]
        if self.cause:
            lines.append(f"  likely cause: {self.cause}")
        if self.hint:
            lines.append(f"  next step: {self.hint}")
        if self.details:
            lines.append("\n".join("  | " + line for line in self.details.rstrip().splitlines()))
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.__dict__.copy()))


def rebuilt(kind: str, state: dict[str, Any]) -> MicrosimError:
    """Return an error that another process raised, from its class's name and its attributes."""
    found = globals().get(kind)
    return _rebuild(found if isinstance(found, type) and issubclass(found, MicrosimError) else MicrosimError, state)


def _rebuild(kind: type[MicrosimError], state: dict[str, Any]) -> MicrosimError:
    error = kind.__new__(kind)
    Exception.__init__(error, state["what"])
    error.__dict__.update(state)
    return error


class TemplateError(MicrosimError):
    """A template cannot be used as written. The message starts with ``file:line``."""


class TemplateNotFoundError(TemplateError):
    """No template of that name on the search path; the message lists those found."""


class UnsupportedWorldError(TemplateError):
    """The world needs something this project does not do (a GPU, photoreal rendering, real hardware)."""


class LockDriftError(TemplateError):
    """Under ``--microsim-locked``, an input no longer matches ``template.lock``."""


class MissingToolError(MicrosimError):
    """A program of the host is missing; the hint is the exact install command."""


class BakeError(MicrosimError):
    """Building an image failed; the details are the failing tool's last output."""


class EngineError(MicrosimError):
    """The engine could not do what was asked of it."""


class EngineUnavailableError(EngineError):
    """The engine or accelerator that was asked for does not work on this machine."""


class UnsupportedByEngineError(EngineError):
    """The engine cannot do what was asked for; the cause says why. Another engine may."""


class DeterminismError(EngineError):
    """A deterministic machine cannot do what was asked for: it would depend on the host. The cause says how."""


class DivergedError(EngineError):
    """A deterministic machine repeated its run with another outcome. It never should: please report it."""


class IsolationError(EngineUnavailableError):
    """The strongest isolation that works on this machine is weaker than the least that was asked for."""


class BootError(EngineError):
    """The guest did not reach its agent; the details are the tail of its console."""


class WarmUpError(MicrosimError):
    """The world could not be loaded; the details are the guest's traceback or console tail."""


class SnapshotError(MicrosimError):
    """A snapshot could not be written, read or trusted."""


class NoSpaceError(SnapshotError):
    """Not enough room for a snapshot; the message says need, have and path."""


class SnapshotMismatchError(SnapshotError):
    """A snapshot was made by another engine, on another processor or with another kernel than there is here."""


class ArchiveError(SnapshotError):
    """A file is no exported snapshot, or not as it was exported."""


class CapacityError(MicrosimError):
    """The host has no room for one more guest."""


class MemoryBudgetError(CapacityError):
    """A fork waited for memory and did not get it in time."""


class SubnetsExhaustedError(CapacityError):
    """An island waited for addresses and did not get them in time, or the host routes all that there are."""


class NetworkError(MicrosimError):
    """A rollout's network could not be made; the cause says what this machine lacks."""


class SandboxError(MicrosimError):
    """A sandbox could not do what was asked of it."""


class ArgumentError(SandboxError, ValueError):
    """An argument of a sandbox's method is none that it takes."""


class SandboxNotFoundError(SandboxError):
    """There is no such sandbox, or not any more; the message lists those that there are."""


class SandboxGoneError(SandboxNotFoundError):
    """The sandbox was ended, hibernated or handed on before the request reached it."""


class VolumeError(MicrosimError):
    """A volume cannot be made, found or mounted."""


class VolumeBusyError(VolumeError):
    """Another sandbox holds the volume; the message names it."""


class SandboxStateError(SandboxError):
    """The sandbox is paused, its guest crashed, or it belongs to a process that does not answer."""


class AgentError(MicrosimError):
    """The agent in the guest reported an error for one request."""


class ChannelClosedError(AgentError):
    """The link to the guest's agent is gone: the guest died, or the engine did."""


class AgentTimeoutError(AgentError):
    """The agent did not answer within the deadline."""


class CommandInterruptedError(AgentError):
    """A command did not reach its end: the guest died, or the link to it was lost, while it ran.

    Attributes:
        partial: What it had printed until then: ``stdout_bytes``, ``stderr_bytes``, and both as text.
    """

    def __init__(self, what: str, *, cause: str = "", hint: str = "", details: str = "", partial: Any = None) -> None:
        super().__init__(what, cause=cause, hint=hint, details=details)
        self.partial = partial


class WorldError(AgentError):
    """The world raised in ``reset`` or ``step``; the details are the guest traceback."""


class ControllerError(MicrosimError):
    """The controller is broken: it does not load, raised, died, or returned something unusable."""


class ControllerTimeoutError(ControllerError):
    """The episode's wall-clock limit passed."""


class ControllerLateError(ControllerError):
    """The controller missed a step's deadline, and ``controller.late`` is fail."""


class ControllerLimitError(ControllerError):
    """The controller ended at a limit of memory, processes, processor time or files; the cause names it."""


class ControllerMachineError(ControllerError):
    """The machine that the controller ran in, apart from the world's, died, hangs, or breaks its protocol."""


class VideoError(MicrosimError):
    """There are no pictures of an episode, or they cannot be written; the cause says why."""


class LimitsError(MicrosimError, ValueError):
    """Limits for a controller that are none: an unknown name, or a value out of range."""


class RecordingError(MicrosimError):
    """A recording that cannot be used: unreadable, out of order, without the topic, or with actions of another form."""


class OptionsError(MicrosimError, ValueError):
    """Options for a world's ``reset`` that JSON cannot hold."""


class InvalidEpisodeError(MicrosimError):
    """The episode ended, and its score is none: a metric or reward that is no finite number."""


class ScoreError(MicrosimError):
    """A template's ``score`` cannot be run; its author's mistake, and no controller's."""


class TransferError(MicrosimError):
    """An upload or download was refused: too large, no regular file, or on its way out of its folder."""


class SeedError(MicrosimError):
    """Seeds that cannot be used: unordered, one-shot, negative, boolean, empty, or missing."""


class CommandFailedError(MicrosimError):
    """``exec(check=True)`` and the command did not exit with 0.

    Attributes:
        result: The :class:`~microsim_vm.outputs.ExecResult`.
    """

    def __init__(self, what: str, *, result: Any, details: str = "") -> None:
        super().__init__(what, details=details)
        self.result = result
