"""Networks of rollouts as users of the plugin see them: machines, failure sections, captures, options."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.timeout(600)

Run = Callable[..., pytest.RunResult]
ISLE, DUO = "--microsim-world=isle", "--microsim-world=duo"
QEMU = "--microsim-engine=qemu"
LONG = "straße_" + "ü" * 73
SOCKET = "import socket; socket.socket(type=socket.SOCK_DGRAM)"
SEND = f"""
def send(machine, text):
    machine.exec(["python3", "-c", f"{SOCKET}.sendto({{text.encode()!r}}, ('gateway', 9))"], check=True)
"""
# The image of a template does not depend on its policy: all tests of this file share two.
ISLE_TEMPLATE = "name: isle\nextends: cartpole\nnetwork: island\npublish: [8000]\n"
DUO_TEMPLATE = "name: duo\nextends: cartpole\nnetwork: island\nmachines: {controller: {template: isle}}\n"


@pytest.fixture(autouse=True)
def templates(pytester: pytest.Pytester) -> Path:
    folder = pytester.path / "templates"
    for name, text in (("isle", ISLE_TEMPLATE), ("duo", DUO_TEMPLATE)):
        (folder / name).mkdir(parents=True)
        (folder / name / "template.yaml").write_text(text)
    return folder


def frames_of(path: Path) -> list[bytes]:
    data = path.read_bytes()
    assert struct.unpack_from("<IHH", data) == (0xA1B2C3D4, 2, 4)
    frames, at = [], 24
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at + 8)
        frames.append(data[at + 16 : at + 16 + length])
        at += 16 + length
    assert at == len(data)
    return frames


def holding(folder: Path, text: str) -> list[Path]:
    """Return the captures with a frame that has this text in it."""
    return [path for path in folder.iterdir() if any(text.encode() in frame for frame in frames_of(path))]


def test_failed_rollouts_leave_their_frames_and_say_what_their_network_was(
    pytester: pytest.Pytester, run: Run, workers: int
) -> None:
    pytester.makepyfile(
        f"""
        from pathlib import Path
        import pytest

{textwrap.indent(SEND, "        ")}
        @pytest.mark.seeds([1, 10])
        def test_{LONG}(rollout):
            send(rollout.machine, f"seed {{rollout.seed}} speaks")
            assert rollout.seed != 10

        @pytest.fixture
        def unready(rollout):
            send(rollout.machine, "set-up speaks")
            raise RuntimeError("not ready")

        def test_set_up(rollout, unready):
            pass

        @pytest.mark.flaky(reruns=1)
        def test_again(rollout):
            tries = Path("tries")
            tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
            send(rollout.machine, f"try {{len(tries.read_text())}} speaks")
            assert False

        @pytest.mark.microsim(world="cartpole")
        def test_alone(rollout):
            assert rollout.published == {{}}
            assert False
        """
    )
    result = run(ISLE, QEMU, "--microsim-pcap=new/frames", "--junitxml=report.xml")
    outcomes = result.parseoutcomes()
    assert (outcomes.get("passed"), outcomes.get("failed"), outcomes.get("errors")) == (1, 3, 1), result.stdout.str()
    text = result.stdout.str()
    folder = pytester.path / "new" / "frames"
    assert len(list(folder.iterdir())) == 3
    for path in folder.iterdir():
        assert path.name.isascii()
        assert len(path.name) <= 100
        assert path.suffix == ".pcap"
        assert f"capture: {path}" in text
    assert len({*holding(folder, "seed 10 speaks"), *holding(folder, "set-up speaks")}) == 2
    assert holding(folder, "seed 1 speaks") == []
    assert holding(folder, "try 2 speaks") != []
    assert holding(folder, "try 1 speaks") == []

    line = (
        r"network: island; subnet (198\.18\.\d+\.\d+/30); eth0 198\.18\.\d+\.\d+ at ms\w{12}; published 8000 at 127\."
    )
    assert len(set(re.findall(line, text))) == 3
    assert text.count("ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST") == 3  # where there is a network
    assert text.count("CYCLONEDDS_URI=<CycloneDDS><Domain Id='any'>") == 3
    assert text.count("network: none, a loopback and nothing else") == 1
    assert "capture: none, there is no network to capture" in text
    assert f"--microsim-pcap {folder}" in next(line for line in result.outlines if line.startswith("replay: "))
    cases = {case.get("name"): case for case in ElementTree.parse(pytester.path / "report.xml").iter("testcase")}
    passed = {each.get("name"): each.get("value") for each in cases[f"test_{LONG}[seed-0001]"].iter("property")}
    assert passed["microsim_network"] == "island"
    assert re.fullmatch(r"198\.18\.\d+\.\d+/30", passed["microsim_subnet"] or "")
    alone = {each.get("name"): each.get("value") for each in cases["test_alone"].iter("property")}
    assert alone["microsim_network"] == "none"
    assert "microsim_subnet" not in alone


def test_frames_of_forks_and_of_a_rollout_that_fails_at_its_end_are_kept_too(
    pytester: pytest.Pytester, run: Run
) -> None:
    pytester.makepyfile(
        f"""
        import pytest

