"""Programs of the host: found or named with what installs them; run with a deadline, killed whole."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from microsim_vm import owner, tools
from microsim_vm.errors import BakeError, MissingToolError


def run(script: str, *, timeout_s: float = 20.0) -> str:
    return tools.run(["sh", "-c", script], what="the step", progress=print, timeout_s=timeout_s)


def test_a_program_is_found_on_the_path_and_in_sbin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "mmdebstrap"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tools.need("mmdebstrap") == str(program)


@pytest.mark.parametrize(("user", "sudo"), [(0, ""), (1000, "sudo ")])
def test_what_is_missing_comes_with_the_exact_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, sudo: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(MissingToolError) as caught:
        tools.need("qemu-system-x86_64", "mmdebstrap")
    assert caught.value.what == "qemu-system-x86_64 and mmdebstrap not found on this machine"
    assert caught.value.hint == f"run: {sudo}apt-get install --no-install-recommends mmdebstrap qemu-system-x86"


def test_two_programs_of_one_package_install_it_once() -> None:
    assert tools.install_command("mkfs.erofs", "fsck.erofs").endswith("install --no-install-recommends erofs-utils")


def test_output_of_both_streams_is_returned_also_without_a_last_newline() -> None:
    assert run("echo one; echo two >&2; printf three") == "one\ntwo\nthree"


def test_only_the_last_lines_of_a_lot_are_kept() -> None:
    assert run("seq 100000").splitlines() == [str(number) for number in range(99601, 100001)]


def test_a_failure_has_the_exit_status_and_the_output() -> None:
    with pytest.raises(BakeError) as caught:
        run("echo no such package >&2; exit 3")
    assert caught.value.what == "the step failed with exit status 3"
    assert caught.value.details == "no such package"


def test_bytes_that_are_no_text_do_not_stop_it() -> None:
    assert run(r"printf '\377\376 ok\n'") == "�� ok"


def test_a_deadline_kills_it_with_all_it_started() -> None:
    started = time.monotonic()
    with pytest.raises(BakeError, match=r"the step took longer than 1 s") as caught:
        run("sleep 60 & echo $$ $!; wait", timeout_s=1)
    assert time.monotonic() - started < 10
    time.sleep(0.1)
    assert [owner.start_time(int(pid)) for pid in caught.value.details.split()] == [None, None]


def test_no_environment_but_the_one_given() -> None:
    output = tools.run(["/usr/bin/env"], what="env", progress=print, timeout_s=20, env={"ONLY": "this"})
    assert output == "ONLY=this"


def test_a_long_step_shows_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    tools.run(["sh", "-c", "echo fetching; sleep 6.5"], what="the step", progress=lines.append, timeout_s=20)
    assert lines == ["the step: fetching"]


def test_ticking_reports_at_once_and_then_how_long_it_has_taken() -> None:
    lines: list[str] = []
    with tools.ticking("booting", lines.append, period_s=0.05):
        assert lines == ["booting"]
        time.sleep(0.2)
    count = len(lines)
    assert count >= 2
    assert lines[1] == "booting: 0 s so far"
    time.sleep(0.1)
    assert len(lines) == count


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gets namespaces; what needs them else makes its own")
def test_a_contained_command_dies_with_us_and_all_it_started(tmp_path: Path) -> None:
    script = f"""
import subprocess
from microsim_vm import tools
subprocess.run([*tools.contained(), "sh", "-c", "sleep 61.5 & echo up > {tmp_path}/up; wait"])
"""
    ours = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 20
    while not (tmp_path / "up").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert sleepers() == 1
    ours.kill()
    ours.wait()
    while sleepers():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def sleepers() -> int:
    found = 0
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += entry.read_bytes() == b"sleep\x0061.5\0"
        except OSError:
            continue
    return found
