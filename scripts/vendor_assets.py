#!/usr/bin/env python3
"""Fetch what others wrote and the report needs, with npm, and check every byte of it against what is written here.

Usage: python scripts/vendor_assets.py [--check]

With ``--check`` nothing is fetched: the files that are here are compared with their checksums.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Package(NamedTuple):
    """A package of npm's registry.

    Attributes:
        name, version: Its name and version.
        folder: Where its files go.
        files: SHA-256 of each file, by its path in the package.
    """

    name: str
    version: str
    folder: str
    files: dict[str, str]


PACKAGES = (
    # Draws the charts; MIT. It is inside every report.
    Package(
        "uplot",
        "1.6.32",
        "pytest_microsim/report/html/assets/vendor/uplot",
        {
            "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
            "dist/uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
            "dist/uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
        },
    ),
    # Looks for what keeps people from using a page; MPL-2.0. The tests alone use it.
    Package(
        "axe-core",
        "4.14.1",
        "tests/browser/vendor/axe",
        {
            "LICENSE": "af175b9d96ee93c21a036152e1b905b0b95304d4ae8c2c921c7609100ba8df7e",
            "axe.min.js": "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c",
        },
    ),
)


def main() -> int:
    """Fetch, or check."""
    if "--check" not in sys.argv[1:]:
        for package in PACKAGES:
            _fetch(package)
    wrong = [line for package in PACKAGES for line in _wrong(package)]
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


def _fetch(package: Package) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            ["npm", "pack", "--silent", f"{package.name}@{package.version}"], cwd=scratch, check=True, timeout=300
        )
        (archive,) = Path(scratch).glob("*.tgz")
        target = ROOT / package.folder
        target.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as tar:
            for path, digest in package.files.items():
                member = tar.extractfile(f"package/{path}")
                assert member is not None, path
                content = member.read()
                if hashlib.sha256(content).hexdigest() != digest:
                    raise SystemExit(f"{package.name} {package.version}: {path} is not what it was: it is left out")
                (target / Path(path).name).write_bytes(content)
        (target / "VERSION").write_text(f"{package.name} {package.version}\n", encoding="utf-8")


def _wrong(package: Package) -> list[str]:
    lines = []
    for path, digest in package.files.items():
        file = ROOT / package.folder / Path(path).name
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            lines.append(f"{file.relative_to(ROOT)} is not that of {package.name} {package.version}")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
