"""``microsim exec`` and ``microsim shell``: run something in a sandbox."""

from __future__ import annotations

import argparse
import base64
import errno
import re
import sys
from typing import TYPE_CHECKING, Any

from microsim_vm.cli import common, units
from microsim_vm.cli.common import command
from microsim_vm.cli.output import Output
from microsim_vm.errors import AgentError, MicrosimError

if TYPE_CHECKING:
    from microsim_vm.cli.common import Commands

TIMED_OUT = 124  # as timeout(1) has it
NOT_EXECUTABLE, NOT_FOUND = 126, 127  # as a shell has them
MAX_STDIN = 128 << 20
FOREVER_S = 365 * 86400.0


def add(commands: Commands) -> None:
    """Add the commands."""
    run = command(
        commands, "exec", run_exec,
        "Run a command in a sandbox. Its output is passed on as it comes, its exit status is this command's. What it "
        "reads is this command's stdin, to its end, unless that is a terminal.",
    )  # fmt: skip
    common.add_sandbox(run)
    run.add_argument("words", nargs="+", metavar="CMD",
                     help="the command and its arguments; from its first word on, options are its own")  # fmt: skip
    run.add_argument("--cwd", metavar="DIR", help="the directory that it runs in (default: /workspace)")
    run.add_argument("--timeout", type=units.limit, metavar="TIME",
                     help="kill it and all it started after so long, such as 30s; exit status 124")  # fmt: skip
    run.add_argument("-n", "--no-stdin", action="store_true", help="give it nothing to read")
    shell = command(
        commands, "shell", run_shell,
        "Open a shell in a sandbox, on a terminal of its own. The exit status is the shell's.", json=False,
    )  # fmt: skip
    common.add_sandbox(shell)
    shell.add_argument("words", nargs="*", metavar="CMD", help="a command in place of the shell, and its arguments")
    for parser in (run, shell):
        parser.passes_on = "words"
        parser.add_argument("--user", metavar="USER", help="another user of the guest, by name or number")
        parser.add_argument("--env", action="append", type=common.pair, default=[], metavar="KEY=VALUE",
                            help="additional environment (may be repeated)")  # fmt: skip


def run_exec(args: argparse.Namespace, output: Output) -> int:
    """Run a command."""
    sandbox = common.sandbox(args)
    stdin = b"" if args.no_stdin or sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read(MAX_STDIN + 1)
    if len(stdin) > MAX_STDIN:
        raise MicrosimError(
            f"more than {MAX_STDIN >> 20} MiB on stdin", hint="copy them with microsim cp, and read the file there"
        )
    settings: dict[str, Any] = {
        "timeout_seconds": args.timeout or FOREVER_S, "cwd": args.cwd, "user": args.user, "stdin": stdin,
        "env": common.pairs(args.env),
    }  # fmt: skip
    try:
        if output.json:
            result = sandbox.exec(args.words, **settings)
        else:
            result = sandbox.exec_raw(args.words, _pass_on, **settings)
    except AgentError as error:
        if type(error) is not AgentError:
            raise
        refused = not_run(error, args.words[0])
        if refused is not None:
            output.error(refused[1])
            return refused[0]
        # It could not be started; where in the guest's agent that came out helps nobody here.
        raise AgentError(error.what, cause=error.cause, hint=error.hint) from None
    if output.json:
        output.result(
            {
                "exit_code": result.exit_code,
                "timed_out": result.timed_out,
                "duration_ms": round(result.duration_ms, 3),
                "stdout": result.stdout,
                "stderr": result.stderr,
                "stdout_base64": base64.b64encode(result.stdout_bytes).decode(),
                "stderr_base64": base64.b64encode(result.stderr_bytes).decode(),
                "dropped_bytes": result.dropped_bytes,
                "limits_hit": result.limits_hit,
            },
            "",
        )
    if result.dropped_bytes:
        output.error(f"{result.dropped_bytes} bytes of output were too many, and are lost; write them to a file there")
    if result.timed_out:
        output.error(f"it took longer than {args.timeout:g} s, and was killed")
        return TIMED_OUT
    return status(result.exit_code)


def not_run(error: AgentError, program: str) -> tuple[int, str] | None:
    """Return status and message of a program that the guest's kernel does not run; None for any other error."""
    match = re.fullmatch(rf"exec: \[Errno (\d+)\] (.+?): {re.escape(repr(program))}", error.what)
    if match is None:
        return None
    if int(match[1]) == errno.ENOENT:
        return NOT_FOUND, f"{program}: not found in the sandbox"
    return NOT_EXECUTABLE, f"{program}: cannot be executed in the sandbox: {match[2]}"


def status(exit_code: int) -> int:
    """Return a command's exit status as a shell shows it: that of a killed one is 128 and the signal."""
    return exit_code if exit_code >= 0 else 128 - exit_code


def _pass_on(stream: str, data: bytes) -> None:
    target = (sys.stdout if stream == "stdout" else sys.stderr).buffer
    target.write(data)
    target.flush()


def run_shell(args: argparse.Namespace, output: Output) -> int:
    """Open a shell."""
    from microsim_vm import console

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        output.error("shell needs a terminal; use exec")
        return 2
    sandbox = common.sandbox(args)
    sandbox.wake(output.progress)
    return status(console.attach(sandbox, args.words or None, user=args.user, env=common.pairs(args.env)))
