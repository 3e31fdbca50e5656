"""The documented power of the gates is what the simulation gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("power_table")


def documented(script: ModuleType) -> dict[tuple[str, str], list[str]]:
    """Return the cells of the page's table by defect and gate."""
    page = (ROOT / "docs" / "gates.md").read_text(encoding="utf-8")
    rows: dict[tuple[str, str], list[str]] = {}
    name = ""
    for line in page.partition(script.BEGIN)[2].partition(script.END)[0].splitlines()[2:]:
        defect, gate, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        name = defect or name
        rows[name, gate] = cells
    return rows


def test_the_page_has_a_row_for_each_defect_and_gate(script: ModuleType) -> None:
    assert list(documented(script)) == [(defect.name, gate) for defect in script.DEFECTS for gate in script.GATES]


@pytest.mark.parametrize(("number", "sizes"), [(0, (8, 16)), (1, (8,)), (3, (8, 16, 32)), (7, (32,)), (9, (8, 16))])
def test_the_page_says_what_the_script_prints(script: ModuleType, number: int, sizes: tuple[int, ...]) -> None:
    rows = documented(script)
    defect = script.DEFECTS[number]
    for size in sizes:
        for gate, cell in script.cells(defect, size).items():
            assert rows[defect.name, gate][script.SIZES.index(size)] == cell, (defect.name, gate, size)


def test_independent_seeds_are_documented_never_to_fail(script: ModuleType) -> None:
    rows = documented(script)
    assert all(set(rows[script.DEFECTS[0].name, gate]) == {"0"} for gate in script.GATES)
