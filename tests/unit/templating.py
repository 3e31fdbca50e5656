"""What the tests of templates share."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from microsim_vm.errors import TemplateError
from microsim_vm.templates import load_template

WORLD = "def make():\n    return object()\n"


def write(folder: Path, text: str, *, world: bool = True) -> Path:
    """Write a template's folder and return its template.yaml; a name is added where the text has none."""
    folder.mkdir(parents=True, exist_ok=True)
    text = textwrap.dedent(text)
    if not text.startswith("name:"):
        text = f"name: {folder.name}\n" + text
    path = folder / "template.yaml"
    path.write_text(text, encoding="utf-8")
    if world:
        (folder / "world.py").write_text(WORLD)
    return path


def refused(
    path: Path,
    line: int,
    *words: str,
    kind: type[TemplateError] = TemplateError,
    file: Path | None = None,
    load: Callable[[Path], object] = load_template,
) -> TemplateError:
    """Load a template, expect a refusal at this line whose text has all these words, and return it."""
    with pytest.raises(TemplateError) as caught:
        load(path)
    error = caught.value
    message = str(error)
    assert type(error) is kind
    assert message.startswith(f"{file or path}:{line}: "), message
    for word in words:
        assert word in message, message
    return error
