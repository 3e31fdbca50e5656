"""Commands and files in a guest: exact bytes, bounded output, and no survivors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from microsim_vm.errors import AgentError, CommandFailedError
from microsim_vm.machine import MAX_OUTPUT, Machine
from microsim_vm.world import WarmWorld

pytestmark = pytest.mark.timeout(180)

SPLIT_CHARACTER = r"printf '\377\376\000\033'; printf '\342\202'; sleep 0.3; printf '\254'; printf '\001' >&2"
SURVIVOR = """
setsid sh -c 'trap "" TERM HUP INT; while :; do echo x >>/workspace/grows; sleep 0.05; done' &
setsid sh -c 'trap "" TERM HUP INT; exec sleep 300' >/dev/null 2>&1 &
echo started
sleep 300
"""


@pytest.fixture(scope="module")
def machine(cartpole: WarmWorld) -> Iterator[Machine]:
    """One guest for all tests of this file: what one test leaves must not trouble the next."""
    with cartpole.fork(7) as fork:
        yield fork


def test_exit_codes_and_streams(machine: Machine) -> None:
    result = machine.exec("echo out; echo err >&2; exit 7")
    assert (result.exit_code, result.stdout, result.stderr, result.timed_out) == (7, "out\n", "err\n", False)
    assert machine.exec(["sh", "-c", "kill -SEGV $$"]).exit_code == -11
    assert machine.exec(["printf", "%s|", "a b", "$HOME", "'"]).stdout == "a b|$HOME|'|"
    assert machine.exec("no-such-command").exit_code == 127
    with pytest.raises(AgentError, match="no-such-program"):
        machine.exec(["no-such-program"])


def test_check_raises_with_the_result(machine: Machine) -> None:
    with pytest.raises(CommandFailedError, match="exited with 3") as caught:
        machine.exec("echo partial; echo reason >&2; exit 3", check=True)
    assert caught.value.result.stdout == "partial\n"
    assert "reason" in str(caught.value)
    assert machine.exec("true", check=True).exit_code == 0


def test_input_folder_and_environment(machine: Machine) -> None:
    assert machine.exec("cat", stdin=b"\x00\xff" * 300_000).stdout_bytes == b"\x00\xff" * 300_000
    assert machine.exec("cat").stdout == ""
    assert machine.exec("exit 0", stdin="x" * 1_000_000).exit_code == 0  # reads none of it
    assert machine.exec("pwd").stdout == "/workspace\n"
    assert machine.exec("pwd", cwd="/usr/bin").stdout == "/usr/bin\n"
    assert machine.exec("echo $A-$EPISODE_SEED-$TZ", env={"A": "é", "TZ": "Asia/Tokyo"}).stdout == "é-7-Asia/Tokyo\n"
    assert machine.exec("id -u").stdout == "0\n"
    with pytest.raises(AgentError, match="/no/such/folder"):
        machine.exec("true", cwd="/no/such/folder")


def test_output_bytes_stay_as_they_are(machine: Machine) -> None:
    result = machine.exec(SPLIT_CHARACTER)
    assert result.stdout_bytes == b"\xff\xfe\x00\x1b\xe2\x82\xac"
    assert result.stdout == "\ufffd\ufffd\x00\x1b€"
    assert result.stderr_bytes == b"\x01"


def test_endless_output_is_bounded(machine: Machine) -> None:
    result = machine.exec("head -c 100000000 /dev/zero; echo end >&2", timeout_seconds=120)
    assert (result.exit_code, result.stderr) == (0, "end\n")
    assert len(result.stdout_bytes) == MAX_OUTPUT
    assert result.dropped_bytes == 100_000_000 - MAX_OUTPUT


def test_a_time_out_leaves_no_survivor(machine: Machine) -> None:
    started = time.monotonic()
    result = machine.exec(SURVIVOR, timeout_seconds=1.0)
    assert time.monotonic() - started < 10.0
    assert 1000 <= result.duration_ms < 3000
    assert (result.timed_out, result.stdout) == (True, "started\n")
    _assert_it_stopped(machine)
    with pytest.raises(CommandFailedError, match=r"timed out after 0\.5 s"):
        machine.exec("sleep 60", timeout_seconds=0.5, check=True)


def test_the_end_of_the_command_ends_what_it_started(machine: Machine) -> None:
    """Also where the leftover floods the pipe that we read: the command's own end is what counts."""
    started = time.monotonic()
    result = machine.exec(SURVIVOR.replace("sleep 300\n", "sleep 0.5; exit 5\n") + "\n", timeout_seconds=60)
    assert (result.exit_code, result.timed_out) == (5, False)
    _assert_it_stopped(machine)
    result = machine.exec("yes & exit 0", timeout_seconds=60)
    assert (result.exit_code, result.timed_out) == (0, False)
    assert time.monotonic() - started < 30.0


