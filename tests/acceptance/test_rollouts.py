"""Rollouts in real microVMs of the small world ``cartpole``: what passes, and what a failure tells."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.timeout(600)

Run = Callable[..., pytest.RunResult]
REPOSITORY = Path(__file__).parents[2]
WORLD = "--microsim-world=cartpole"


def test_seeds_repeat_themselves_with_and_without_workers(
    pytester: pytest.Pytester, run: Run, controllers: Path
) -> None:
    pytester.makepyfile(
        """
        import pytest

        python, stops = ("python3", "-c"), "*{f'stop-{n}' for n in range(16)}"

        class TestGroup:
            @pytest.mark.seeds([0, 3, 2**32, 1 + 2**40])
            @pytest.mark.parametrize("steps", [5, 6])
            def test_it(self, rollout, steps, request):
                first = rollout.run("controllers/balance.py", max_steps=steps)
                second = rollout.run("controllers/balance.py", max_steps=steps)
                assert first.seed == rollout.seed
                assert second.seed not in (0, 1, 3, 4, 2**32)
                assert first.fingerprint != second.fingerprint
                # A process that is started here walks sets of text by the seed's hash, on whichever worker.
                order = rollout.exec([*python, f"print({stops})"], check=True).stdout.strip() if steps == 5 else ""
                assert first.trajectory["action"].shape[0] == first.steps == steps
                assert first.trajectory["observation"].shape == (steps + 1, 4)
                prints = f"{first.fingerprint} {second.seed} {second.fingerprint} {order}"
                request.node.user_properties.append(("prints", prints))

        def test_unmarked(rollout, request):
            request.node.user_properties.append(("prints", f"{rollout.seed} {rollout.reset()[0]}"))
        """
    )
    recorded = []

    def hash_seed(properties: dict[str, str]) -> str:
        return str(json.loads(properties["microsim_knobs"])["hash_seed"])

    for arguments in ((), ("-n", "2")):
        result = run(WORLD, *arguments, "--junitxml=report.xml")
        result.assert_outcomes(passed=9)
        assert "2 passed" in "".join(line for line in result.outlines if line.startswith("gates: "))
        cases = ElementTree.parse(pytester.path / "report.xml").iter("testcase")
        recorded.append({case.get("name"): _properties(case) for case in cases})
        recorded[-1] = {name: (found["prints"], hash_seed(found)) for name, found in recorded[-1].items()}
    assert recorded[0] == recorded[1]
    assert len({prints for prints, _ in recorded[0].values()}) == 9
    assert len({hash_seed for _, hash_seed in recorded[0].values()}) == 5  # two parameters share each seed's


def test_properties_header_and_summary(pytester: pytest.Pytester, run: Run, workers: int, controllers: Path) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.seeds(range(4))
        def test_it(rollout):
            rollout.exec(["true"], check=True)
            rollout.run("controllers/balance.py", max_steps=5)
            rollout.record("score", 0.5)

        def test_session(warm_world):
            with warm_world.fork(7) as machine:
                assert machine.exec("echo $EPISODE_SEED").stdout == "7\\n"
        """
    )
    result = run(WORLD, "--junitxml=report.xml")
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(
        [
            "microsim: world cartpole (from --microsim-world), engine auto, accel auto, isolation at least emulated",
            "microsim: *e*",  # the engine, or that it is not known yet
            "cartpole (????????????): * ([hse]*): *; 4 rollouts, fork p50 * ms",
            "gates: 1 passed",
        ]
    )
    for number, case in enumerate(ElementTree.parse(pytester.path / "report.xml").iter("testcase")):
        properties = _properties(case)
        if case.get("name") == "test_session":
            assert properties == {}
            continue
        assert properties.pop("microsim_seed") in {"0", "1", "2", "3"}, number
        assert properties.pop("microsim_world") == "cartpole"
        assert properties.pop("microsim_network") == "none"
        assert properties.pop("microsim_snapshot")
        assert len(properties.pop("microsim_environment")) == 16
        assert json.loads(properties.pop("microsim_knobs"))["threads"]["OMP_NUM_THREADS"] == "1"
        assert properties.pop("microsim_record_score") == "0.5"
        assert all(float(properties.pop(f"microsim_{phase}_ms")) > 0 for phase in ("fork", "exec", "episode"))
        assert properties == {}


