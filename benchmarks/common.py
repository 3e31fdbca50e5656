"""What the benchmark scripts share: set-up, medians, and one table format."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from microsim_vm.templates import Template, find_template, search_path
from microsim_vm.world import Options, WarmWorld, warm

REPOSITORY = Path(__file__).resolve().parent.parent
CONTROLLERS = REPOSITORY / "example_tests/controllers"


def arguments(description: str, **defaults: object) -> argparse.Namespace:
    """Parse ``--world`` and one option per default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--world", default="warehouse", help="template to measure")
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    return parser.parse_args()


def progress(text: str) -> None:
    """Show progress on standard error, so that standard output is the result alone."""
    print(f"  {text}", file=sys.stderr, flush=True)


def template(name: str) -> Template:
    """Return a template of this repository."""
    return find_template(name, search_path([], REPOSITORY))


def world(name: str) -> WarmWorld:
    """Return a warmed world."""
    warmed = warm(template(name), Options(), progress)
    print(f"world {name}, {warmed.engine_line}")
    return warmed


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def summary(values: Sequence[float]) -> list[str]:
    """Return p50, p99 and the number of values, formatted."""
    return [f"{statistics.median(values):.1f}", f"{percentile(values, 0.99):.1f}", str(len(values))]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, ["-" * width for width in widths], *rows]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
    print()
