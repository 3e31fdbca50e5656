"""Python packages that a template leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest
from microsim_vm.errors import TemplateError
from microsim_vm.templates import load_template


def write(folder: Path, python: str) -> Path:
    folder.mkdir()
    path = folder / "template.yaml"
    path.write_text(f"name: {folder.name}\npython:\n{python}")
    return path


def test_packages_are_left_out_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "t", '  requirements: ["robot==1.0"]\n  without: [empy, Lark_parser]\n')
    template = load_template(path)
    assert template.python.without == ("empy", "Lark_parser")
    assert template.canonical() != load_template(write(tmp_path / "u", '  requirements: ["robot==1.0"]\n')).canonical()


@pytest.mark.parametrize(
    ("without", "words"),
    [
        ("[My_Pkg]", ["4", "'My_Pkg'", "python.without leaves it out"]),
        ('["empy==4.2.1"]', ["4", "not the name of a Python package"]),
        ("[-r]", ["4", "not the name of a Python package"]),
    ],
)
def test_what_cannot_be_left_out_is_refused(tmp_path: Path, without: str, words: list[str]) -> None:
    path = write(tmp_path / "t", f'  requirements: ["my-pkg==1.0"]\n  without: {without}\n')
    with pytest.raises(TemplateError) as caught:
        load_template(path)
    for word in words:
        assert word in str(caught.value)
