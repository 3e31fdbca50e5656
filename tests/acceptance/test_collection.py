"""Mistakes are reported at collection, clearly and without losing anything; listing tests starts nothing."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., pytest.RunResult]

pytestmark = pytest.mark.timeout(120)


def failed_collection(result: pytest.RunResult, *lines: str) -> None:
    """Check that collecting failed, as errors of pytest's own kind, with these parts of lines in the text."""
    text = result.stdout.str()
    assert result.ret in (1, 2), text
    assert "INTERNALERROR" not in text + result.stderr.str()
    assert "ERROR collecting" in text
    for line in lines:
        assert line in text


def once(result: pytest.RunResult, words: str) -> bool:
    """Tell whether one error says so; pytest's closing summary repeats it whole where CI is set."""
    errors, _, _ = result.stdout.str().partition("short test summary info")
    return errors.count(words) == 1


def processor_s() -> float:
    """Return what the runs so far took of the processors: what else this machine does is not theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


BAD_SEEDS = [
    ("{1, 2}", "a set is not a list of seeds"),
    ("(seed for seed in range(4))", "a generator is not a list of seeds"),
    ("[-1]", "-1 is negative"),
    ("[True]", "True is a bool"),
    ("[]", "holds no seed"),
    ("[1, 2, 1]", "repeated seeds: 1"),
    ("7", "seeds(range(7)) for 7 seeds, or seeds([7])"),
    ("", "seeds takes one list of seeds"),
    ("1, 2", "write seeds([1, 2])"),
    ("sorted=[1]", "seeds takes one list of seeds"),
]
BAD_MARKERS = [
    ("worlds='cartpole'", "unknown name 'worlds'; did you mean 'world'?"),
    ("zzz=1", "unknown name 'zzz'; known: world, reseed, variance, deterministic, max_steps"),
    ("'cartpole'", "takes names only, as in microsim(world='cartpole')"),
    ("variance='maybe'", "variance is 'maybe'; it can be fail, warn, off"),
    ("reseed=0", "reseed is True or False, not 0"),
    ("max_steps=0", "max_steps is a number of steps"),
    ("world=''", "world is the name of a template"),
]


def test_bad_marks_are_refused_with_the_line_of_each(pytester: pytest.Pytester, run: Run, workers: int) -> None:
    expected = {}
    for number, (mark, words) in enumerate(
        [*((f"seeds({seeds})", words) for seeds, words in BAD_SEEDS)]
        + [(f"microsim({arguments})", f"@pytest.mark.microsim: {words}") for arguments, words in BAD_MARKERS]
    ):
        path = pytester.path / f"test_{number}.py"
        path.write_text(
            "import pytest\n\n"
            "def test_plain():\n    pass\n\n"
            f'@pytest.mark.parametrize("x", [1])\n@pytest.mark.{mark}\ndef test_it(rollout, x):\n    pass\n'
        )
        expected[f"{path}:7: "] = words
    result = run("--microsim-world=cartpole")
    failed_collection(result)
    errors = result.stdout.str().partition("short test summary info")[0].split("ERROR collecting")[1:]
    found = {place: error for error in errors for place in expected if place in error}
    assert len(errors) == len(found) == len(expected)
    for place, words in expected.items():
        assert words in found[place]


def test_accepted_seeds_become_stable_plain_ids(pytester: pytest.Pytester, run: Run, workers: int) -> None:
    pytester.makepyfile(
        """
        import numpy
        import pytest

        class TestGroup:
            @pytest.mark.seeds(numpy.arange(9, 12))
            @pytest.mark.parametrize("gain", [1.5, 2.5])
            def test_it(self, rollout, gain):
                pass

        @pytest.mark.seeds([2**32, 1, 1 + 2**40])
        def test_big(rollout):
            pass

        def test_unmarked(rollout):
            pass
        """
    )
    result = run("--microsim-world=cartpole", "--collect-only", "-q")
    assert result.ret == 0
    name = "test_accepted_seeds_become_stable_plain_ids.py"
    ids = [line for line in result.outlines if line.startswith(name)]
    assert ids == [
        *(
            f"{name}::TestGroup::test_it[{gain}-seed-{seed}]"
            for gain in (1.5, 2.5)
            for seed in ("0009", "0010", "0011")
        ),
        *(f"{name}::test_big[seed-{seed}]" for seed in ("0004294967296", "0000000000001", "1099511627777")),
        f"{name}::test_unmarked",
    ]


def test_one_seed_of_sixty_four_can_be_selected(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.seeds(range(64))
        def test_it(rollout):
            pass
        """
    )
    base = ("--microsim-world=cartpole", "--collect-only", "-q")
    name = "test_one_seed_of_sixty_four_can_be_selected.py::test_it[seed-0001]"
    for selection in (("-k", "seed-0001"), (name,)):
        lines = [line for line in run(*base, *selection).outlines if "::" in line]
        assert lines == [name]


