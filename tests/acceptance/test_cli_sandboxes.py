"""The microsim command as its users run it: processes of its own, one real sandbox for most of the tests."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

REPOSITORY = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "microsim_vm"]

pytestmark = pytest.mark.timeout(300)


class Cli:
    """The command, with a cache of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {**os.environ, "MICROSIM_CACHE_DIR": str(root)}

    def __call__(self, *arguments: str, status: int = 0, **settings: Any) -> subprocess.CompletedProcess[str]:
        """Run it to its end; its stdin is empty, and its exit status as told."""
        settings = {"stdin": subprocess.DEVNULL} | settings if "input" not in settings else settings
        done = subprocess.run(
            [*COMMAND, *arguments], capture_output=True, text=settings.pop("text", True), env=self.env, timeout=120,
            check=False, **settings,
        )  # fmt: skip
        assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
        return done

    def start(self, *arguments: str, **settings: Any) -> subprocess.Popen[str]:
        """Start it."""
        return subprocess.Popen(
            [*COMMAND, *arguments], env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            **{"stdin": subprocess.DEVNULL, **settings},
        )  # fmt: skip

    def json(self, *arguments: str) -> Any:
        """Run it and return its document."""
        return json.loads(self(*arguments, "--json").stdout)

    def of(self, sandbox: str) -> Any:
        """Return what ls says of a sandbox."""
        return next(each for each in self.json("ls") if each["id"] == sandbox)

    def processes(self) -> list[psutil.Process]:
        """Return QEMU and keeper processes that belong to this cache."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if any(str(self.root) in word for word in words) and process.pid != os.getpid():
                found.append(process)
        return found


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory, cache_with_cartpole: Callable[[Path], None]) -> Iterator[Cli]:
    root = tmp_path_factory.mktemp("cli") / "cache"
    cache_with_cartpole(root)
    command = Cli(root)
    yield command
    command("rm", *(each["id"] for each in command.json("ls")), "none", status=1)
    wait_for(lambda: not command.processes(), "the end of all processes")
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def sandbox(cli: Cli) -> str:
    """A sandbox of cartpole; the tests leave it running."""
    done = cli("create", "cartpole", "--metadata", "role=shared", "--ttl", "never")
    return done.stdout.strip()


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} not within {timeout_s:g} s"
        time.sleep(0.05)


def test_ctrl_c_while_a_world_is_warmed_up_leaves_nothing(cold_cache: Path) -> None:
    cli = Cli(cold_cache)
    process = cli.start("create", "cartpole")
    assert process.stderr is not None
    with process:
        for line in process.stderr:
            if line.startswith("booting"):
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 130
        assert process.stderr.read().splitlines()[-1] == "microsim: interrupted"
    wait_for(lambda: not cli.processes(), "the end of the guest")
    assert cli.json("ls") == []
    assert list((cli.root / "staging").iterdir()) == []


def test_create_prints_the_id_and_nothing_else(sandbox: str, cli: Cli) -> None:
    assert sandbox.startswith("sb-")
    assert len(sandbox.split()) == 1
    found = cli.of(sandbox)
    assert (found["template"], found["status"], found["metadata"]) == ("cartpole", "running", {"role": "shared"})
    assert (found["detached"], found["ttl_seconds"], found["boot_mode"]) == (True, None, "fork")


def test_ls_shows_a_table(sandbox: str, cli: Cli) -> None:
    header, *rows = cli("ls").stdout.splitlines()
    assert header.split()[:3] == ["ID", "TEMPLATE", "STATUS"]
    assert any(row.split()[:3] == [sandbox, "cartpole", "running"] and "role=shared" in row for row in rows)
    assert cli("ls", "-q").stdout.split() == [sandbox]


def test_exec_passes_output_and_status_on(sandbox: str, cli: Cli) -> None:
    done = cli("exec", sandbox, "--", "sh", "-c", "echo out; echo err >&2; exit 7", status=7)
    assert (done.stdout, done.stderr) == ("out\n", "err\n")


def test_exec_takes_the_beginning_of_an_id(sandbox: str, cli: Cli) -> None:
    assert cli("exec", sandbox[:7], "--", "pwd").stdout == "/workspace\n"


def test_exec_passes_every_byte_both_ways(sandbox: str, cli: Cli) -> None:
    data = bytes(range(256)) * 4000
    assert cli("exec", sandbox, "--", "cat", input=data, text=False).stdout == data


def test_exec_has_no_limit_of_output_that_anybody_would_meet(sandbox: str, cli: Cli) -> None:
    done = cli("exec", sandbox, "--", "head", "-c", str(20 << 20), "/dev/zero", text=False)
    assert len(done.stdout) == 20 << 20


def test_exec_sets_environment_folder_and_user(sandbox: str, cli: Cli) -> None:
    words = ["exec", sandbox, "--env", "A=b c", "--cwd", "/tmp", "--user", "nobody", "--", "sh", "-c"]
    assert cli(*words, 'echo "$A" $PWD $(id -un)').stdout == "b c /tmp nobody\n"


def test_exec_that_takes_too_long_ends_with_124(sandbox: str, cli: Cli) -> None:
    done = cli("exec", sandbox, "--timeout", "1s", "--", "sh", "-c", "echo begun; sleep 60", status=124)
    assert done.stdout == "begun\n"
    assert "longer than 1 s" in done.stderr


def test_exec_of_a_command_that_is_killed_ends_as_in_a_shell(sandbox: str, cli: Cli) -> None:
    cli("exec", sandbox, "--", "sh", "-c", "kill -TERM $$", status=128 + 15)


def test_exec_of_what_is_not_there_is_an_error(sandbox: str, cli: Cli) -> None:
    done = cli("exec", sandbox, "--", "no-such-program", status=127)
    assert done.stderr == "microsim: no-such-program: not found in the sandbox\n"
    done = cli("exec", sandbox, "--", "/etc/passwd", status=126)
    assert done.stderr == "microsim: /etc/passwd: cannot be executed in the sandbox: Permission denied\n"
    done = cli("exec", sandbox, "--cwd", "/none", "--", "true", status=1)
    assert "/none" in done.stderr
    assert "Traceback" not in done.stderr


def test_exec_needs_no_dashes_before_the_command(sandbox: str, cli: Cli) -> None:
    assert cli("exec", "--cwd", "/tmp", sandbox, "--env", "A=1", "sh", "-c", "echo $PWD $A -n").stdout == "/tmp 1 -n\n"


def test_exec_as_json_is_one_document(sandbox: str, cli: Cli) -> None:
    done = cli("exec", sandbox, "--json", "--", "sh", "-c", "echo out; exit 3", status=3)
    document = json.loads(done.stdout)
    assert (document["exit_code"], document["stdout"], document["timed_out"]) == (3, "out\n", False)


def test_ctrl_c_ends_exec_and_its_command(sandbox: str, cli: Cli) -> None:
    process = cli.start("exec", sandbox, "--", "sh", "-c", "echo begun; exec sleep 4711")
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    seen = "grep -lz 4711 /proc/[0-9]*/cmdline | grep -v self; true"
    wait_for(
        lambda: "proc" not in cli("exec", sandbox, "--", "sh", "-c", seen.replace("4711", "471[1]")).stdout, "its end"
    )


def test_a_reader_that_has_seen_enough_ends_exec(sandbox: str, cli: Cli) -> None:
    line = f"{' '.join(COMMAND)} exec {sandbox} -n -- yes | head -1"
    done = subprocess.run(line, shell=True, env=cli.env, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("y\n", "")


def test_cp_copies_files_both_ways(sandbox: str, cli: Cli, tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "data.bin").write_bytes(data)
    (tmp_path / "data.bin").chmod(0o751)
    assert "copied 1 file, 3.0 MiB" in cli("cp", str(tmp_path / "data.bin"), f"{sandbox}:/workspace").stdout
    assert cli("exec", sandbox, "--", "stat", "-c", "%a", "/workspace/data.bin").stdout == "751\n"
    cli("cp", f"{sandbox}:/workspace/data.bin", str(tmp_path / "back.bin"))
    assert (tmp_path / "back.bin").read_bytes() == data


def test_cp_copies_folders_both_ways(sandbox: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "project/src").mkdir(parents=True)
    (tmp_path / "project/src/a.py").write_text("a\n")
    (tmp_path / "project/b").write_text("b\n")
    cli("cp", str(tmp_path / "project"), f"{sandbox}:/srv/")
    cli("exec", sandbox, "--", "ln", "-s", "/etc/shadow", "/srv/project/link")
    (tmp_path / "back").mkdir()
    done = cli("cp", f"{sandbox}:/srv/project", str(tmp_path / "back"))
    assert "skipped link: a symbolic link" in done.stderr
    found = {str(path.relative_to(tmp_path / "back")) for path in (tmp_path / "back").rglob("*") if path.is_file()}
    assert found == {"project/src/a.py", "project/b"}


def test_cp_reads_stdin_and_writes_stdout(sandbox: str, cli: Cli) -> None:
    data = os.urandom(100_000)
    cli("cp", "-", f"{sandbox}:/tmp/piped", input=data, text=False)
    assert cli("cp", f"{sandbox}:/tmp/piped", "-", text=False).stdout == data


def test_cp_of_what_is_not_there_is_an_error(sandbox: str, cli: Cli, tmp_path: Path) -> None:
    assert "No such file" in cli("cp", str(tmp_path / "none"), f"{sandbox}:/tmp/x", status=1).stderr
    assert "/tmp/none" in cli("cp", f"{sandbox}:/tmp/none", str(tmp_path), status=1).stderr
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_is_saved_listed_forked_and_removed(sandbox: str, cli: Cli) -> None:
    cli("exec", sandbox, "--", "sh", "-c", "echo before > /tmp/moment")
    assert cli("snapshot", sandbox, "--name", "moment", "--metadata", "k=v").stdout == "moment\n"
    cli("exec", sandbox, "--", "sh", "-c", "echo after > /tmp/moment")
    [saved] = cli.json("snapshot", "ls")
    assert (saved["id"], saved["sandbox"], saved["metadata"]) == ("moment", sandbox, {"k": "v"})
    [child] = cli.json("fork", "moment", "--seed", "7", "--metadata", "role=child")
    assert (child["from_snapshot"], child["seed"], child["metadata"]) == ("moment", 7, {"role": "child"})
    assert cli("exec", child["id"], "--", "cat", "/tmp/moment").stdout == "before\n"
    assert cli("snapshot", "rm", "moment").stdout == "moment\n"
    assert cli.json("snapshot", "ls") == []
    assert cli("exec", child["id"], "--", "cat", "/tmp/moment").stdout == "before\n"
    assert cli("rm", child["id"]).stdout.strip() == child["id"]


@pytest.mark.parametrize("command", ["snapshot", "export"])
def test_ctrl_c_leaves_no_saved_snapshot(command: str, sandbox: str, cli: Cli, tmp_path: Path) -> None:
    cli("exec", sandbox, "--", "true")
    process = cli.start(command, sandbox, *([str(tmp_path / "file")] if command == "export" else []))
    assert process.stderr is not None
    with process:
        staging = cli.root / "staging"
        wait_for(lambda: [*staging.glob("saved-*")] or process.poll() is not None, "its beginning")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        said = process.stderr.read()
    assert "waiting for the snapshot's end, to remove it" in said
    assert said.endswith("microsim: interrupted\n")
    assert cli.json("snapshot", "ls") == []
    assert list(tmp_path.iterdir()) == []
    child = cli("fork", sandbox).stdout.strip()
    cli("exec", child, "true")
    cli("rm", child)


def test_the_error_of_an_only_child_has_no_number(sandbox: str, cli: Cli) -> None:
    cli("pause", sandbox)
    said = cli("fork", sandbox, status=1).stderr
    several = cli("fork", sandbox, "-n", "2", status=1).stderr
    cli("resume", sandbox)
    assert f"microsim: sandbox {sandbox} is paused\n" in said
    assert "run microsim resume ID first" in said or f"microsim resume {sandbox}" in said
    assert f"microsim: child 1: sandbox {sandbox} is paused\n" in several


def test_a_running_sandbox_is_forked_into_several(sandbox: str, cli: Cli) -> None:
    cli("exec", sandbox, "--", "sh", "-c", "echo parent > /tmp/who")
    children = cli("fork", sandbox, "-n", "2").stdout.split()
    assert len(set(children)) == 2
    draws = {cli("exec", child, "--", "sh", "-c", "cat /tmp/who; echo $EPISODE_SEED").stdout for child in children}
    assert len(draws) == 2
    assert all(draw.startswith("parent\n") for draw in draws)
    assert cli("rm", *children).stdout.split() == children
    assert cli("ls", "-q").stdout.split() == [sandbox]


def test_ctrl_c_leaves_none_of_the_children(sandbox: str, cli: Cli) -> None:
    process = cli.start("fork", sandbox, "-n", "20")
    with process:
        wait_for(lambda: len(cli("ls", "-q").stdout.split()) > 2, "the first children")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert cli("ls", "-q").stdout.split() == [sandbox]


def test_pause_refuses_requests_until_resume(sandbox: str, cli: Cli) -> None:
    assert cli("pause", sandbox).stdout == f"{sandbox} is paused\n"
    assert "is paused" in cli("exec", sandbox, "--", "true", status=1).stderr
    assert cli("resume", sandbox).stdout == f"{sandbox} is running\n"
    cli("exec", sandbox, "--", "true")


def test_hibernation_frees_the_memory_and_keeps_the_rest(sandbox: str, cli: Cli) -> None:
    cli("exec", sandbox, "--", "sh", "-c", "echo kept > /tmp/kept; sleep 1000 >/dev/null 2>&1 &")
    assert cli("hibernate", sandbox).stdout == f"{sandbox} is hibernated\n"
    wait_for(lambda: not cli.processes(), "the end of its processes")
    assert cli.of(sandbox)["status"] == "hibernated"
    assert cli("wake", sandbox).stdout == f"{sandbox} is running\n"
    assert cli("exec", sandbox, "--", "cat", "/tmp/kept").stdout == "kept\n"
    cli("hibernate", sandbox)
    assert cli("exec", sandbox, "--", "cat", "/tmp/kept").stdout == "kept\n", "a request wakes it"


def test_gc_leaves_a_sandbox_what_it_needs(sandbox: str, cli: Cli) -> None:
    cli("gc", "--older-than", "0", "--max-size", "0")
    cli("exec", sandbox, "--", "true")
    child = cli("fork", sandbox).stdout.strip()
    cli("rm", child)


def test_logs_show_the_console(sandbox: str, cli: Cli) -> None:
    cli("exec", sandbox, "--", "sh", "-c", "echo seen on the console > /dev/console")
    wait_for(lambda: "seen on the console" in cli("logs", sandbox).stdout, "the line")
    assert "seen on the console" in cli.json("logs", sandbox)["console"]


def test_logs_say_where_there_are_none_and_what_was_woken(sandbox: str, cli: Cli) -> None:
    child = cli("fork", sandbox).stdout.strip()
    done = cli("logs", child)
    assert done.stdout.strip() == ""
    assert done.stderr == f"{child} has printed nothing on its console since it was forked\n"
    cli("hibernate", child)
    done = cli("logs", child)
    assert f"{child} was hibernated, and was woken for this\n" in done.stderr
    cli("rm", child)


class Screen:
    """A terminal of ours with the command on it."""

    def __init__(self, cli: Cli, *arguments: str, rows: int, columns: int) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.slave)
        self.text = ""
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], env={**cli.env, "TERM": "dumb"}, stdin=self.slave, stdout=self.slave,
            stderr=self.slave, start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def expect(self, word: str, timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while word not in self.text:
            ready, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {word!r} within {timeout_s:g} s: {self.text!r}"
            self.text += os.read(self.master, 65536).decode("utf-8", "replace")
        self.text = self.text.partition(word)[2]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def screen(cli: Cli, sandbox: str) -> Iterator[Screen]:
    shown = Screen(cli, "shell", sandbox, rows=33, columns=101)
    yield shown
    shown.close()


def test_a_shell_has_a_real_terminal_of_our_size(screen: Screen) -> None:
    screen.type("echo $((6 * 7)) $TERM; stty size\n")
    screen.expect("42 dumb")
    screen.expect("33 101")
    screen.resize(40, 120)
    time.sleep(0.5)
    screen.type("stty size\n")
    screen.expect("40 120")
    screen.type("sleep 1000\n")
    time.sleep(0.5)
    screen.type("\x03")  # Ctrl-C is the guest's
    screen.type("echo still $((40 + 2))\n")
    screen.expect("still 42")
    assert termios.tcgetattr(screen.slave)[3] & (termios.ICANON | termios.ECHO) == 0
    screen.type("exit 5\n")
    assert screen.process.wait(15) == 5
    assert termios.tcgetattr(screen.slave) == screen.before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_shell_that_is_ended_leaves_the_terminal_as_it_was(screen: Screen, number: signal.Signals) -> None:
    screen.type("echo $((6 * 7))\n")
    screen.expect("42")
    screen.process.send_signal(number)
    assert screen.process.wait(15) == 128 + number
    assert termios.tcgetattr(screen.slave) == screen.before


def test_a_shell_runs_a_command_in_place_of_the_shell(cli: Cli, sandbox: str) -> None:
    shown = Screen(cli, "shell", sandbox, "--", "sh", "-c", "tty; exit 4", rows=24, columns=80)
    shown.expect("/dev/pts/")
    assert shown.process.wait(15) == 4
    shown.close()


def test_a_shell_needs_a_terminal(cli: Cli, sandbox: str) -> None:
    assert "shell needs a terminal" in cli("shell", sandbox, status=2).stderr


def test_rm_removes_those_that_it_can(cli: Cli, sandbox: str) -> None:
    child = cli("fork", sandbox).stdout.strip()
    done = cli("rm", "nobody", child, status=1)
    assert "no sandbox 'nobody'" in done.stderr
    assert done.stdout.split() == [child]
    assert cli("ls", "-q").stdout.split() == [sandbox]


def test_rm_wants_more_than_a_letter_or_two(cli: Cli, sandbox: str) -> None:
    done = cli("rm", sandbox[:4], status=1)
    assert f"{sandbox[:4]!r} is too short to remove a sandbox by" in done.stderr
    assert f"{sandbox}: cartpole, running" in done.stderr
    assert cli("ls", "-q").stdout.split() == [sandbox]


def test_an_exported_sandbox_runs_elsewhere(cli: Cli, tmp_path: Path) -> None:
    sandbox = cli("create", "cartpole", "--engine", "qemu").stdout.strip()  # gVisor runs no image from elsewhere
    cli("exec", sandbox, "--", "sh", "-c", "echo travelled > /tmp/travelled")
    file = tmp_path / "sandbox.microsim"
    cli("export", sandbox, str(file))
    assert cli.json("snapshot", "ls") == [], "what was saved for it is gone again"
    elsewhere = Cli(tmp_path / "elsewhere")
    assert elsewhere("import", str(file), "--name", "here").stdout == "here\n"
    assert not (elsewhere.root / "bases").exists(), "all that it needs came with it"
    there = elsewhere("create", "--from-snapshot", "here").stdout.strip()
    assert elsewhere("exec", there, "--", "cat", "/tmp/travelled").stdout == "travelled\n"
    assert elsewhere("rm", there).stdout.strip() == there
    wait_for(lambda: not elsewhere.processes(), "its end")


def test_bake_and_warm_say_what_they_reused(cli: Cli, sandbox: str) -> None:
    cli("warm", "cartpole")
    assert "there already" in cli("bake", "cartpole").stdout
    assert "there already" in cli("warm", "cartpole").stdout
    document = cli.json("warm", "cartpole")
    assert (document["template"], document["reused"]) == ("cartpole", True)
    assert "no template.lock" in cli("bake", str(new_template(cli.root)), "--locked", status=1).stderr


def new_template(folder: Path) -> Path:
    target = folder.parent / "fresh"
    shutil.copytree(REPOSITORY / "templates/cartpole", target, ignore=shutil.ignore_patterns("template.lock"))
    path = target / "template.yaml"
    path.write_text(path.read_text().replace("name: cartpole", "name: fresh"))
    return target
