"""Controllers in any language: programs that speak lines of JSON, and every way in which one can break that."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosting import ON_ANY_ENGINE, REPOSITORY, Warmed
from microsim_vm import controllers
from microsim_vm.episode import EpisodeRecord
from microsim_vm.errors import ControllerError, ControllerTimeoutError
from microsim_vm.machine import Machine
from microsim_vm.world import WarmWorld

# What programs say is looked at in the world's process, whatever the engine.
pytestmark = [pytest.mark.timeout(180), ON_ANY_ENGINE]

EXAMPLES = REPOSITORY / "example_tests/controllers"


@pytest.fixture(scope="module")
def machine(warmed: Warmed) -> Iterator[Machine]:
    with warmed("faulty").fork(0) as fork:
        yield fork


def run(machine: Machine, program: str | bytes, *words: str, seconds: float = 20.0, steps: int = 10) -> EpisodeRecord:
    data = program.encode() if isinstance(program, str) else program
    return machine.run_episode(
        data, filename="pilot", kind="program", words=words, timeout_seconds=seconds, max_steps=steps
    )


def test_a_shell_script_and_a_c_program_balance_the_pole(cartpole: WarmWorld, tmp_path: Path) -> None:
    with cartpole.fork(3) as machine:
        script = controllers.read(EXAMPLES / "balance.sh", "program")
        by_shell = run(machine, script.data, steps=20)
        assert (by_shell.error, by_shell.steps) == (None, 20)
        if shutil.which("cc") is None:
            pytest.skip("no C compiler")
        binary = tmp_path / "balance"
        subprocess.run(["cc", "-O2", "-static", "-Wall", "-Werror", "-o", binary, EXAMPLES / "balance.c"],
                       check=True, timeout=60)  # fmt: skip
        by_c = run(machine, controllers.read(binary, "program").data, steps=100)
        assert (by_c.error, by_c.steps, by_c.metrics["fallen"]) == (None, 100, 0.0)
        assert by_c.simulated_s == pytest.approx(2.0)


ECHO = """#!/usr/bin/python3
import json, os, sys
sys.stderr.write(repr((sys.argv, os.getuid(), os.getcwd(), sorted(os.environ.get(n, "") for n in ("HOME", "USER")))))
for line in sys.stdin:
    sys.stderr.write("\\n" + line.strip())
    print('{"action": %d, "more": null}' % json.loads(line)["step"], flush=True)
sys.stderr.write("\\nend")
"""


def test_what_a_program_is_given(machine: Machine) -> None:
    record = run(machine, ECHO, "an argument", "é")
    assert (record.error, record.steps, record.controller_stdout) == (None, 10, b"")
    assert record.columns["action"].tolist() == list(range(10))
    first, line, second, *_, last = record.controller_stderr.decode().splitlines()
    assert first.startswith("(['/controller/pilot', 'an argument', 'é'], 10001, '/workspace/controller'")
    assert line.startswith('{"protocol":1,"step":0,"observation":{"position":[0.0,3.14')
    assert '"on":true},"seed":' in line
    assert second.startswith('{"step":1,"observation"')
    assert "seed" not in second
    assert last == "end", "it did not see the end of its input"
    again = run(machine, ECHO, "an argument", "é")
    assert again.controller_stderr == record.controller_stderr, "the same seed gives another controller's seed"


SAY = "#!/usr/bin/python3\nimport os, sys, time\ninput()\ndef say(data):\n    os.write(1, data)\n"


@pytest.mark.parametrize(
    ("body", "message", "cause"),
    [
        ("say(b'garbage\\n')", "its line is no JSON in UTF-8 (JSONDecodeError): 'garbage'", ""),
        ("say(b'\\xff\\xfe\\n')", "no JSON in UTF-8 (UnicodeDecodeError): '\\\\xff\\\\xfe'", ""),
        ("say(b'[1]\\n')", "no object with an \"action\": '[1]'", ""),
        ("say(b'{}\\n')", 'no object with an "action"', ""),
        ("say(b'[' * 100000 + b'\\n')", "no JSON", ""),
        ("say(b'{\"action\": NaN}\\n')", "not finite", ""),
        ("say(b'{\"action\": \"left\"}\\n')", "no action", ""),
        ("say(b'{\"action\": [[1, 2], [3]]}\\n')", "cannot be used", ""),
        ("say(b'{\"action\": 1')", "its line has no end: b'{\"action\": 1'", ""),
        ("while True: say(b'x' * 65536)", "longer than 262144 bytes", ""),
        ("sys.exit(7)", "process ended while acting", "it exited with 7"),
        ("os.kill(os.getpid(), 11)", "process ended while acting", "it was killed by signal 11"),
        ("say(b'{\"action\": 1}\\n{\"action\": 1}\\n'); time.sleep(60)", "answered before it was asked, at step 1", ""),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_told(machine: Machine, body: str, message: str, cause: str) -> None:
    record = run(machine, SAY + body + "\n")
    assert type(record.error) is ControllerError, repr(record)
    assert message in record.error.what
    assert record.error.cause == cause


@pytest.mark.parametrize(
    ("program", "word"),
    [("#!/no/such/interpreter\n", "No such file"), ("#!/usr/bin/python3 -c\x00", ""), (b"\x7fELF" + bytes(100), "")],
)
def test_what_cannot_be_run_is_told(machine: Machine, program: str | bytes, word: str) -> None:
    record = run(machine, program)
    assert type(record.error) is ControllerError
    assert "process ended while acting" in record.error.what
    assert record.error.cause.startswith("it exited with ")
    assert word in record.controller_stderr.decode()


def test_one_that_never_answers_or_speaks_first(machine: Machine) -> None:
    silent = run(machine, "#!/bin/sh\ntrap '' TERM HUP INT\nwhile :; do sleep 1; done\n", seconds=1.5)
    assert type(silent.error) is ControllerTimeoutError
    early = run(machine, "#!/bin/sh\necho '{\"action\": 1}'\nread line\nread line\necho '{\"action\": 1}'\ncat\n")
    assert type(early.error) is ControllerError
    after = run(machine, "#!/bin/sh\nwhile read -r line; do echo '{\"action\": 1}'; done\n")
    assert (after.error, after.steps, after.attempts) == (None, 10, ())