def test_the_command_line_narrows_and_widens_the_seeds(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.seeds([5])
        def test_it(rollout):
            pass
        """
    )
    result = run("--microsim-world=cartpole", "--collect-only", "-q", "--microsim-seeds=0:64:16")
    assert [line.partition("[")[2] for line in result.outlines if "::" in line] == [
        "seed-0000]",
        "seed-0016]",
        "seed-0032]",
        "seed-0048]",
    ]
    result = run("--microsim-world=cartpole", "--microsim-seeds=8:0")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--microsim-seeds*range(8, 0) holds no seed*"])


def test_five_thousand_seeds_collect_in_ten_seconds(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.seeds(range(5000))
        @pytest.mark.microsim(variance="warn")
        def test_it(rollout):
            pass
        """
    )
    before = processor_s()
    result = run("--microsim-world=cartpole", "--collect-only", "-q")
    assert processor_s() - before < 10
    assert "5000 tests collected" in result.stdout.str()


def test_seeds_that_reach_nothing_are_refused(pytester: pytest.Pytester, run: Run, workers: int) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.seeds(range(4))
        def test_it(tmp_path):
            pass
        """
    )
    failed_collection(run(), ".py:3: ", "does not use the fixture rollout")


def test_a_fixture_may_be_what_uses_the_rollout(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def robot(rollout):
            return rollout

        pytestmark = pytest.mark.seeds(range(2))

        def test_it(robot):
            pass

        def test_helper_of_the_same_module():
            pass
        """
    )
    result = run("--microsim-world=cartpole", "--collect-only", "-q")
    assert [line.partition("::")[2] for line in result.outlines if "::" in line] == [
        "test_it[seed-0000]",
        "test_it[seed-0001]",
        "test_helper_of_the_same_module",
    ]


def test_no_world_chosen_names_the_three_ways(pytester: pytest.Pytester, run: Run, workers: int) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.seeds(range(64))
        def test_a(rollout):
            pass

        def test_b(warm_world):
            pass
        """
    )
    result = run()
    failed_collection(result, "@pytest.mark.microsim(world=...)", "--microsim-world", "microsim_world in the ini file")
    assert once(result, "none is chosen")


def test_an_unknown_world_of_a_marker_lists_those_found(pytester: pytest.Pytester, run: Run, workers: int) -> None:
    pytester.makepyfile(
        test_good="def test_it(): pass",
        test_bad="""
        import pytest

        @pytest.mark.seeds(range(64))
        @pytest.mark.microsim(world="cartpool")
        def test_it(rollout):
            pass
        """,
    )
    result = run("--continue-on-collection-errors")
    failed_collection(
        result,
        "there is no template 'cartpool'",
        'did you mean "cartpole"?',
        "warehouse: ",
        f"asked for by: the marker at {pytester.path / 'test_bad.py'}:4",
    )
    assert once(result, "asked for by")
    result.assert_outcomes(passed=1, errors=1)


def test_an_unknown_world_of_the_ini_file_is_a_collection_error(
    pytester: pytest.Pytester, run: Run, workers: int
) -> None:
    pytester.makeini("[pytest]\nmicrosim_world = cartpool")
    pytester.makepyfile("def test_it(rollout): pass")
    failed_collection(run(), "there is no template 'cartpool'", "asked for by: the ini setting microsim_world")


def test_an_unknown_world_of_the_command_line_is_a_usage_error(
    pytester: pytest.Pytester, run: Run, workers: int
) -> None:
    pytester.makepyfile("def test_it(rollout): pass")
    result = run("--microsim-world=cartpool")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stderr.str()
    assert "--microsim-world: there is no template 'cartpool'" in text
    assert "cartpole: " in text
    assert "INTERNALERROR" not in text + result.stdout.str()


def test_a_malformed_template_is_a_collection_error(pytester: pytest.Pytester, run: Run, workers: int) -> None:
    pytester.mkdir("templates").joinpath("mine").mkdir()
    file = pytester.path / "templates" / "mine" / "template.yaml"
    file.write_text("name: mine\nbase: {suite: bookworm}\nmemory: 3\n")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.microsim(world="mine")
        def test_it(rollout):
            pass
        """
    )
    failed_collection(run(), f"{file}:3: ")