{textwrap.indent(SEND, "        ")}
        @pytest.fixture
        def late(rollout):
            yield
            raise RuntimeError("too late")

        def test_end(rollout, late):
            send(rollout.machine, "the first speaks")

        def test_forks(rollout):
            for number, child in enumerate(rollout.fork(2)):
                send(child.machine, f"child {{number}} speaks")
            assert False

        def test_good(rollout):
            send(rollout.fork(1)[0].machine, "nobody asks")
        """
    )
    result = run(ISLE, QEMU, "--microsim-pcap=frames")
    result.assert_outcomes(passed=2, failed=1, errors=1)
    folder = pytester.path / "frames"
    (end,) = holding(folder, "the first speaks")
    children = [holding(folder, f"child {number} speaks") for number in range(2)]
    (forks,) = {*folder.iterdir()} - {end, *children[0], *children[1]}
    assert children == [[forks.with_name(f"{forks.stem}-child{number}.pcap")] for number in (1, 2)]
    assert f"capture: {end}" in result.outlines
    assert f"capture: {forks}; of its forks {forks.stem}-child1.pcap and so on" in result.outlines


def test_a_rollout_of_several_machines(pytester: pytest.Pytester, run: Run, workers: int) -> None:
    pytester.makepyfile(
        """
        SERVE = (
            "import socket; s = socket.create_server(('', 9000)); print('up', flush=True); c, _ = s.accept();"
            "c.sendall(b'from ' + socket.gethostname().encode()); c.close()"
        )
        CALL = "import socket; print(socket.create_connection(('sim', 9000), 20).recv(100).decode())"

        def test_they_meet(rollout):
            assert set(rollout.machines) == {"sim", "controller"}
            assert rollout.machines["sim"] is rollout.machine
            controller = rollout.machines["controller"]
            controller.filesystem.write("/tmp/here", "x")
            assert not rollout.filesystem.exists("/tmp/here")
            serve = 'python3 -c "$1" > /tmp/up & until grep -q up /tmp/up; do sleep 0.1; done'
            rollout.exec(["sh", "-c", serve, "sh", SERVE], check=True)
            answer = controller.exec(["python3", "-c", CALL], check=True).stdout
            assert answer == f"from {rollout.machine.id}\\n"

        def test_it_cannot_be_forked(rollout):
            rollout.fork(2)
        """
    )
    result = run(DUO, QEMU)
    result.assert_outcomes(passed=1, failed=1)
    text = result.stdout.str()
    assert "a machine of a rollout of several cannot be forked" in text
    assert "pytest_microsim/" not in text  # the traceback ends in the test
    assert re.search(r"; machines sim 198\.18\.[\d.]+, controller 198\.18\.[\d.]+", text)
    assert "ROS_AUTOMATIC_DISCOVERY_RANGE=SUBNET" in text
    result.stdout.re_match_lines([r"duo \(\w{12}\): qemu .*; 2 rollouts, fork p50 \d+ ms"])
    result.stdout.re_match_lines([r"isle \(\w{12}\): qemu .*; 2 further machines, fork p50 \d+ ms"])


def test_what_a_rollout_publishes_and_what_it_is_refused(pytester: pytest.Pytester, run: Run, templates: Path) -> None:
    (templates / "isle" / "template.yaml").write_text(
        ISLE_TEMPLATE.replace("network: island", 'network: egress\negress: ["192.0.2.77:80"]')
    )
    pytester.makepyfile(
        """
        import time, urllib.request

        def test_it(rollout):
            ((port, place),) = rollout.published.items()
            assert (port, place[0]) == (8000, "127.0.0.1")
            rollout.exec("cd /usr/share && python3 -m http.server 8000 > /tmp/log 2>&1 &", check=True)
            for _ in range(100):
                try:
                    page = urllib.request.urlopen(f"http://{place[0]}:{place[1]}/", timeout=10).read()
                    break
                except OSError:
                    time.sleep(0.2)
            assert b"Directory listing" in page
            call = "import socket; print(socket.socket().connect_ex(('192.0.2.78', 81)))"
            assert int(rollout.exec(["python3", "-c", call], check=True).stdout) > 0
            assert False
        """
    )
    result = run(ISLE, QEMU)
    result.assert_outcomes(failed=1)
    line = r"network: egress; .*; published 8000 at 127\.0\.0\.1:\d+; refused or failed tcp 192\.0\.2\.78:81"
    assert re.search(line, result.stdout.str())


def test_rollouts_wait_for_the_few_addresses_that_there_are(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.seeds(range(4))
        def test_it(rollout):
            assert rollout.machine.network["address"] == "10.213.77.2"
        """
    )
    result = run(ISLE, QEMU, "--microsim-subnets=10.213.77.0/30", "-n2")
    result.assert_outcomes(passed=4)


