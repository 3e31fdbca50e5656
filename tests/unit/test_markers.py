"""The line a marker was written on, what it may say of the gates, and how it goes with the ini settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_microsim.markers import MicrosimMark, mark_location, microsim_mark
from pytest_microsim.settings import read_settings

SOURCE = """\
import pytest

pytestmark = [pytest.mark.other, pytest.mark.alpha([3])]

@pytest.mark.alpha([1])
class TestA:
    pytestmark = [pytest.mark.beta(1)]

    @pytest.mark.parametrize("x", [1])
    @pytest.mark.alpha(
        [2],
    )
    def test_b(self, x):
        pass

hidden = pytest.mark.alpha([4])

@hidden
async def test_c():
    pass
"""


def test_markers_are_found_where_they_were_written(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = alpha\n beta\n other")
    items, _ = pytester.inline_genitems(pytester.makepyfile(SOURCE))
    method, function = items

    def lines(node: pytest.Item, name: str) -> list[int]:
        return [int(mark_location(owner, name).rpartition(":")[2]) for owner, _ in node.iter_markers_with_node(name)]

    assert lines(method, "alpha") == [10, 5, 3]
    assert lines(method, "beta") == [7]
    # A marker under another name is found by the line of what it marks.
    assert lines(function, "alpha") == [18, 3]


def marked(pytester: pytest.Pytester, *marks: str, ini: str = "") -> Path:
    """Write a test with markers: the module's first, its own last."""
    pytester.makeini(f"[pytest]\n{ini}")
    module, own = (*marks[:-1], ""), marks[-1]
    source = "import pytest\n"
    source += f"pytestmark = [pytest.mark.microsim({module[0]})]\n"
    source += f"@pytest.mark.microsim({own})\ndef test_it():\n    pass\n"
    return pytester.makepyfile(source)


def merged(pytester: pytest.Pytester, *marks: str, ini: str = "") -> MicrosimMark:
    items, _ = pytester.inline_genitems(marked(pytester, *marks, ini=ini))
    return microsim_mark(items[0])


def refused(pytester: pytest.Pytester, *marks: str, ini: str = "") -> str:
    """Return what collecting such a test says."""
    result = pytester.runpytest_inprocess("--collect-only", marked(pytester, *marks, ini=ini))
    assert result.ret == pytest.ExitCode.INTERRUPTED
    return next(line for line in result.outlines if "@pytest.mark.microsim: " in line)


def test_the_ini_file_says_what_no_marker_says_and_the_closest_marker_wins(pytester: pytest.Pytester) -> None:
    ini = "microsim_variance = warn\nmicrosim_min_effective_seeds = 32\nmicrosim_strict = true"
    assert merged(pytester, "") == MicrosimMark()
    assert merged(pytester, "", ini=ini) == MicrosimMark(variance="warn", min_effective_seeds=32, strict=True)
    mark = merged(pytester, "support=4, unchecked=['a']", "min_effective_seeds=None, strict=False", ini=ini)
    assert mark == MicrosimMark(variance="warn", support=4, unchecked=["a"])
    assert merged(pytester, "min_effective_seeds=8, support=2", "min_effective_seeds=9, support=None") == MicrosimMark(
        min_effective_seeds=9
    )
    # A demand of the ini file's gives way to a test that switches the gates off.
    assert merged(pytester, "variance='off', deterministic=True", ini=ini).variance == "off"


@pytest.mark.parametrize(
    ("marks", "words"),
    [
        (["support=0"], "support is a number of episodes, at least 1, not 0"),
        (["support=True"], "support is a number of episodes, at least 1, not True"),
        (["support=2.0"], "support is a number of episodes, at least 1, not 2.0"),
        (["min_effective_seeds='32'"], "min_effective_seeds is a number of seeds, at least 1, not '32'"),
        (["min_effective_seeds=-1"], "min_effective_seeds is a number of seeds, at least 1, not -1"),
        (["max_steps=0"], "max_steps is a number of steps, at least 1, not 0"),
        (["strict=1"], "strict is True or False, not 1"),
        (["unchecked='port'"], "unchecked is a list of names, as in unchecked=[\"port\"], not 'port'"),
        (["unchecked=['port', '']"], "unchecked is a list of names"),
        (["unchecked=[1]"], "unchecked is a list of names"),
        (["limits=64"], "limits are numbers by name"),
        (["limits={'memory': 64}"], "a controller has no limit 'memory' here"),
        (["limits={'memory_mib': 1}"], "limits of a controller: "),
        (
            ["deterministic=True, min_effective_seeds=4"],
            "min_effective_seeds=4 contradicts deterministic=True, which switches the gates off",
        ),
        (
            ["deterministic=True", "min_effective_seeds=4"],
            "min_effective_seeds=4 contradicts deterministic=True, which",
        ),
        (["strict=True", "variance='off'"], "strict=True contradicts variance='off', which switches the gates off"),
    ],
)
def test_what_a_marker_cannot_say_is_refused_with_its_line(
    pytester: pytest.Pytester, marks: list[str], words: str
) -> None:
    text = refused(pytester, *marks)
    assert words in text
    # Of two that contradict each other, the line of the one that demands something.
    line = 2 if marks[0] == "strict=True" else 3
    assert f".py:{line}: @pytest.mark.microsim: " in text


def test_a_marker_that_demands_what_the_ini_file_switches_off_says_so(pytester: pytest.Pytester) -> None:
    text = refused(pytester, "strict=True", ini="microsim_variance = off")
    assert "strict=True contradicts variance='off' (from the ini setting microsim_variance)" in text
    assert merged(pytester, "strict=True, variance='fail'", ini="microsim_variance = off").strict


@pytest.mark.parametrize(
    ("ini", "words"),
    [
        ("microsim_variance = maybe", "tox.ini: microsim_variance is 'maybe'; it can be fail, warn, off"),
        ("microsim_min_effective_seeds = 0", "tox.ini: microsim_min_effective_seeds is '0'; it is a number of seeds"),
        ("microsim_min_effective_seeds = few", "tox.ini: microsim_min_effective_seeds is 'few'; it is a number"),
        ("microsim_strict = maybe", "tox.ini: microsim_strict is neither true nor false"),
        (
            "microsim_strict = yes\nmicrosim_variance = off",
            "microsim_strict has nothing to judge under microsim_variance",
        ),
    ],
)
def test_impossible_ini_values_are_refused(pytester: pytest.Pytester, ini: str, words: str) -> None:
    pytester.makeini(f"[pytest]\n{ini}")
    with pytest.raises(pytest.UsageError) as caught:
        read_settings(pytester.parseconfig())
    assert words in str(caught.value)
