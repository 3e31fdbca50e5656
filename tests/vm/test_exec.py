"""Commands in a guest: exact bytes, bounded output, and no survivors."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hosting import ON_ANY_ENGINE
from microsim_vm.errors import AgentError, CommandFailedError, CommandInterruptedError
from microsim_vm.guest import MAX_OUTPUT
from microsim_vm.machine import Machine
from microsim_vm.world import WarmWorld

pytestmark = pytest.mark.timeout(180)

SPLIT_CHARACTER = r"printf '\377\376\000\033'; printf '\342\202'; sleep 0.3; printf '\254'; printf '\001' >&2"
SURVIVOR = """
setsid sh -c 'trap "" TERM HUP INT; while :; do echo x >>/workspace/grows; sleep 0.05; done' &
setsid sh -c 'trap "" TERM HUP INT; exec sleep 300' >/dev/null 2>&1 &
echo started
sleep 300
"""

BACKGROUND = """
rm -f stop lives done
setsid sh -c 'until test -e stop; do echo noise; touch lives; sleep 0.02; done; echo last && touch done' &
echo started
until test -e lives; do sleep 0.02; done
exit 5
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


@ON_ANY_ENGINE
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
    result = machine.exec(SURVIVOR, timeout_seconds=2.0)
    assert time.monotonic() - started < 30.0
    assert 2000 <= result.duration_ms < 15000
    assert (result.timed_out, result.stdout) == (True, "started\n")
    _assert_it_stopped(machine)
    with pytest.raises(CommandFailedError, match=r"timed out after 0\.5 s"):
        machine.exec("sleep 60", timeout_seconds=0.5, check=True)


def _assert_it_stopped(machine: Machine) -> None:
    size = len(machine.filesystem.read("/workspace/grows"))
    assert size > 0
    time.sleep(0.5)
    assert len(machine.filesystem.read("/workspace/grows")) == size, "a survivor still writes"
    assert machine.exec("grep -lx sleep /proc/[0-9]*/comm").stdout == ""
    _assert_no_group_is_left(machine)


def _assert_no_group_is_left(machine: Machine) -> None:
    """None but that of the very command that looks."""
    deadline = time.monotonic() + 30.0
    while machine.exec("ls -d /sys/fs/cgroup/jobs/exec-*/ | wc -l").stdout != "1\n":
        assert time.monotonic() < deadline, "an empty control group was not swept"


def test_what_runs_in_the_background_outlives_the_command(machine: Machine) -> None:
    """It may go on printing into the pipe it has inherited, and is gone without a trace when it ends."""
    started = time.monotonic()
    result = machine.exec(BACKGROUND)
    assert time.monotonic() - started < 30.0
    assert (result.exit_code, result.timed_out) == (5, False)
    assert set(result.stdout.split()) == {"started", "noise"}
    machine.exec("rm lives; until test -e lives; do sleep 0.02; done", check=True)
    assert not machine.filesystem.exists("/workspace/done"), "it is still printing"
    machine.exec("touch /workspace/stop; until test -e /workspace/done; do sleep 0.1; done", check=True)
    _assert_no_group_is_left(machine)


def test_a_flood_from_the_background_holds_nothing_up(machine: Machine) -> None:
    started = time.monotonic()
    result = machine.exec("yes & exit 3", timeout_seconds=60)
    assert (result.exit_code, result.timed_out) == (3, False)
    assert time.monotonic() - started < 30.0
    assert machine.exec("pkill -x yes || kill $(grep -lx yes /proc/[0-9]*/comm | cut -d/ -f3)").exit_code == 0
    _assert_no_group_is_left(machine)


def test_a_server_is_started_and_asked(machine: Machine) -> None:
    machine.exec("python3 -m http.server 8123 --bind 127.0.0.1 & echo $! >/workspace/pid", check=True)
    ask = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8123/pid').status)"
    answer = machine.exec(f'for i in $(seq 50); do python3 -c "{ask}" 2>/dev/null && exit; sleep 0.2; done; exit 1')
    assert (answer.exit_code, answer.stdout) == (0, "200\n")
    machine.exec("kill $(cat /workspace/pid)", check=True)


@ON_ANY_ENGINE
def test_streamed_output_arrives_as_it_is_printed(machine: Machine) -> None:
    started = time.monotonic()
    seen: list[tuple[float, str]] = []
    errors: list[str] = []
    result = machine.exec_stream(
        r"printf 'a\342\202'; sleep 1; printf '\254b\377'; echo e >&2; exit 4",
        on_stdout=lambda text: seen.append((time.monotonic() - started, text)),
        on_stderr=errors.append,
    )
    assert [text for _, text in seen] == ["a", "€b\ufffd"]
    assert seen[1][0] - seen[0][0] > 0.5, "the first part was held back"
    assert (result.exit_code, result.stdout_bytes, errors) == (4, b"a\xe2\x82\xacb\xff", ["e\n"])
    assert machine.exec_stream("echo x").stdout == "x\n"
    cut: list[str] = []
    machine.exec_stream(r"printf '\342\202'", on_stdout=cut.append)
    assert cut == ["\ufffd"], "what is incomplete at the end is shown"
    timed_out = machine.exec_stream("echo x; sleep 60", on_stdout=cut.append, timeout_seconds=1)
    assert (timed_out.timed_out, timed_out.stdout, cut[1:]) == (True, "x\n", ["x\n"])


