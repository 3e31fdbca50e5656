"""The line a marker was written on."""

from __future__ import annotations

import pytest

from pytest_microsim.markers import mark_location

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
