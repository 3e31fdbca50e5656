"""``microsim doctor``: what is usable on this machine."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import subprocess
from typing import TYPE_CHECKING

from microsim_vm.cli import common
from microsim_vm.cli.common import command
from microsim_vm.cli.output import Output, table

if TYPE_CHECKING:
    from microsim_vm.cli.common import Commands
    from microsim_vm.probes import Finding

STDERR = 2  # stdout is for the result


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(
        commands, "doctor", run,
        "Say what is usable on this machine, by trying each. The exit status is 1 where something that is required "
        "does not work.",
        founds=True,
    )  # fmt: skip
    parser.add_argument("--deep", action="store_true", help="build what a probe needs; the first time takes minutes")
    parser.add_argument("--fix", action="store_true", help="install the packages that are missing, and look again")


def run(args: argparse.Namespace, output: Output) -> int:
    """Try everything."""
    from microsim_vm import probes

    cache = common.cache(args)
    findings = list(probes.everything(cache, deep=args.deep, progress=output.progress))
    missing = [finding.program for finding in findings if finding.program]
    if args.fix and missing:
        installed = probes.install(missing, lambda words: _said_and_run(words, output))
        if not installed:
            output.error("the packages could not be installed; the rest of the findings is as before")
        findings = list(probes.everything(cache, deep=args.deep, progress=output.progress))
    works = all(finding.state == "ok" for finding in findings if finding.required)
    document = {"ok": works, "findings": [dataclasses.asdict(finding) for finding in findings]}
    output.result(document, _text(findings, works))
    return 0 if works else 1


def _text(findings: list[Finding], works: bool) -> str:
    from microsim_vm import tools

    rows = [(each.name, _state(each), each.detail) for each in findings]
    parts = [table(("WHAT", "STATE", "DETAIL"), rows)]
    missing = [each.program for each in findings if each.program]
    fixes = [tools.install_command(*missing)] if missing else []
    fixes += [each.fix for each in findings if each.fix and not each.program]
    if fixes:
        parts += ["", "To mend it:", *(f"  {fix}" for fix in fixes)]
    parts += ["", "All that is required works." if works else "Something that is required does not work."]
    return "\n".join(parts)


def _state(finding: Finding) -> str:
    return finding.state if finding.state == "ok" or finding.required else f"{finding.state} (optional)"


def _said_and_run(words: list[str], output: Output) -> int:
    output.progress(f"running: {shlex.join(words)}")
    try:
        return subprocess.run(words, stdout=STDERR, check=False).returncode
    except OSError as error:
        output.error(f"{words[0]}: {error.strerror}")
        return 127
