"""The documentation agrees with the code, and with itself."""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from microsim_vm.templates import load_template

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    return _FENCE.sub("", text)


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def blocks(language: str, containing: str) -> list[object]:
    return [
        pytest.param(body, id=f"{page_id(page)}-{number}")
        for page in PAGES
        for number, (found, body) in enumerate(_FENCE.findall(page.read_text(encoding="utf-8")))
        if found == language and re.search(containing, body, re.MULTILINE)
    ]


@pytest.fixture(scope="module")
def generator(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("generate_reference")


def test_the_reference_is_up_to_date(generator: ModuleType) -> None:
    written = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert written == generator.reference(), "run scripts/generate_reference.py"


def test_the_reference_has_every_option_and_ini_setting(generator: ModuleType, pytestconfig: pytest.Config) -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    flags = [f"--{name.replace('_', '-')}" for name in vars(pytestconfig.option) if name.startswith("microsim_")]
    settings = [name for name, _, _ in generator.registered().ini]
    assert flags
    assert settings
    assert [flag for flag in flags if not re.search(rf"`{flag}[ `]", page)] == []
    assert [name for name in settings if f"| `{name}` |" not in page] == []


def test_every_key_of_a_template_is_explained(generator: ModuleType) -> None:
    rows = generator.struct_table(generator.spec.Document).splitlines()[2:]
    assert [row for row in rows if row.endswith("|  |")] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in anchors_of(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "docs"], ids=page_id)
def test_the_index_lists_every_page(page: Path) -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert page.name == "index.md" or f"({page.name})" in index


@pytest.mark.parametrize("block", blocks("yaml", r"^name:"))
def test_templates_in_the_documentation_load(block: str, tmp_path: Path) -> None:
    name = re.search(r"^name: (\S+)", block, re.MULTILINE)
    assert name is not None
    throw, driver = tmp_path / "templates" / "throw", tmp_path / "templates" / "driver"
    folder = tmp_path / "templates" / name.group(1)
    for path in (throw, driver, folder):
        path.mkdir(parents=True, exist_ok=True)
        (path / "world.py").write_text("")
    (throw / "template.yaml").write_text('name: throw\nworld: {factory: "world:Throw"}\n')
    (driver / "template.yaml").write_text("name: driver\n")
    (folder / "template.yaml").write_text(block)
    for source in re.findall(r"(?:source|score): ([^,}\s]+)", block):
        file = folder / source
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert load_template(folder).name == name.group(1)


@pytest.mark.parametrize("block", blocks("python", ""))
def test_python_in_the_documentation_compiles(block: str) -> None:
    # A decorator that stands alone in a guide has its test elsewhere.
    compile(block if "def " in block else re.sub(r"(?m)^@.*", "pass", block), "documentation", "exec")