def test_a_failure_says_how_to_replay_it_and_what_was_written(
    pytester: pytest.Pytester, run: Run, workers: int, controllers: Path
) -> None:
    pytester.mkdir("suite with space")
    (controllers / "loud.py").write_text(
        "import os, sys, time\n"
        "out = sys.stdout.buffer\n"
        "if os.fork() == 0: time.sleep(600)\n"
        "def act(observation):\n"
        "    out.write(b'bytes \\xff\\xfe\\x00\\x1b[31m \\xe2'); out.flush()\n"
        "    out.write(b'\\x82\\xac end\\n'); out.flush()\n"
        "    print('complaint', file=sys.stderr, flush=True)\n"
        "    return 0.0\n"
    )
    (pytester.path / "suite with space" / "test_loud.py").write_text(
        "import pytest\n"
        "class TestLoud:\n"
        "    @pytest.mark.seeds([1, 2, 3])\n"
        "    def test_it(self, rollout):\n"
        "        rollout.exec('echo guest speaks > /dev/console', check=True)\n"
        "        episode = rollout.run('controllers/loud.py', max_steps=1)\n"
        "        assert episode.stdout_bytes == b'bytes \\xff\\xfe\\x00\\x1b[31m \\xe2\\x82\\xac end\\n'\n"
        "        assert rollout.seed != 2, 'two is bad'\n"
    )
    result = run(WORLD, "--microsim-seeds=1:4", "--junitxml=report.xml", "suite with space")
    result.assert_outcomes(passed=2, failed=1)
    text = result.stdout.str()
    assert "seed 2 of world cartpole (image " in text
    replay = "pytest 'suite with space/test_loud.py::TestLoud::test_it[seed-0002]' --microsim-world cartpole"
    assert f"replay: {replay} --microsim-seeds 1:4" in text
    assert "the controller (episode 0, seed 2):\n  | it left processes behind, which were killed: 1" in text
    assert "controller stdout (episode 0, seed 2):\n  | bytes ��\\x00\\x1b[31m € end" in text
    assert "controller stderr (episode 0, seed 2):\n  | complaint" in text
    assert "guest console, last lines:\n  | guest speaks" in text
    failure = ElementTree.parse(pytester.path / "report.xml").find(".//failure")
    assert failure is not None
    assert f"replay: {replay}" in (failure.text or "")

    line = next(line for line in result.outlines if line.startswith("replay: ")).removeprefix("replay: ")
    replayed = subprocess.run(
        [*("sh", "-c"), line.replace("pytest", f"{sys.executable} -m pytest -p no:cacheprovider", 1)],
        cwd=pytester.path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "1 failed" in replayed.stdout, replayed.stdout + replayed.stderr
    assert "two is bad" in replayed.stdout
    assert "1 not assessed" in replayed.stdout


def test_broken_controllers_and_tests(pytester: pytest.Pytester, run: Run, controllers: Path) -> None:
    (controllers / "syntax.py").write_text("x = 1\ndef act(observation:\n    return 0\n")
    (controllers / "raises.py").write_text("def act(observation):\n    return 1 / 0\n")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("name", ["syntax", "raises", "missing"])
        def test_controller(rollout, name):
            rollout.run(f"controllers/{name}.py", max_steps=3)

        def test_nan(rollout):
            rollout.record("score", float("nan"))

        @pytest.mark.microsim(max_steps=7)
        def test_steps_of_the_marker(rollout):
            assert rollout.run("controllers/balance.py").steps == 7

        def test_hang(rollout):
            rollout.filesystem.write("/tmp/x", "y")
            rollout.run("controllers/balance.py", max_steps=100000, timeout_seconds=0.001)
        """
    )
    result = run(WORLD, "-n", "2", "-p", "no:randomly")
    result.assert_outcomes(passed=1, failed=5)
    text = result.stdout.str()
    assert "syntax.py:2: the controller does not compile" in text
    assert "ZeroDivisionError" in text
    assert 'File "' in text
    assert "raises.py" in text
    assert "no controller file 'controllers/missing.py'" in text
    assert "RecordError: 'score' is NaN" in text
    assert "ControllerTimeoutError" in text
    # Tracebacks end in the test, not in the plugin or below.
    assert "pytest_microsim/" not in text.replace("pytest_microsim/errors", "")


def test_a_world_that_cannot_be_loaded_fails_each_test_clearly_and_once(
    pytester: pytest.Pytester, run: Run, cold_cache: Path
) -> None:
    folder = pytester.path / "templates" / "broken"
    folder.mkdir(parents=True)
    (folder / "template.yaml").write_text('name: broken\nworld: {factory: "world:make"}\nmachine: {memory_mib: 256}\n')
    (folder / "world.py").write_text("def make():\n    raise RuntimeError('the shelf is missing')\n")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.seeds(range(4))
        def test_it(rollout):
            pass
        """
    )
    result = run("--microsim-world=broken", f"--microsim-cache-dir={cold_cache}", "-n", "2")
    result.assert_outcomes(errors=4)
    text = result.stdout.str()
    assert text.count("RuntimeError: the shelf is missing") >= 4
    assert "INTERNALERROR" not in text
    assert "seed 3 of world broken" in text
    assert result.errlines.count("microsim: broken: loading broken") == 1


