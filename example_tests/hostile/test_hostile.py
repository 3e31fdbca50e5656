"""Controllers that do one bad thing each, and what comes of it.

pytest example_tests/hostile --microsim-world cartpole

Each test asserts the exact outcome of the controller's own episode, that an episode which runs beside it is bit by bit
the one that runs alone, and what it cost in time and in memory of the host.
"""

import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from microsim_vm.errors import (
    ControllerError,
    ControllerLateError,
    ControllerLimitError,
    ControllerTimeoutError,
    MicrosimError,
    WorldError,
)

FOLDER = Path(__file__).parent / "controllers"
SEED, NEIGHBOUR = 7, 8
LIMITS = {
    "memory_mib": 48,
    "processes": 16,
    "workspace_mib": 4,
    "workspace_files": 200,
    "output_bytes": 4096,
    "cpu_s": 60,
}
HOST_MIB = 700  # of a guest of 256 MiB, whatever it is made to do

pytestmark = [pytest.mark.seeds([SEED]), pytest.mark.microsim(world="cartpole", max_steps=20, limits=LIMITS)]


@dataclass(frozen=True)
class Outcome:
    """What comes of one controller.

    Attributes:
        error: The error that ends its episode; None where the episode ends as any other.
        words: What its message says, a regular expression.
        like: The harmless controller whose episode it has, bit by bit.
        stdout: All that it printed, a regular expression.
        attempts: What the report lists, regular expressions.
        refused: System calls that were refused; only QEMU's kernel tells.
        seconds: What the episode may take.
        limits: Limits of its own.
        timeout_seconds: Likewise.
    """

    error: type[Exception] | None = None
    words: str = ""
    like: str = "quiet.py"
    stdout: str = ""
    attempts: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    seconds: float = 90.0
    limits: dict = field(default_factory=dict)
    timeout_seconds: float = 120.0


OUTCOMES = {
    "answers_first": Outcome(ControllerError, "answered before it was asked"),
    "burns.py": Outcome(ControllerLimitError, "ended while acting", limits={"cpu_s": 1}),
    "crashes.py": Outcome(ControllerError, "killed by signal 11"),
    "daemon.py": Outcome(attempts=("left processes behind",)),
    "deep.py": Outcome(ControllerError, "raised RecursionError"),
    "delete_everything.py": Outcome(stdout="still there\n"),
    "descriptors.py": Outcome(),
    "endless_line": Outcome(ControllerError, "its line is longer than"),
    "escape.py": Outcome(refused=("unshare", "mount")),
    "exits.py": Outcome(ControllerError, "exited with 0"),
    "fill_disk.py": Outcome(attempts=("workspace",)),
    "fill_memory.py": Outcome(ControllerLimitError, "memory limit"),
    "flood.py": Outcome(ControllerTimeoutError, "still acting", stdout="x+.*x+", timeout_seconds=3),
    "fork_bomb.py": Outcome(attempts=("process limit", "left processes behind"), limits={"memory_mib": 160}),
    "huge.py": Outcome(ControllerError, "raised ValueError: Exceeds the limit"),
    "kill_everybody.py": Outcome(),
    "lies.py": Outcome(ControllerError, "raised RuntimeError: no"),
    "links.py": Outcome(),
    "many_files.py": Outcome(attempts=("files",)),
    "nan.py": Outcome(ControllerError, "not finite"),
    "nested": Outcome(ControllerError, "nested too deeply"),
    "never_answers.py": Outcome(ControllerLateError, "deadline of step 0", limits={"step_deadline_s": 1}),
    "not_a_number.py": Outcome(ControllerError, "no action"),
    "not_text.py": Outcome(stdout="(\ufffd\ufffd\x00\x1b\\[2J\u20ac){20}"),
    "panic.py": Outcome(refused=("reboot", "kexec_load")),
    "read_the_truth.py": Outcome(),
    "replace_modules.py": Outcome(like="push.py"),
    "scan.py": Outcome(stdout=r"interfaces \['lo'\]\n"),
    "survive.py": Outcome(stdout=r"FOUND \[\] False\n", attempts=("left processes behind",)),
    "terabyte.py": Outcome(ControllerError, "sent no answer"),
    "text_bomb.py": Outcome(ControllerError, "bytes of header, 262144 are allowed"),
    "threads.py": Outcome(attempts=("process limit",)),
    "trace.py": Outcome(refused=("ptrace", "process_vm_readv", "seccomp", "prctl")),
    "write_a_score.py": Outcome(like="push.py", stdout=".*1000000000.*\n"),
    "wrong_shape.py": Outcome(WorldError, "float"),  # a world without an action space has to look for itself
}
ON_GVISOR = {
    # Its kernel does not limit files: whoever has too many is ended, and has no chance to go on.
    "many_files.py": Outcome(ControllerLimitError, "files"),
}


