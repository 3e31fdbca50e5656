"""Where templates are looked for: a template is a folder with a ``template.yaml``, named like the folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import microsim_vm
from microsim_vm.errors import TemplateError, TemplateNotFoundError
from microsim_vm.templates.decode import nearest
from microsim_vm.templates.spec import TEMPLATE_FILE
from microsim_vm.templates.yaml import read


class Found(NamedTuple):
    """A template on the search path; its YAML has not been read.

    Attributes:
        name: The folder's name.
        folder: The folder, absolute.
    """

    name: str
    folder: Path


def shipped_templates_dir() -> Path:
    """Return the folder of the templates that come with this project, in a wheel or in a checkout."""
    package = Path(microsim_vm.__file__).parent
    installed = package / "shipped_templates"
    return installed if installed.is_dir() else package.parent.parent / "templates"


def search_path(explicit: Sequence[Path], project_root: Path) -> list[Path]:
    """Return the folders to search, first match wins: explicit ones, the project's own, the shipped ones."""
    folders = (*explicit, project_root / "templates", shipped_templates_dir())
    return list(dict.fromkeys(absolute(folder) for folder in folders))


def list_templates(search: Iterable[Path]) -> list[Found]:
    """Return the templates that can be found by name, sorted by name, without reading any of them."""
    found: dict[str, Found] = {}
    for directory in search:
        for folder in _folders(directory):
            found.setdefault(folder.name, Found(folder.name, folder))
    return [found[name] for name in sorted(found)]


def locate(name: str, search: Sequence[Path], *, but: Path | None = None) -> Path:
    """Return the ``template.yaml`` of the first template of this name.

    Args:
        name: The template's name.
        search: Where to look.
        but: A folder that does not count, so that a template can extend the one that it hides.

    Raises:
        TemplateNotFoundError: There is none; the message lists those that there are.
    """
    for directory in search:
        file = absolute(directory) / name / TEMPLATE_FILE
        if file.is_file() and not (but is not None and file.parent.resolve() == but.resolve()):
            return file
    raise not_found(name, search)


def not_found(name: str, search: Sequence[Path]) -> TemplateNotFoundError:
    """Return the error that says which templates there are, and where they were looked for."""
    found = list_templates(search)
    near = nearest(name, (template.name for template in found))
    lines = [f"{template.name}: {template.folder}{_remark(template.folder)}" for template in found]
    for directory in search:
        if (directory / TEMPLATE_FILE).is_file():
            lines.append(f"{directory} is a template itself: search the folder above it")
        elif not directory.is_dir():
            lines.append(f"searched {directory}: no such folder")
        else:
            lines.append(f"searched {directory}")
    return TemplateNotFoundError(
        f"there is no template {name!r}",
        hint=f'did you mean "{near}"?'
        if near
        else f"write the name of a template, or of a folder with {TEMPLATE_FILE}",
        details="\n".join(lines),
    )


def _remark(folder: Path) -> str:
    """Say of a template that it has no world of its own, as far as its own file tells."""
    try:
        keys = read(folder / TEMPLATE_FILE).values.keys()
    except TemplateError:
        return ""
    return "" if keys & {"world", "processes", "extends"} else " (no world of its own)"


def absolute(path: Path) -> Path:
    """Return an absolute path; links are followed only where the path has ``..``, which depends on them."""
    return path.resolve() if ".." in path.parts else path.absolute()


def _folders(directory: Path) -> list[Path]:
    try:
        return sorted(folder for folder in absolute(directory).iterdir() if (folder / TEMPLATE_FILE).is_file())
    except OSError:
        return []
