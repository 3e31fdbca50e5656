"""Reports in a real Chromium: opened from disk, in a profile of their own, and never without anybody listening."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "unit"))  # report_samples

from report_samples import HOSTILE, run_of

from pytest_microsim.report.html.writing import write

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
READY_S = 15


@pytest.fixture(scope="module")  # no longer: an event loop runs in this thread meanwhile, which other tests may need
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.fail("Chromium is missing, which these tests drive: run scripts/setup.sh, or apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root may not use Chromium's own sandbox.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@dataclass
class Opened:
    """A report in a tab.

    Attributes:
        page: The tab.
        file: The report.
        problems: What the console and the network had to say against it.
    """

    page: Page
    file: Path
    problems: list[str] = field(default_factory=list)

    def go(self, route: str = "") -> Page:
        """Open a page of the report in the tab as if it was the first one, and wait for it."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.file.as_uri()}#/{route}")
        return self.settled()

    def settled(self) -> Page:
        self.page.wait_for_selector("main:not([aria-busy]) h1", timeout=READY_S * 1000)
        return self.page

    def paper(self) -> None:
        """Wait until everything that is printed is at hand."""
        for _ in range(READY_S * 20):
            if self.page.evaluate("performance.getEntriesByName('microsim-paper').length"):
                return
            self.page.wait_for_timeout(50)
        pytest.fail("the report was not ready for paper in time")


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    runs = {"plain": run_of(100), "hostile": run_of(50, text=HOSTILE), "large": run_of(5000, groups=20, workers=4)}
    for name, run in runs.items():
        write(folder / f"{name}.html", run)
    return {name: folder / f"{name}.html" for name in runs}


@pytest.fixture
def opened(browser: Browser, reports: dict[str, Path]) -> Iterator[Callable[..., Opened]]:
    """Return what opens a report; in the end no tab may have complained, or asked anybody for anything."""
    tabs: list[Opened] = []

    def open_(report: str | Path, route: str = "", **settings: Any) -> Opened:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        context.set_default_timeout(READY_S * 1000)
        page = context.new_page()
        tab = Opened(page, reports[report] if isinstance(report, str) else report)
        page.on("console", lambda message: tab.problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: tab.problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (tab.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: asked(tab, request.url))
        tabs.append(tab)
        tab.go(route)
        return tab

    yield open_
    for tab in tabs:
        tab.page.context.close()
    assert [problem for tab in tabs for problem in tab.problems] == []


def asked(tab: Opened, url: str) -> None:
    if url.partition("#")[0] != tab.file.as_uri() and not url.startswith(("data:", "blob:", "about:")):
        tab.problems.append(f"request: {url}")