def _assert_it_stopped(machine: Machine) -> None:
    size = len(machine.filesystem.read("/workspace/grows"))
    assert size > 0
    time.sleep(0.5)
    assert len(machine.filesystem.read("/workspace/grows")) == size, "a survivor still writes"
    assert machine.exec("grep -lx sleep /proc/[0-9]*/comm").stdout == ""
    assert machine.exec("ls -d /sys/fs/cgroup/exec-*/ | wc -l").stdout == "1\n"  # that of this very command


def test_commands_run_side_by_side(machine: Machine) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda word: machine.exec(["echo", word]).stdout, "abcd"))
    assert results == ["a\n", "b\n", "c\n", "d\n"]
    assert machine.timings["exec"] > 0


def test_files_round_trip(machine: Machine) -> None:
    files = machine.filesystem
    files.write("/workspace/deep/folder/data", bytes(range(256)) * 4096)
    assert files.read("/workspace/deep/folder/data") == bytes(range(256)) * 4096
    files.write("/workspace/deep/text", "é", mode=0o755)
    files.write("/workspace/deep/text", "ü", mode=0o755)
    assert machine.exec("cat text; stat -c %a text; ls -A", cwd="/workspace/deep").stdout == "ü755\nfolder\ntext\n"
    machine.exec(["ln", "-s", "/nowhere", "/workspace/deep/link"], check=True)
    folder, link, text = files.list("/workspace/deep")
    assert [folder.name, link.name, text.name] == ["folder", "link", "text"]
    assert [folder.is_dir, link.is_dir, text.is_dir] == [True, False, False]
    assert text.size == 2
    machine.exec(["sh", "-c", r"mkdir bad; touch bad/$(printf '\377')"], check=True, cwd="/workspace")
    assert [entry.name for entry in files.list("/workspace/bad")] == ["\udcff"]


def test_files_that_are_none_are_refused_at_once(machine: Machine) -> None:
    files = machine.filesystem
    machine.exec("mkfifo /workspace/fifo; ln -s /dev/zero /workspace/endless", check=True)
    started = time.monotonic()
    for path in ("/workspace/fifo", "/dev/zero", "/workspace/endless", "/workspace", "/dev/tty"):
        with pytest.raises(AgentError, match=r"regular file|No such device"):
            files.read(path)
    for path in ("/workspace/missing", "/workspace/missing/deeper", "bad\0name"):
        with pytest.raises(AgentError):
            files.read(path)
        with pytest.raises(AgentError):
            files.list(path)
    with pytest.raises(AgentError, match="Not a directory"):
        files.list("/etc/passwd")
    machine.exec("truncate -s 200M /workspace/big", check=True)
    with pytest.raises(AgentError, match="larger than"):
        files.read("/workspace/big")
    with pytest.raises(AgentError):
        files.write("/workspace", b"")
    with pytest.raises(AgentError):
        files.write("/proc/nothing", b"")
    files.write("/workspace/fifo", b"now a file")
    assert files.read("/workspace/fifo") == b"now a file"
    assert time.monotonic() - started < 60.0
    assert [entry.name for entry in files.list("/") if entry.name.startswith(".")] == []
