"""The python layer: resolve pinned requirements to wheels for the guest, and lay them out as /opt/venv."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

import msgspec
from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile
from packaging.utils import canonicalize_name

from microsim_vm import digests, tools
from microsim_vm.cache import Cache
from microsim_vm.errors import BakeError, MissingToolError
from microsim_vm.templates import base as base_layer
from microsim_vm.templates.spec import Python
from microsim_vm.tools import Progress

RECIPE = 1
VENV = "opt/venv"
TIMEOUT_S = 900.0
STAND_IN = "9999.0"  # version
# Newest first; Debian 12's glibc is 2.36, and pip takes each tag literally.
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(36, 16, -1)),
    "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64",
)  # fmt: skip


class Wheel(msgspec.Struct, frozen=True, order=True):
    """One resolved wheel."""

    name: str
    version: str
    filename: str
    sha256: str


def resolve(packages: Python, python: str, progress: Progress) -> list[Wheel]:
    """Resolve requirements and everything they need to exact wheels for the guest's Python.

    Raises:
        BakeError: pip found no set of wheels; the details are its output.
    """
    requirements = packages.requirements
    if not requirements:
        return []
    progress(f"resolving {', '.join(requirements)} for Python {python}")
    with tempfile.TemporaryDirectory() as folder:
        for name in packages.without:
            _stand_in(Path(folder), canonicalize_name(name).replace("-", "_"))
        report = _pip(
            ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", "--target", "unused",
             "--find-links", folder, *_platform_flags(python), *requirements],
            what="resolving Python packages",
            cause="a requirement has no wheel for the guest's Python, or the package index cannot be reached",
        )  # fmt: skip
    left_out = {canonicalize_name(name) for name in packages.without}
    wheels = []
    for item in json.loads(report[report.index("{") :])["install"]:
        download = item["download_info"]
        sha256 = download["archive_info"]["hashes"]["sha256"]
        filename = download["url"].split("?")[0].rpartition("/")[2]
        metadata = item["metadata"]
        name = canonicalize_name(metadata["name"])
        if name not in left_out:
            wheels.append(Wheel(name, metadata["version"], filename, sha256))
    return sorted(wheels)


def _stand_in(folder: Path, name: str) -> None:
    """Write an empty wheel, newer than any real one, for pip to find in place of a package that is left out."""
    info = f"{name}-{STAND_IN}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{STAND_IN}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {STAND_IN}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def ensure(wheels: list[Wheel], python: str, cache: Cache, progress: Progress) -> Path:
    """Return the folder of the python layer (``python.erofs``, ``manifest.json``), built where missing.

    Raises:
        BakeError: A wheel cannot be downloaded any more, or its hash differs from the lock.
    """
    bytecode = same_python(python)
    key = digests.of_data([RECIPE, python, bytecode, [msgspec.to_builtins(wheel) for wheel in wheels]])[:32]
    folder = cache.folder("pythons") / key
    with cache.lock(f"python-{key}", what="the Python layer", progress=progress, timeout_s=TIMEOUT_S):
        manifest = folder / "manifest.json"
        if manifest.exists():
            return folder
        tools.need("mkfs.erofs")
        shutil.rmtree(folder, ignore_errors=True)
        with cache.staging("python") as staging:
            files = download(wheels, python, cache, staging, progress)
            root = staging / "root"
            _lay_out(files, python, root, progress)
            if bytecode:
                progress("compiling Python packages")
                compile_bytecode(root)
            image = staging / "python.erofs"
            make_image(root, image, progress)
            folder.mkdir()
            shutil.move(image, folder / image.name)
        digests.write_json(manifest, {"sha256": digests.of_file(folder / "python.erofs"), "bytecode": bytecode})
    return folder


def download(wheels: list[Wheel], python: str, cache: Cache, staging: Path, progress: Progress) -> list[Path]:
    """Return the wheels' files, from the cache or downloaded; hashes are checked either way."""
    store = cache.folder("wheels")
    missing = [wheel for wheel in wheels if not _intact(store / wheel.filename, wheel)]
    if missing:
        progress(f"downloading {len(missing)} wheel(s): {', '.join(wheel.name for wheel in missing)}")
        listing = staging / "requirements.txt"
        listing.write_text("".join(f"{w.name}=={w.version} --hash=sha256:{w.sha256}\n" for w in missing))
        _pip(
            ["download", "--no-deps", "--quiet", "--require-hashes", "-r", str(listing), "-d", str(staging),
             *_platform_flags(python)],
            what="downloading wheels",
            cause="the package index cannot be reached, or it has no wheel with the hash that template.lock pins",
        )  # fmt: skip
        for wheel in missing:
            if not _intact(staging / wheel.filename, wheel):
                raise BakeError(f"pip did not bring {wheel.filename} with the locked hash")
            os.replace(staging / wheel.filename, store / wheel.filename)
    return [store / wheel.filename for wheel in wheels]