@pytest.fixture(scope="module")
def alone(warm_world):
    """The episodes of harmless controllers, with nobody beside them."""
    records = {}
    for name, seed in (("quiet.py", SEED), ("push.py", SEED), ("quiet.py", NEIGHBOUR)):
        (records[name, seed],) = warm_world.map(FOLDER / name, [seed], max_steps=20)
    return records


@pytest.fixture(scope="module")
def next_door(warm_world):
    """A microVM that is there all the time, whatever happens beside it."""
    with warm_world.fork(NEIGHBOUR) as machine:
        yield machine


class Neighbour(threading.Thread):
    """Runs the same episode next door again and again, and looks at what a guest costs its host."""

    def __init__(self, machine, pid):
        super().__init__(daemon=True)
        self.records, self.peak_mib = [], 0.0
        self._machine = machine
        self._program = (FOLDER / "quiet.py").read_bytes()
        self._process = psutil.Process(pid)
        self._over = threading.Event()

    def run(self):
        while not (self._over.is_set() and self.records):
            self.peak_mib = max(self.peak_mib, self._mib())
            self.records.append(self._machine.run_episode(self._program, filename="quiet.py", max_steps=20))

    def _mib(self):
        processes = [self._process, *self._process.children(recursive=True)]
        return sum(process.memory_info().rss for process in processes) / 2**20

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self.join(timeout=60)


def same(episode, record):
    """Whether two episodes have the same numbers, bit by bit."""
    ours, theirs = episode.trajectory, record.columns
    return ours.keys() == theirs.keys() and all(ours[name].data == theirs[name].data for name in ours)


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_controller_that_nobody_should_trust(rollout, warm_world, alone, next_door, name):
    on_qemu = warm_world.snapshot.manifest.engine["engine"] == "qemu"
    outcome = OUTCOMES[name] if on_qemu else ON_GVISOR.get(name, OUTCOMES[name])
    error = None
    began = time.monotonic()
    with Neighbour(next_door, rollout.machine.pid) as neighbour:
        try:
            rollout.run(FOLDER / name, limits=outcome.limits, timeout_seconds=outcome.timeout_seconds)
        except MicrosimError as raised:
            error = raised
        took = time.monotonic() - began

    assert type(error) is (outcome.error or type(None)), error
    assert re.search(outcome.words, str(error or ""), re.DOTALL), error
    if outcome.error is not WorldError:  # after which there is no episode
        (episode,) = rollout.episodes
        assert re.fullmatch(outcome.stdout, episode.stdout, re.DOTALL), episode.stdout
        listed = "\n".join(episode.attempts)
        for words in (*outcome.attempts, *(outcome.refused if on_qemu else ())):
            assert re.search(words, listed), listed
    if error is None:
        reference = alone[outcome.like, SEED]
        assert same(episode, reference)
        assert dict(episode.metrics) == reference.metrics

    # Nobody else has noticed, and nothing of it is left: the next episode of the same rollout is as good as any.
    assert all(record.columns == alone["quiet.py", NEIGHBOUR].columns for record in neighbour.records)
    assert rollout.exec("pgrep -u 10001 -a || true").stdout.count("\n") == 0
    again = rollout.run(FOLDER / "quiet.py", seed=SEED)
    assert same(again, alone["quiet.py", SEED])
    assert again.stdout == ""

    rollout.record("seconds", took)
    rollout.record("host_mib", neighbour.peak_mib)
    assert took < outcome.seconds
    assert neighbour.peak_mib < HOST_MIB


def test_what_one_episode_leaves_the_next_does_not_find(rollout):
    for _ in range(2):
        assert rollout.run(FOLDER / "survive.py").stdout == "FOUND [] False\n"
