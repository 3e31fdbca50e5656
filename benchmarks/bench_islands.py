"""What a network costs: raising an island, against shell commands for the same, and forks with one and without."""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import common
from microsim_vm.islands import namespaces
from microsim_vm.islands.island import Island
from microsim_vm.islands.plug import Wire
from microsim_vm.islands.policy import Network, pool_of
from microsim_vm.options import Options
from microsim_vm.templates import load_template
from microsim_vm.world import WarmWorld, warm

WIRES: Mapping[str, Mapping[str, Wire]] = {
    "a tap": {"sim": "tap"}, "a veth": {"sim": "veth"}, "a bridge of two taps": {"sim": "tap", "other": "tap"},
}  # fmt: skip
GATEWAY = "ip addr add 198.18.0.1/30 dev {0} && ip link set {0} up && ip link set lo up"
# The same with what a script would use; the namespace ends with its shell.
COMMANDS = {
    "a tap": "ip tuntap add dev t0 mode tap && " + GATEWAY.format("t0"),
    "a veth": (
        "unshare --net sleep 60 & far=$!; while [ /proc/$far/ns/net -ef /proc/self/ns/net ]; do :; done; "
        "ip link add v0 type veth peer name eth0 netns $far && "
        "nsenter --target $far --net sh -c 'ip addr add 198.18.0.2/30 dev eth0 && ip link set eth0 up' && "
        + GATEWAY.format("v0")
        + "; kill $far"
    ),
    "a bridge of two taps": (
        "ip link add b0 type bridge && for t in t0 t1; do ip tuntap add dev $t mode tap && "
        "ip link set $t master b0 && ip link set $t up || exit 1; done && " + GATEWAY.format("b0")
    ),
}  # fmt: skip


def by_commands(text: str) -> None:
    """Make a namespace and what is in it by shell commands."""
    private = ["--net"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--net"]
    subprocess.run(["unshare", *private, "sh", "-c", text], check=True, timeout=60, stderr=subprocess.DEVNULL)


def raising(count: int) -> None:
    """Print how long islands take, and the commands."""
    number = itertools.count()
    namespaces.maker()  # a process starts it once
    rows = []
    for name, wires in WIRES.items():
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(count):  # in turns, so that whatever else the machine does falls on both
            made: list[Island] = []

            def raise_one(wires: Mapping[str, Wire] = wires, made: list[Island] = made) -> None:
                made.append(Island(Network("island"), f"benchmark {next(number)}", wires, pool=pool_of()))

            ours += common.times(1, raise_one)
            made[0].close()
            theirs += common.times(1, lambda name=name: by_commands(COMMANDS[name]))
        ratio = statistics.median(theirs) / statistics.median(ours)
        rows.append([name, *common.summary(ours), f"{statistics.median(theirs):.1f}", f"{ratio:.1f}"])
    common.table(["an island with (ms)", "p50", "p99", "n", "commands, p50", "commands / island"], rows)


def forking(worlds: Mapping[str, WarmWorld], count: int) -> None:
    """Print how long forks take with an island and without, seed by seed in turns."""
    phases: dict[str, list[float]] = {}
    for world in worlds.values():
        with world.fork(0):
            pass  # the first fork of a process reads the engine and the snapshot from disk
    for seed in range(1, count + 1):
        for policy, world in worlds.items():
            with world.fork(seed) as machine:
                for name, took_ms in machine.timings.items():
                    phases.setdefault(f"{policy}: {name}", []).append(took_ms)
    common.table(["fork (ms)", "p50", "p99", "n"], [[name, *common.summary(took)] for name, took in phases.items()])
    island, none = (statistics.median(phases[f"{policy}: fork"]) for policy in ("island", "none"))
    print(f"an island adds {island - none:.1f} ms to a fork ({island / none:.2f} times one without, p50 against p50)")


def main() -> None:
    """Print the tables."""
    options = common.arguments(__doc__ or "", forks=40, islands=50)
    worlds = {}
    with tempfile.TemporaryDirectory() as folder:  # a bake writes a lock beside the template
        for policy in ("none", "island"):
            path = Path(folder, policy, options.world)
            path.mkdir(parents=True)
            text = f"name: {options.world}\nextends: {options.world}\nnetwork: {policy}\n"
            (path / "template.yaml").write_text(text)
            worlds[policy] = warm(load_template(path), Options(engine=options.engine), common.progress)
    print(f"world {options.world}, {worlds['none'].engine_line}")
    raising(options.islands)
    forking(worlds, options.forks)
    for world in worlds.values():
        world.close()


if __name__ == "__main__":
    main()