@ON_ANY_ENGINE
def test_a_callback_that_raises_kills_the_command(machine: Machine) -> None:
    def refuse(text: str) -> None:
        raise LookupError(text)

    with pytest.raises(LookupError, match="started"):
        machine.exec_stream("echo x >/workspace/grows\n" + SURVIVOR, on_stdout=refuse)
    _assert_it_stopped(machine)


@ON_ANY_ENGINE
def test_ctrl_c_kills_the_command(machine: Machine) -> None:
    threading.Timer(1.0, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        machine.exec(SURVIVOR)
    assert time.monotonic() - started < 30.0
    _assert_it_stopped(machine)


@ON_ANY_ENGINE
def test_a_cancellation_may_overtake_its_command(machine: Machine) -> None:
    args = {"argv": ["sleep", "60"], "cwd": None, "extra_env": {}, "user": None, "timeout_s": 60, "output_bytes": 0}
    machine._caller.call("exec.cancel", {"token": "overtaken"}, timeout_s=10)
    answer, _ = machine._caller.call("exec", {**args, "token": "overtaken"}, timeout_s=10)
    assert answer["exit_code"] == -9
    machine._caller.call("exec.cancel", {"token": "neverseen"}, timeout_s=10)
    with pytest.raises(AgentError, match="is no name for a command"):
        machine._caller.call("exec", {**args, "token": "../x"}, timeout_s=10)
    _assert_no_group_is_left(machine)


def test_another_user(machine: Machine) -> None:
    show = "id -u; id -g; id -G; echo $HOME $USER $LOGNAME"
    machine.exec(
        """echo 'pilot:x:1234:1234::/home/pilot:/bin/sh' >>/etc/passwd; echo 'pilot:x:1234:' >>/etc/group
           echo 'extra:x:4242:pilot' >>/etc/group; mkdir -p /home/pilot; chown 1234:1234 /home/pilot""",
        check=True,
    )
    assert machine.exec(show, user="pilot").stdout == "1234\n1234\n1234 4242\n/home/pilot pilot pilot\n"
    assert machine.exec(show, user="1234").stdout == machine.exec(show, user="pilot").stdout
    assert machine.exec("cat /etc/shadow", user="nobody").exit_code != 0
    assert machine.exec("kill -9 1; touch /etc/x", user="pilot").exit_code != 0
    assert machine.exec("echo $HOME", user="pilot", env={"HOME": "/tmp"}).stdout == "/tmp\n"
    assert machine.exec(show, user="root").stdout == "0\n0\n0\n/root root root\n"
    for user in ("nosuchuser", "98765", "-1", "", "9" * 30):
        with pytest.raises(AgentError, match="the guest has no user"):
            machine.exec("true", user=user)
    result = machine.exec(SURVIVOR.replace("/workspace/grows", "/home/pilot/grows"), user="pilot", timeout_seconds=1.0)
    assert result.timed_out
    assert machine.exec("grep -lx sleep /proc/[0-9]*/comm").stdout == ""


def test_a_command_whose_guest_dies_is_interrupted(cartpole: WarmWorld) -> None:
    """Never a success: what was printed until then is in the error, also behind pickle."""

    def run(machine: Machine, die: Callable[[], None]) -> None:
        seen: list[str] = []

        def printed(text: str) -> None:
            seen.append(text)
            threading.Timer(0.3, die).start()

        started = time.monotonic()
        with pytest.raises(CommandInterruptedError, match=r"sleep 60.*was interrupted") as caught:
            machine.exec_stream("echo é; echo e >&2; sleep 60", on_stdout=printed)
        assert time.monotonic() - started < 30.0
        for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
            assert error.partial.stdout_bytes == "é\n".encode()
            assert (error.partial.stdout, error.partial.stderr) == ("é\n", "e\n")
        assert seen == ["é\n"]

    with cartpole.fork(1) as machine:
        run(machine, lambda: os.kill(machine.pid, signal.SIGKILL))
    with cartpole.fork(1) as machine:
        run(machine, machine.close)


def test_commands_run_side_by_side(machine: Machine) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda word: machine.exec(["echo", word]).stdout, "abcd"))
    assert results == ["a\n", "b\n", "c\n", "d\n"]
    assert machine.timings["exec"] > 0