def test_addresses_that_do_not_suffice_are_a_clear_error(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile("def test_it(rollout): pass")
    pytester.makeini("[pytest]\nmicrosim_subnets = 10.213.77.0/30")
    result = run(DUO, QEMU)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*an island of 2 machines needs a /29, and the pool is 10.213.77.0/30", "*next step: *--microsim-subnets*"]
    )
    for subnets, error in (
        ("127.0.0.0/24", "127.0.0.0/24 has no addresses that a machine can have"),
        ("10.0.0.1/8", "'10.0.0.1/8' is no range of addresses: * has host bits set"),
    ):
        result = run(ISLE, QEMU, f"--microsim-subnets={subnets}")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: --microsim-subnets: {error}"])


@pytest.mark.usefixtures("run")  # which sets the cache
def test_the_network_of_a_sandbox_is_listed_while_it_lives(templates: Path) -> None:
    def microsim(*words: str) -> str:
        command = [sys.executable, "-m", "microsim_vm", *words]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=200).stdout.strip()

    def machines(sandbox: str) -> list[dict[str, Any]]:
        listed = json.loads(microsim("net", "--json"))
        return [each for island in listed for each in island["machines"] if sandbox in each["label"]]

    sandbox = microsim("create", "isle", "--templates", str(templates), "--engine", "qemu", "--ttl", "5m")
    try:
        microsim("exec", "-n", sandbox, "python3", "-c", f"{SOCKET}.sendto(bytes(5000), ('gateway', 9))")
        (machine,) = machines(sandbox)
        assert machine["machine"] == "sim"
        assert machine["address"].startswith("198.18.")
        assert machine["sent_bytes"] > 5000 > machine["received_bytes"]
        assert machine["published"]["8000"].startswith("127.0.0.1:")
    finally:
        microsim("rm", sandbox)
    assert machines(sandbox) == []
