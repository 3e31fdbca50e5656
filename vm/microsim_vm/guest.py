"""What can be done in any guest that has an agent: commands, terminals, files."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence

from microsim_vm import answers
from microsim_vm.agent import Caller
from microsim_vm.errors import (
    AgentTimeoutError,
    ChannelClosedError,
    CommandFailedError,
    MicrosimError,
)
from microsim_vm.filesystem import Filesystem
from microsim_vm.outputs import CONTROL_TIMEOUT_S, Confirming, ExecResult, PartialOutput, TextTaker, interrupted
from microsim_vm.terminal import Terminal

MAX_OUTPUT = 16 << 20
MAX_RAW_OUTPUT = 256 << 20
GRACE_S = 30.0  # how much longer the host waits than the guest's own limit
CONFIRM_EXEC_BYTES = 1 << 20  # of a command's output; the guest sends four times as much before it waits


class Guest:
    """Commands, terminals and files in a guest.

    Attributes:
        filesystem: The guest's files.
    """

    def __init__(self, caller: Caller) -> None:
        self.filesystem = Filesystem(caller)
        self._caller = caller

    def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_seconds: float = 60.0,
        check: bool = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
    ) -> ExecResult:
        """Run a command in the guest, as root, in ``/workspace``.

        It ends when its main process does. What it has left in the background runs on, without a time limit, unless
        it runs into the limit of processes, when all of it is killed; what that prints is dropped.

        Args:
            command: A line for ``/bin/sh -c``, or a list of words.
            timeout_seconds: After that the command and all it started are killed.
            check: Raise unless it exits with 0.
            cwd: Another working directory.
            env: Additional environment; EPISODE_SEED and PYTHONHASHSEED are set already.
            user: Another user of the guest, by name or number; HOME and USER are set accordingly.
            stdin: What it reads.

        Returns:
            The result; output that came before a time-out is in it.

        Raises:
            CommandFailedError: ``check``, and the exit code is not 0.
            CommandInterruptedError: The guest died, or the link to it was lost, before the command's end.
            AgentError: It could not be started.
        """
        result = self._run(command, None, timeout_seconds=timeout_seconds, cwd=cwd, env=env, user=user, stdin=stdin)
        if check and result.exit_code != 0:
            what = f"timed out after {timeout_seconds:g} s" if result.timed_out else f"exited with {result.exit_code}"
            what += "".join(f", being at the limit of {limit}" for limit in result.limits_hit)
            raise CommandFailedError(f"{_shown(command)} {what}", result=result, details=result.stderr[-4000:])
        return result

    def exec_stream(
        self,
        command: str | Sequence[str],
        *,
        on_stdout: Callable[[str], None] | None = None,
        on_stderr: Callable[[str], None] | None = None,
        timeout_seconds: float = 60.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
    ) -> ExecResult:
        """Run a command like :meth:`exec`, and hand its output out as it arrives.

        An exception from a callback, and Ctrl-C, kill the command.

        Args:
            command: A line for ``/bin/sh -c``, or a list of words.
            on_stdout: Takes text; a character is never split, and bytes that are no UTF-8 are replaced.
            on_stderr: Likewise.
            timeout_seconds: After that the command and all it started are killed.
            cwd: Another working directory.
            env: Additional environment.
            user: Another user of the guest, by name or number.
            stdin: What it reads.

        Returns:
            The result, with all of the output as bytes (16 MiB of each stream at most, also for the callbacks).

        Raises:
            CommandInterruptedError: The guest died, or the link to it was lost, before the command's end.
            AgentError: It could not be started.
        """
        takers = {"stdout": TextTaker(on_stdout), "stderr": TextTaker(on_stderr)}
        result = self._run(command, takers, timeout_seconds=timeout_seconds, cwd=cwd, env=env, user=user, stdin=stdin)
        for taker in takers.values():
            taker(b"", final=True)
        return result

    def exec_raw(
        self,
        command: str | Sequence[str],
        on_output: Callable[[str, bytes], None],
        *,
        timeout_seconds: float = 60.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
    ) -> ExecResult:
        """Run a command like :meth:`exec_stream`, and hand its output out as bytes; none of it is kept.

        Args:
            command: A line for ``/bin/sh -c``, or a list of words.
            on_output: Takes "stdout" or "stderr", and bytes, 256 MiB of each stream at most.
            timeout_seconds: After that the command and all it started are killed.
            cwd: Another working directory.
            env: Additional environment.
            user: Another user of the guest, by name or number.
            stdin: What it reads.

        Returns:
            The result, without output.

        Raises:
            CommandInterruptedError: The guest died, or the link to it was lost, before the command's end.
            AgentError: It could not be started.
        """
        return self._run(
            command, None, timeout_seconds=timeout_seconds, cwd=cwd, env=env, user=user, stdin=stdin, raw=on_output
        )

    def terminal(
        self,
        command: str | Sequence[str] | None = None,
        *,
        rows: int = 24,
        columns: int = 80,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Terminal:
        """Start a command on a terminal of its own in the guest; see :class:`Terminal`.

        Args:
            command: A line for ``/bin/sh -c``, or a list of words; None for an interactive shell.
            rows: Height in characters.
            columns: Width in characters.
            env: Additional environment, such as TERM.
            user: Another user of the guest, by name or number.

        Raises:
            AgentError: It could not be started.
        """
        token = uuid.uuid4().hex
        args = {"token": token, "argv": None if command is None else _argv(command), "extra_env": dict(env or {}),
                "user": user, "rows": rows, "columns": columns}  # fmt: skip
        self._caller.call("terminal.open", args, timeout_s=GRACE_S)
        return Terminal(self._caller, token)

    def _run(
        self,
        command: str | Sequence[str],
        takers: Mapping[str, TextTaker] | None,
        *,
        timeout_seconds: float,
        cwd: str | None,
        env: Mapping[str, str] | None,
        user: str | None,
        stdin: bytes | str | None,
        raw: Callable[[str, bytes], None] | None = None,
    ) -> ExecResult:
        output = {"stdout": bytearray(), "stderr": bytearray()}

        def keep(stream: str, data: bytes) -> None:
            kept = output.get(stream)
            if kept is None:
                return
            size = len(data)
            if raw is not None:
                raw(stream, data)
            else:
                # The guest has the same limit; it is not to be trusted with our memory.
                data = data[: MAX_OUTPUT - len(kept)]
                kept += data
                if takers is not None:
                    takers[stream](data)
            taken(size)

        token = uuid.uuid4().hex
        taken = Confirming(self._caller, "exec.confirm", token, every=CONFIRM_EXEC_BYTES)
        most = MAX_OUTPUT if raw is None else MAX_RAW_OUTPUT
        args = {"token": token, "argv": _argv(command), "cwd": cwd, "extra_env": dict(env or {}), "user": user,
                "timeout_s": timeout_seconds, "output_bytes": most}  # fmt: skip
        given = stdin.encode() if isinstance(stdin, str) else stdin
        try:
            answer, _ = self._caller.call(
                "exec", args, [given] if given else [], timeout_s=timeout_seconds + GRACE_S, on_event=keep
            )
        except BaseException as error:  # Ctrl-C above all: nobody would wait for the command any more
            if not isinstance(error, ChannelClosedError):  # there is nobody to tell, or it hibernates and goes on
                self._cancel(token)
            if isinstance(error, ChannelClosedError | AgentTimeoutError):
                partial = PartialOutput(bytes(output["stdout"]), bytes(output["stderr"]))
                raise interrupted(_shown(command), error, partial) from error
            raise
        with answers.read("exec"):
            return ExecResult(
                exit_code=int(answer["exit_code"]),
                stdout_bytes=bytes(output["stdout"]),
                stderr_bytes=bytes(output["stderr"]),
                duration_ms=float(answer["duration_ms"]),
                timed_out=bool(answer["timed_out"]),
                dropped_bytes=int(answer["dropped"]),
                limits_hit=tuple(str(name)[:20] for name in answer["limits_hit"][:2]),
            )

    def _cancel(self, token: str) -> None:
        with contextlib.suppress(MicrosimError):  # the sandbox may have been paused, or ended
            self._caller.call("exec.cancel", {"token": token}, timeout_s=CONTROL_TIMEOUT_S)


def _argv(command: str | Sequence[str]) -> list[str]:
    return ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)


def _shown(command: str | Sequence[str]) -> str:
    return repr(" ".join(_argv(command))[:200])
