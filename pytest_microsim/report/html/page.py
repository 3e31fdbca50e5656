"""One HTML file of everything."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...results.model import RunResult
from .curves import Thinning, curves
from .details import details, text_limit
from .media import media
from .overview import OUTCOMES, overview, timeline
from .packets import packed, packed_json

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

SCRIPTS = ("dom", "format", "data", "table", "plot", "charts", "routes", "overview", "verdicts", "baseline", "group",
           "trajectories", "rollout", "timeline", "environment", "comparison", "print", "main")  # fmt: skip
"""The program, in order; the files are joined into one function, so that they share names with nothing else."""
STYLES = ("vendor/uplot/uPlot.min.css", "style.css")
CHART_LIBRARY, ITS_LICENCE = "vendor/uplot/uPlot.iife.min.js", "vendor/uplot/LICENSE"


def page(run: RunResult, *, base: Path, comparison: dict[str, Any] | None = None) -> Iterator[str]:
    """Yield the parts of the page.

    Args:
        run: The results.
        base: The folder that paths in them are relative to.
        comparison: What :func:`~pytest_microsim.results.comparison.compare` says of it and an earlier run.
    """
    script, style = _script(), _style()
    yield _HEAD.format(
        policy=_policy(script, style), title=html.escape(_title(run)), style=style, summary=html.escape(_summary(run))
    )
    # The first page is drawn while what follows is still being read.
    yield _packet("data-overview", packed_json({**overview(run), "comparison": comparison, "outcomes": OUTCOMES}))
    yield f"<script>{script}</script>\n"
    yield _packet("data-timeline", packed_json(timeline(run)))
    limit, thinning = text_limit(run), Thinning.of(run)
    for at, group in enumerate(run.groups):
        yield _packet(f"data-details-{at}", packed_json(details(group, limit, base)))
        data = curves(group, thinning)
        if data is not None:
            yield _packet(f"data-curves-{at}", packed(data))
    for medium in media(run, base):
        name = f"media-{medium.group}-{medium.rollout}"
        yield f'<script type="application/base64" id="{name}" data-kind="{medium.kind}">{medium.data}</script>\n'
    yield "</body>\n</html>\n"


_HEAD = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="pytest-microsim">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header id="top"></header>
<main id="main" tabindex="-1"><noscript><h1>{title}</h1><p>{summary}</p>
<p>The rest of this report is drawn by a script in this file, and scripts are switched off.</p></noscript></main>
<footer id="foot"></footer>
<div id="paper" hidden></div>
"""


def _policy(script: str, style: str) -> str:
    """Allow this script and this style, and nothing from anywhere else."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data: blob:; "
        "media-src blob:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _title(run: RunResult) -> str:
    bad = sum(rollout.outcome != "passed" for group in run.groups for rollout in group.rollouts)
    return f"microsim: {bad} of {_count(run)} rollouts did not pass" if bad else f"microsim: {_count(run)} rollouts"


def _summary(run: RunResult) -> str:
    outcomes = Counter(rollout.outcome for group in run.groups for rollout in group.rollouts)
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()) or "No rollouts."


def _count(run: RunResult) -> int:
    return sum(len(group.rollouts) for group in run.groups)


def _packet(name: str, data: str) -> str:
    return f'<script type="application/gzip" id="{name}">{data}</script>\n'


@functools.cache
def _script() -> str:
    # Each report is a copy of the library, and so has its licence in it.
    library = f"/*\n{_asset(ITS_LICENCE).strip()}\n*/\n{_asset(CHART_LIBRARY)}"
    program = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    return f'{library}\n(() => {{\n"use strict";\n{program}\n}})();\n'


@functools.cache
def _style() -> str:
    return "\n".join(_asset(name) for name in STYLES)


def _asset(name: str) -> str:
    file: Traversable = resources.files(__package__).joinpath("assets")
    for part in name.split("/"):
        file = file.joinpath(part)
    return file.read_text(encoding="utf-8")
