"""The lines at the end of a run, of names and metrics that a guest has chosen."""

import unicodedata
from types import SimpleNamespace
from typing import Any

from report_samples import HOSTILE, run_of

from pytest_microsim.gates.verdicts import Outcome, Verdict
from pytest_microsim.report.terminal import write_summary


class Terminal:
    """Keeps what is written to it."""

    verbosity = 0

    def __init__(self) -> None:
        self.lines: list[str] = []

    def section(self, title: str, *_: str) -> None:
        self.lines.append(title)

    def line(self, text: str, **_: bool) -> None:
        self.lines.append(text)


def test_no_name_moves_the_cursor() -> None:
    terminal: Any = Terminal()
    judged = [[Verdict("baseline", HOSTILE, outcome, f"worse: {HOSTILE}", n=4)] for outcome in Outcome]
    facts = {"digest": "d" * 32, "engine": "qemu"}
    world = SimpleNamespace(fork_ms={}, other_ms={}, warmed=True, facts=facts, findings=[HOSTILE])
    collecting: Any = SimpleNamespace(
        groups=run_of(10, groups=2, text=HOSTILE).groups, baselines=[f"missing: {HOSTILE}"], written=lambda: None
    )
    write_summary(terminal, SimpleNamespace(worlds={"w": world}, judged=judged), collecting, None)  # type: ignore[arg-type]
    text = "".join(terminal.lines)
    assert "worst seeds:" in terminal.lines
    assert "missing: " in text
    assert {char for char in text if unicodedata.category(char) in ("Cc", "Cs")} == set()
