"""The deterministic machine: forks of one seed compared bit by bit, its speed, and schedules per minute."""

from __future__ import annotations

import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import common
from microsim_vm.options import Options
from microsim_vm.world import WarmWorld, warm

RACES = Path(__file__).resolve().parent / "races"
RUN = "cat > /tmp/race && chmod 755 /tmp/race && exec /tmp/race"
# What a rollout's processor does most: interpret Python.
SPIN = "import time; t = time.perf_counter(); sum(i * i for i in range({})); print(time.perf_counter() - t)"


class Ran(NamedTuple):
    """What one fork left.

    Attributes:
        output: What the program printed.
        digest: Of the whole machine at its end.
    """

    output: str
    digest: str


def compiled(folder: Path) -> bytes:
    """Return the C++ program, which needs no library."""
    subprocess.run(["g++", "-O1", "-static", "-s", "-pthread", "-o", folder / "race", RACES / "race.cpp"], check=True)
    return (folder / "race").read_bytes()


def ran(world: WarmWorld, program: str, binary: bytes, seed: int, schedule: int | None = None) -> Ran:
    """Run a program in a fork of its own."""
    with world.fork(seed, schedule=schedule) as machine:
        if program == "race.cpp":
            result = machine.exec(RUN, stdin=binary, check=True)
        else:
            result = machine.exec(["python3", "-"], stdin=(RACES / program).read_bytes(), check=True)
        return Ran(result.stdout.strip(), machine.run_digest)


def main() -> None:
    """Print the tables, and with ``--json`` the figures."""
    options = common.arguments(
        __doc__ or "", world="cartpole", forks=50, seeds=5, schedules=50, workers=os.cpu_count() or 1, json=""
    )
    world = warm(common.template(options.world), Options(deterministic=True), common.progress)
    print(
        f"world {options.world}, {world.engine_line}; {common.machine()}; load {os.getloadavg()[0]:.1f} at the start\n"
    )
    figures: dict[str, object] = {"machine": common.machine(), "load": os.getloadavg()}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        binary = compiled(Path(folder))
        programs = ("threads.py", "race.cpp", "peers.py", "idle.py")
        rows = []
        for program in programs:
            for seed in range(1, options.seeds + 1):
                started = time.monotonic()
                found = list(pool.map(lambda _: ran(world, program, binary, seed), range(options.forks)))  # noqa: B023
                took = time.monotonic() - started
                outputs = collections.Counter(each.output for each in found)
                digests = collections.Counter(each.digest for each in found)
                rows.append([program, str(seed), str(len(found)), str(outputs.most_common(1)[0][1]),
                             str(digests.most_common(1)[0][1]), f"{took / len(found):.2f}"])  # fmt: skip
                common.progress(" ".join(rows[-1]))
                if len(digests) > 1:
                    common.progress(f"{outputs} {digests}")
        figures["identity"] = rows
        common.table(["program", "seed", "forks", "equal outputs", "equal digests", "seconds per fork"], rows)

        rows = []
        for program in programs:
            started = time.monotonic()
            found = list(pool.map(lambda schedule: ran(world, program, binary, 1, schedule), range(options.schedules)))  # noqa: B023
            minutes = (time.monotonic() - started) / 60.0
            words = [each.output.split() for each in found]
            rows.append([program, str(len(found)), str(len({word[1] for word in words})),
                         str(sum(word[0] != "0" for word in words)), f"{len(found) / minutes:.0f}"])  # fmt: skip
            common.progress(" ".join(rows[-1]))
        figures["schedules"] = rows
        common.table(["program", "schedules", "interleavings", "with lost updates", "schedules per minute"], rows)
    figures["speed"] = rows = speeds(world, options.world)
    common.table(["Python loop of 2000000 rounds", "seconds", "ratio"], rows)
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")


def speeds(world: WarmWorld, name: str) -> list[list[str]]:
    """Return how long the same loop takes natively, under plain TCG, and in a deterministic machine, by our clock."""
    few, many = 1000, 2_001_000
    plain = warm(common.template(name), Options(engine="qemu", accel="tcg"), common.progress)

    def native(rounds: int) -> float:
        return float(subprocess.run(
            [sys.executable, "-c", SPIN.format(rounds)], capture_output=True, text=True, check=True
        ).stdout)  # fmt: skip

    def guest(of: WarmWorld, rounds: int) -> float:
        with of.fork(1) as machine:
            started = time.monotonic()
            machine.exec(["python3", "-c", SPIN.format(rounds)], check=True)
            return time.monotonic() - started

    measured = {
        "native": statistics.median(native(many) - native(few) for _ in range(3)),
        "TCG": statistics.median(guest(plain, many) - guest(plain, few) for _ in range(3)),
        "TCG, deterministic": statistics.median(guest(world, many) - guest(world, few) for _ in range(3)),
    }
    return [[label, f"{value:.2f}", f"{value / measured['TCG']:.2f}"] for label, value in measured.items()]


if __name__ == "__main__":
    main()
