"""Errors of the library in the words of the command."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from microsim_vm.errors import MicrosimError

WORDS = (
    # No command takes the range as an argument.
    (re.compile(r"--microsim-subnets ([\d./]+)(, or MICROSIM_SUBNETS)?"), r"the variable MICROSIM_SUBNETS=\1"),
    (re.compile(r"--microsim-subnets(, or MICROSIM_SUBNETS)?"), "the variable MICROSIM_SUBNETS"),
    (re.compile(r"(?<!\bpytest )--microsim-(?=[a-z])"), "--"),
    (re.compile(r"\bcall resume\(\)"), "run microsim resume ID"),
    (re.compile(r"\bresume\(\)"), "microsim resume ID"),
    (re.compile(r"\bVolume\.create\([^)]*\)"), "microsim volume create NAME --size 512M"),
    (re.compile(r"\bmax_bytes\b"), "--max-size"),
    (re.compile(r"\bmachine\.memory_mib in the template"),
     "the memory (--memory of create, or machine.memory_mib in the template)"),
    (re.compile(r", or mark the test with @pytest\.mark\.\S+$"), ""),
    (re.compile(r"\bpass seed=\.\.\."), "give --seed"),
)  # fmt: skip


def in_words(text: str) -> str:
    """Return a text with what a caller of the library or a user of pytest would do as what is typed here."""
    for pattern, ours in WORDS:
        text = pattern.sub(ours, text)
    return text


def message(error: MicrosimError) -> str:
    """Return an error's text with its likely cause and next step in the command's words; details stay as they are."""
    ours = type(error).__new__(type(error))
    ours.__dict__.update(error.__dict__)
    ours.what, ours.cause, ours.hint = (in_words(text) for text in (error.what, error.cause, error.hint))
    return str(ours)
