"""Output of controllers and guests, made safe to show."""

from __future__ import annotations

from xml.etree import ElementTree

from pytest_microsim.report.sections import LIMIT, shown


def test_text_is_shown_as_it_is() -> None:
    assert shown("tab\there\nzwölf €\n".encode()) == "tab\there\nzwölf €\n"


def test_bad_bytes_are_replaced_and_controls_escaped() -> None:
    text = shown(b"\xff\xfe\x00\x1b[31m\r\x7f\xc2\x85 \xe2\x82\xac \xef\xbf\xbf")
    assert text == "��\\x00\\x1b[31m\\r\\x7f\\x85 € \\uffff"
    ElementTree.fromstring(f"<a>{text}</a>")


def test_long_output_is_cut_in_the_middle_with_a_note() -> None:
    text = shown(b"begin" + b"x" * (2 << 20) + b"end")
    assert text.startswith("begin")
    assert text.endswith("end")
    assert f"[... {(2 << 20) + 8 - LIMIT} bytes left out, {LIMIT} shown ...]" in text
    assert len(text) < LIMIT + 100


def test_output_at_the_limit_is_whole() -> None:
    assert shown(b"y" * LIMIT) == "y" * LIMIT