def test_a_marker_cannot_change_the_world_of_the_session(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.microsim(world="warehouse")
        def test_it(warm_world):
            pass
        """
    )
    failed_collection(run("--microsim-world=cartpole"), ".py:3: ", "uses warm_world", "use rollout")


def test_templates_of_the_command_line_and_the_ini_file_are_found(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b"):
        template = pytester.path / folder / f"mine-{folder}" / "template.yaml"
        template.parent.mkdir(parents=True)
        template.write_text(f"name: mine-{folder}\nworld: {{factory: 'world:make'}}\n")
        template.with_name("world.py").write_text("def make(): ...\n")
    pytester.makeini("[pytest]\nmicrosim_templates = b")
    below = pytester.mkdir("below")
    pytester.makepyfile(
        **{
            "below/test_it": """
            import pytest

            @pytest.mark.microsim(world="mine-a")
            def test_a(rollout):
                pass

            @pytest.mark.microsim(world="mine-b")
            def test_b(rollout):
                pass

            @pytest.mark.microsim(world="../a/mine-a")
            def test_path(rollout):
                pass
            """
        }
    )
    monkeypatch.chdir(below)
    result = run("--collect-only", "-q", "--microsim-templates=../a")
    assert result.ret == 0, result.stdout.str()


class TestListingStartsNothing:
    """Editors list tests all the time, also where no engine is installed and nothing can be written."""

    SOURCE = """
        import pytest

        @pytest.mark.seeds(range(64))
        def test_it(rollout):
            pass

        def test_other(warm_world):
            pass
        """

    @pytest.fixture
    def bare(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        """A machine without any program on the path, whose cache directory cannot be made."""
        pytester.makepyfile(self.SOURCE)
        cache = tmp_path / "file"
        cache.write_text("a file where the cache directory should be")
        monkeypatch.setenv("MICROSIM_CACHE_DIR", str(cache))
        monkeypatch.setenv("PATH", str(tmp_path))
        return cache

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (["--collect-only"], pytest.ExitCode.OK),
            (["--fixtures"], pytest.ExitCode.OK),
            (["--help"], pytest.ExitCode.OK),
            (["--markers"], pytest.ExitCode.OK),
            (["-k", "nothing_has_this_name"], pytest.ExitCode.NO_TESTS_COLLECTED),
            (["-n", "2", "--collect-only"], pytest.ExitCode.OK),
            (["-n", "2", "-k", "nothing_has_this_name"], pytest.ExitCode.NO_TESTS_COLLECTED),
            (["-p", "no:xdist", "--collect-only", "--count=3", "-p", "randomly"], pytest.ExitCode.OK),
        ],
    )
    def test_without_engine_and_cache(
        self,
        pytester: pytest.Pytester,
        run: Run,
        bare: Path,
        monkeypatch: pytest.MonkeyPatch,
        arguments: list[str],
        expected: int,
    ) -> None:
        monkeypatch.setenv("MICROSIM_CACHE_DIR", str(bare))
        before = set(os.listdir(pytester.path))
        result = run("--microsim-world=cartpole", "-p", "no:cacheprovider", *arguments)
        assert result.ret == expected, result.stdout.str()
        made = set(os.listdir(pytester.path)) - before
        assert {name for name in made if name not in ("stdout", "stderr", "__pycache__")} == set()

    def test_no_process_no_probe_no_file(
        self, pytester: pytest.Pytester, run: Run, bare: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # what Python writes of what it compiles is not ours
        # An audit hook sees every start of a program, every socket, and every file opened for writing.
        pytester.makeconftest(
            """
            import os
            import sys

            def watch(event, arguments):
                bad = event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "socket.__new__")
                if event == "open" and isinstance(arguments[0], str):
                    writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
                    bad = (writes and arguments[0] != "/dev/null") or "kvm" in arguments[0]
                if bad:
                    os.write(2, f"WATCHED {event} {arguments}\\n".encode())

            sys.addaudithook(watch)
            """
        )
        result = run(
            *("--microsim-world=cartpole", "--collect-only", "-q", "--capture=no"),
            *("-p", "no:cacheprovider", "-p", "no:rerunfailures"),  # the latter opens a socket of its own
        )
        assert result.ret == 0
        assert "65 tests collected" in result.stdout.str()
        assert "WATCHED" not in result.stderr.str()

    def test_it_costs_less_than_half_a_second(self, pytester: pytest.Pytester, run: Run) -> None:
        pytester.makepyfile(self.SOURCE)
        pytester.makepyfile(test_plain="def test_it(): pass")

        def best_of_three(*arguments: str) -> float:
            took = []
            for _ in range(3):
                before = processor_s()
                assert run("--collect-only", "-q", *arguments).ret == 0
                took.append(processor_s() - before)
            return min(took)

        without = best_of_three("-p", "no:microsim", "test_plain.py")
        assert best_of_three("--microsim-world=cartpole") - without < 0.5