def test_workers_share_one_warm_up_and_the_next_run_needs_none(
    pytester: pytest.Pytester, run: Run, cold_cache: Path
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.seeds(range(6))
        def test_it(rollout):
            rollout.reset()
        """
    )
    arguments = (WORLD, f"--microsim-cache-dir={cold_cache}", "-n", "4")
    first = run(*arguments)
    first.assert_outcomes(passed=6)
    assert "warmed in this run; 6 rollouts" in first.stdout.str()
    assert len(list((cold_cache / "snapshots").glob("[!.]*/manifest.json"))) == 1
    # The progress of a worker reaches the real stderr, past all capturing.
    assert first.errlines.count("microsim: cartpole: loading cartpole") == 1
    second = run(*arguments)
    second.assert_outcomes(passed=6)
    assert "snapshot reused; 6 rollouts" in second.stdout.str()
    assert "loading cartpole" not in second.stderr.str()


def test_a_marker_may_choose_another_world(pytester: pytest.Pytester, run: Run, controllers: Path) -> None:
    pytester.makeini("[pytest]\nmicrosim_world = warehouse")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.microsim(world="cartpole")
        def test_it(rollout):
            assert rollout.world == "cartpole"
            assert len(rollout.reset()[0]) == 4
        """
    )
    result = run()
    result.assert_outcomes(passed=1)
    assert not any(line.startswith("warehouse (") for line in result.outlines)


def test_floods_of_output_stay_bounded(pytester: pytest.Pytester, run: Run, controllers: Path) -> None:
    (controllers / "flood.py").write_text(
        "import sys\n"
        "def act(observation):\n"
        "    sys.stdout.buffer.write(b'first words ' + b'\\x00\\xff' * (1 << 20) + b' last words')\n"
        "    return 0.0\n"
    )
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.seeds(range(2))
        def test_it(rollout):
            rollout.run("controllers/flood.py", max_steps=1)
            assert False
        """
    )
    result = run(WORLD, "-n", "2", "--junitxml=report.xml", "--tb=short")
    result.assert_outcomes(failed=2)
    report = pytester.path / "report.xml"
    texts = [failure.text or "" for failure in ElementTree.parse(report).iter("failure")]
    assert len(texts) == 2
    assert all("first words" in text and " last words" in text and "bytes left out" in text for text in texts)
    assert report.stat().st_size < 2 * 500_000


def test_long_names_and_deep_directories(pytester: pytest.Pytester, run: Run, controllers: Path) -> None:
    name = "test_" + "größe_" * 13
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.seeds([1, 10, 100])
        def {name}(rollout, tmp_path):
            rollout.run("controllers/balance.py", max_steps=2)
            assert rollout.exec("hostname").stdout.isascii()
        """
    )
    deep = pytester.path.joinpath(*["deep"] * 24)
    deep.mkdir(parents=True)
    result = run(WORLD, "-n", "2", f"--basetemp={deep / 'temp'}")
    result.assert_outcomes(passed=3)


def test_a_generator_that_no_fork_reseeds_is_reported_loudly(
    pytester: pytest.Pytester, run: Run, cold_cache: Path
) -> None:
    folder = pytester.path / "templates" / "careless"
    shutil.copytree(REPOSITORY / "templates" / "cartpole", folder, ignore=shutil.ignore_patterns("*.lock"))
    template = folder / "template.yaml"
    template.write_text(template.read_text().replace("name: cartpole", "name: careless"))
    with (folder / "world.py").open("a") as world:
        world.write("\n\nNOISE = random.Random(3)\n")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.seeds(range(2))
        def test_it(rollout):
            rollout.reset()
        """
    )
    result = run("--microsim-world=careless", f"--microsim-cache-dir={cold_cache}", "-n", "2")
    result.assert_outcomes(passed=2)
    findings = [line for line in result.outlines if line.startswith("FINDING in careless: ")]
    assert len(findings) == 1, result.stdout.str()
    assert "random.Random" in findings[0]
    assert "NOISE" in findings[0]


def _properties(case: ElementTree.Element) -> dict[str, str]:
    return {entry.get("name", ""): entry.get("value", "") for entry in case.iter("property")}
