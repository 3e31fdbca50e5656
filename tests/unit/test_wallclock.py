"""Where a wall clock starts."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from microsim_vm import wallclock
from microsim_vm.errors import TemplateError
from microsim_vm.templates import load_template


def written(folder: Path, *lines: str) -> Path:
    folder.mkdir(exist_ok=True)
    world = 'world: {factory: "world:make"}'
    (folder / "template.yaml").write_text("\n".join([f"name: {folder.name}", world, *lines]) + "\n")
    (folder / "world.py").write_text("def make():\n    pass\n")
    return folder


def test_a_fork_starts_a_day_after_its_warm_up_began() -> None:
    boot = datetime.fromisoformat(wallclock.BOOT).replace(tzinfo=UTC)
    assert datetime.fromtimestamp(wallclock.PINNED, UTC) - boot == timedelta(days=1)


@pytest.mark.parametrize(
    ("lines", "start"),
    [
        ([], wallclock.PINNED),
        (["network: none"], wallclock.PINNED),
        (["network: egress", "egress: ['10.0.0.1:80']"], None),
        (["network: egress", "egress: ['10.0.0.1:80']", "wall_clock: '2030-06-01T12:00:00Z'"], 1906545600.0),
        (["wall_clock: now"], None),
        (["wall_clock: '2030-06-01T14:00:00+02:00'"], 1906545600.0),
    ],
)
def test_what_a_template_says(tmp_path: Path, lines: list[str], start: float | None) -> None:
    template = load_template(written(tmp_path / "w", *lines))
    assert template.wall_clock_start == start
    plain = load_template(written(tmp_path / "w", *lines[: len(lines) - ("wall_clock" in "".join(lines))]))
    assert template.canonical() == plain.canonical()  # no image depends on it


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("'2030-06-01T12:00:00'", "how far from UTC"),
        ("'2024-12-31T00:00:00Z'", "from 2025-01-02T00:00:00Z to the year 2100"),
        ("'9999-12-31T23:59:59Z'", "from 2025-01-02T00:00:00Z to the year 2100"),
        ("later", "is not where a wall clock can start"),
        ("2030-06-01", "wall_clock"),
        ("''", "wall_clock"),
    ],
)
def test_what_it_cannot_say(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(TemplateError, match=words) as caught:
        load_template(written(tmp_path / "w", f"wall_clock: {text}"))
    assert "template.yaml:3" in str(caught.value)


def test_a_clock_runs_on() -> None:
    clock = wallclock.WallClock.starting(1e9)
    time.sleep(0.05)
    assert 0.05 <= clock.present() - 1e9 < 5
