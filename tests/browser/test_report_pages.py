"""The report as people meet it: with eyes, without, by keyboard, in the dark, on a phone and on paper."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from report_samples import run_of

from pytest_microsim.report.html.writing import write
from pytest_microsim.results.comparison import against, compare

Open = Callable[..., Any]

ROUTES = ["overview", "group/0", "group/2", "group/3", "group/0/rollout/3", "timeline", "environment"]
AXE = (Path(__file__).parent / "vendor" / "axe" / "axe.min.js").read_text(encoding="utf-8")
OPENS_WITHIN_MS = 2000


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_anybody_from_using_a_page(opened: Open, scheme: str) -> None:
    tab = opened("plain", color_scheme=scheme)
    # In the dark, what has colours of its own.
    for route in ROUTES if scheme == "light" else ROUTES[:1] + ROUTES[2:3] + ROUTES[4:6]:
        page = tab.go(route)
        page.evaluate(AXE)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found["violations"]] == [], route


def test_the_overview_sorts_filters_and_leads_to_groups(opened: Open) -> None:
    page = opened("large").page
    first = page.locator("tbody th a").first
    assert first.inner_text() == "test_robot_docks"
    page.get_by_role("button", name="N_eff").click()
    header = page.get_by_role("columnheader", name="N_eff")
    assert header.get_attribute("aria-sort") == "descending"
    page.get_by_role("button", name="N_eff").click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert "test_dead_reckoning" in first.inner_text()
    page.get_by_label("Find").fill("narrow")
    assert page.locator("tbody tr").count() == 4
    page.get_by_label("in", exact=True).select_option("failed")
    assert page.get_by_text("No group is like that.").is_visible()
    page.get_by_label("Find").fill("")
    first.click()
    page.wait_for_selector("main:not([aria-busy]) h1:text('test_dead_reckoning')")
    assert page.title().startswith("tests/test_dock.py::test_dead_reckoning")


def test_a_group_shows_verdicts_copies_spread_and_trajectories(opened: Open) -> None:
    page = opened("plain", "group/2").page
    assert page.get_by_text("the world uses the seed modulo 8").is_visible()
    assert page.get_by_text("pass the seed on whole").is_visible()
    assert page.get_by_role("rowheader", name="Copies 8").is_visible()
    for name in ("distance_to_dock", "observation[19]"):
        image = page.get_by_role("img", name=re.compile(f"^{re.escape(name)}[: ]"))
        image.scroll_into_view_if_needed()
        canvas = image.locator("canvas")
        canvas.wait_for()
        assert canvas.evaluate(
            "canvas => new Set(new Uint32Array("
            "canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size > 3"
        )
    figure = page.locator("figure", has_text="distance_to_dock")
    figure.get_by_text("Show as a table").click()
    figure.get_by_role("row", name=re.compile("^this run 20")).wait_for()


def test_a_failed_rollout_has_a_page_with_all_that_is_known(opened: Open) -> None:
    tab = opened("plain", "group/0")
    page = tab.page
    page.get_by_role("row", name=re.compile(r"^seed \d+ failed")).get_by_role("link").first.click()
    page.wait_for_selector("main:not([aria-busy]) h1:text('Seed')")
    for text in ("--microsim-replay", "AssertionError", "aisle blocked, turning", "open('/etc/passwd') was refused",
                 "microsim: adopted seed", "truncated by the limit of steps"):  # fmt: skip
        assert page.get_by_text(text).first.is_visible(), text
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").click()
    page.get_by_text("copied").wait_for()
    assert "--microsim-replay" in page.evaluate("navigator.clipboard.readText()")


def test_the_keyboard_alone_leads_from_the_overview_to_a_failed_seed(opened: Open) -> None:
    page = opened("plain").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for _ in range(60):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "[document.activeElement.className, document.activeElement.getAttribute('href'),"
            " getComputedStyle(document.activeElement).outlineStyle]"
        )
        assert focused[2] != "none", focused
        if focused[0] == "failed":
            break
    page.keyboard.press("Enter")
    page.wait_for_selector("main:not([aria-busy]) h1:text('Seed')")
    assert page.evaluate("document.activeElement.tagName") == "H1"
    page.go_back()
    page.wait_for_selector("main:not([aria-busy]) h1:text('Overview')")


def test_hostile_text_is_shown_and_does_nothing(opened: Open) -> None:
    tab = opened("hostile")
    for route in [*ROUTES, "group/0/rollout/1"][-5:]:
        page = tab.go(route)
        assert "pwned" not in page.title().replace("document.title='pwned'", "")
        assert page.locator("main img, main script").count() == 0
        text = page.locator("body").inner_text()
        assert "</script><script>document.title='pwned'" in text
        assert not re.search("[\x00-\x08\x0e-\x1f\x7f\u202e\u2028]", text)
        assert "\u2400 \u27e8U+202E\u27e9gnp.exe red \u241b]0;title\u2407" in text
        assert "\u27e8U+D800\u27e9" in text


def test_a_narrow_window_scrolls_tables_and_not_the_page(opened: Open) -> None:
    tab = opened("plain", viewport={"width": 360, "height": 700})
    for route in ROUTES:
        assert tab.go(route).evaluate("document.documentElement.scrollWidth") <= 360, route


def test_paper_has_everything_in_black_on_white(opened: Open, tmp_path: Path) -> None:
    tab = opened("plain", color_scheme="dark")
    tab.paper()
    pages = tab.page.pdf(format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b", pages)) > 5
    tab.page.emulate_media(media="print")
    tab.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    paper = tab.page.locator("#paper")
    for text in ("Needs attention", "test_balances", "pass the seed on whole", "Timeline", "Knobs of all groups",
                 "--microsim-replay", "AssertionError", "microsim: adopted seed"):  # fmt: skip
        assert paper.get_by_text(text).first.is_visible(), text
    assert not tab.page.locator("main").is_visible()
    assert paper.locator("canvas").count() >= 5 * 7
    style = "element => [getComputedStyle(element).color, getComputedStyle(document.body).backgroundColor]"
    assert paper.evaluate(style) == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]
    tab.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert paper.evaluate("paper => paper.children.length") == 0


def test_5000_rollouts_open_in_under_two_seconds(opened: Open) -> None:
    tab = opened("large")
    took = []
    for _ in range(3):
        took.append(tab.page.evaluate("performance.getEntriesByName('microsim-overview')[0].startTime"))
        if took[-1] < OPENS_WITHIN_MS:
            break
        tab.go()  # the machine may be busy with other tests
    assert min(took) < OPENS_WITHIN_MS, took
    assert tab.page.get_by_text("5,000").first.is_visible()
    for route in ("timeline", "group/19/rollout/249"):
        tab.go(route)


def test_a_video_is_in_the_file_and_plays(opened: Open, tmp_path: Path) -> None:
    gif = b"GIF89a\1\0\1\0\x80\0\0\xff\xff\xff\0\0\0,\0\0\0\0\1\0\1\0\0\2\2D\1\0;"
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "3.gif").write_bytes(gif)
    run = run_of(20, groups=1)
    run.groups[0].rollouts[3].files["video"] = "videos/3.gif"
    run.groups[0].rollouts[4].files["video"] = "videos/is-not-there.gif"
    write(tmp_path / "report.html", run)
    (tmp_path / "videos" / "3.gif").unlink()
    tab = opened(tmp_path / "report.html", "group/0/rollout/3")
    image = tab.page.get_by_role("img", name=re.compile("^Video of seed 3"))
    image.wait_for()
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
    tab.go("group/0/rollout/4")
    assert tab.page.get_by_text("The video is not in this file").is_visible()


def test_two_runs_are_compared_environment_first(opened: Open, tmp_path: Path) -> None:
    before, now = run_of(160, seed=1), run_of(160, seed=2)
    now.host.kernel = "6.12.0"
    for rollout in now.groups[1].rollouts:
        rollout.metrics["time_s"] = 1.3 * (rollout.metrics["time_s"] or 0.0)
    comparison = compare(before, now, ("monday.json", "tuesday.json"))
    document = msgspec.to_builtins(comparison)
    write(tmp_path / "report.html", against(before, now, comparison), comparison=document)
    page = opened(tmp_path / "report.html", "comparison").page
    text = page.locator("main").inner_text()
    assert text.index("host.kernel is '6.1.0-28-amd64' before and '6.12.0' now") < text.index("Paired seeds")
    assert page.get_by_role("row", name=re.compile("test_narrow_aisle.*shifted")).is_visible()
    assert "time_s" in text[text.index("Metrics that changed") :]
    page.get_by_role("link", name="test_narrow_aisle").first.click()
    page.get_by_text("Recorded 2026-11-30 02:14:07 UTC in monday.json").wait_for()


def test_a_run_without_rollouts_has_a_report_too(opened: Open, tmp_path: Path) -> None:
    write(tmp_path / "report.html", msgspec.structs.replace(run_of(1, groups=1), groups=[], worlds=[], baselines=[]))
    tab = opened(tmp_path / "report.html")
    assert tab.page.get_by_text("No test of this run used a rollout.").is_visible()
    for route in ("timeline", "environment", "group/0", "nowhere"):
        tab.go(route)


def test_without_scripts_the_report_says_what_it_can(opened: Open, browser: Any, reports: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(reports["plain"].as_uri())
    assert "scripts are switched off" in page.locator("main").inner_text()
    context.close()