def _intact(path: Path, wheel: Wheel) -> bool:
    return path.exists() and digests.of_file(path) == wheel.sha256


def _platform_flags(python: str) -> list[str]:
    flags = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}",
             f"--abi=cp{python.replace('.', '')}", "--abi=abi3", "--abi=none"]  # fmt: skip
    return flags + [f"--platform={platform}" for platform in PLATFORMS]


def _pip(arguments: list[str], what: str, cause: str) -> str:
    try:
        result = subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments],
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BakeError(f"{what} took longer than {TIMEOUT_S:.0f} s") from None
    if "No module named pip" in result.stderr:
        raise MissingToolError("pip is not installed beside this Python", hint=f"run: {sys.executable} -m ensurepip")
    if result.returncode != 0:
        raise BakeError(f"{what} failed", cause=cause, details=result.stderr[-4000:])
    return result.stdout


def same_python(python: str) -> bool:
    """Bytecode is written only where this interpreter is the guest's version: there is no other compiler."""
    return f"{sys.version_info.major}.{sys.version_info.minor}" == python


def _lay_out(files: list[Path], python: str, root: Path, progress: Progress) -> None:
    venv = root / VENV
    site = venv / "lib" / f"python{python}" / "site-packages"
    site.mkdir(parents=True)
    (venv / "bin").mkdir()
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    for name in ("python", "python3", f"python{python}"):
        (venv / "bin" / name).symlink_to(f"/usr/bin/python{python}")
    scheme = {"purelib": f"/{site.relative_to(root)}", "platlib": f"/{site.relative_to(root)}",
              "scripts": f"/{VENV}/bin", "data": f"/{VENV}", "headers": f"/{VENV}/include"}  # fmt: skip
    for index, path in enumerate(files):
        progress(f"installing wheel {index + 1}/{len(files)}: {path.name}")
        destination = SchemeDictionaryDestination(
            scheme, interpreter=f"/{VENV}/bin/python3", script_kind="posix", destdir=str(root),
            overwrite_existing=True,  # some projects ship one file in two wheels; pip lets the later one win too
        )  # fmt: skip
        with WheelFile.open(path) as wheel, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of bytecode in wheels, which it leaves out
            install(wheel, destination, additional_metadata={"INSTALLER": b"pytest-microsim\n"})


def compile_bytecode(root: Path) -> None:
    """Write bytecode whose content depends on the source alone: no timestamps, no paths of this machine."""
    subprocess.run(
        [sys.executable, "-I", "-m", "compileall", "-q", "-s", str(root), "-p", "/",
         "--invalidation-mode", "unchecked-hash", str(root)],
        env={"PYTHONHASHSEED": "0"}, capture_output=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip  # exit status 1 means that some package ships a file that is no valid Python


def make_image(root: Path, image: Path, progress: Progress) -> None:
    """Pack a folder as a read-only image: owned by root, modes independent of this machine's umask."""
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            private = 0o077 if mode & stat.S_ISVTX else 0  # marked by the caller: for root's eyes only
            executable = path.is_dir() or bool(mode & stat.S_IXUSR)
            path.chmod((0o755 if executable else 0o644) & ~private)
    tools.run(
        [tools.need("mkfs.erofs"), "-d0", "-x-1", f"-T{base_layer.EPOCH}", f"-U{base_layer.EROFS_UUID}", "--all-root",
         str(image), str(root)],
        what="packing the image", progress=progress, timeout_s=300,
    )  # fmt: skip
    image.chmod(0o444)
