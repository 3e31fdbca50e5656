"""The base layer: a Debian root file system with the kernel of the same suite, and an initramfs for it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import msgspec

from microsim_vm import digests, tools
from microsim_vm.cache import Cache, need_space
from microsim_vm.errors import BakeError
from microsim_vm.templates import initramfs
from microsim_vm.tools import Progress

RECIPE = 3  # raise when this file's output changes for the same inputs
EPOCH = "1700000000"  # every timestamp in an image
EROFS_UUID = "00000000-0000-0000-0000-000000000000"
TIMEOUT_S = 1800.0
EXTRA_DEBS = ("busybox-static",)
# The guest's own programs are Python; wheels (manylinux) count on the system's C++ library; busybox stands in for what
# gVisor cannot run.
GUEST_PACKAGES = ("python3", "libstdc++6", "busybox-static")

# Runs inside mmdebstrap's (possibly unprivileged) namespace: only there are the files owned by root. An
# unprivileged one can reach no folder of ours, so it works inside the root and mmdebstrap copies the result out.
OUT = "microsim-out"
HOOK = r"""
set -eu
root="$1"; set -- @PACKAGES@
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
mkdir "$root/@OUT@"
cd "$root/@OUT@"
dpkg-query --admindir="$root/var/lib/dpkg" -W -f '${Package}=${Version}\n' | sort > installed.txt
xargs apt-cache show < installed.txt | grep -E '^(Package|Version|SHA256):' > index.txt
apt-get download -q "$@"
concrete=$(dpkg-deb -f "$1"_*.deb Depends | sed 's/[ ,].*//')
case "$concrete" in linux-image-*) apt-get download -q "$concrete";; esac
rm -rf "$root"/var/log/* "$root"/var/cache/* "$root"/var/lib/apt/* "$root"/etc/apt/sources.list* \
    "$root"/var/lib/dpkg/*-old "$root"/etc/machine-id "$root"/etc/resolv.conf "$root"/etc/dpkg/dpkg.cfg.d/99mmdebstrap
echo microsim > "$root/etc/hostname"
printf '127.0.0.1 localhost\n::1 localhost\n' > "$root/etc/hosts"
# proc and sys are mounted here, and to whom they belong differs between root and others: the initramfs adds them.
mkfs.erofs -d0 -x-1 -T"$SOURCE_DATE_EPOCH" -U"$EROFS_UUID" --exclude-regex='^((@OUT@|proc|sys)$|(dev|run|tmp)/.+)' \
    base.erofs "$root"
"""
SLIM = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*", "/usr/share/lintian/*")


class Package(msgspec.Struct, frozen=True):
    """One Debian package as installed: its version and the SHA-256 of its archive."""

    version: str
    sha256: str


class Base(msgspec.Struct, frozen=True):
    """A baked base layer.

    Attributes:
        packages: Every installed package, and the kernel's.
        kernel_package: Name of the package that the kernel came from.
        python: The guest's Python, "major.minor".
        sha256: Digests of the files ``base.erofs``, ``vmlinuz`` and ``initramfs.cpio``.
    """

    suite: str
    packages: dict[str, Package]
    kernel_package: str
    python: str
    sha256: dict[str, str]


def recipe() -> str:
    """Return a digest of how a base layer is made: another recipe makes another layer of the same inputs."""
    modules = [*initramfs.MODULES, *initramfs.MEMORY_MODULES]
    return digests.of_data([RECIPE, HOOK, SLIM, GUEST_PACKAGES, initramfs.INIT, modules])


def ensure(suite: str, packages: list[str], kernel: str, cache: Cache, progress: Progress) -> tuple[Base, Path]:
    """Return the base layer and its folder, building it where it is not in the cache.

    Raises:
        BakeError: mmdebstrap or a later step failed.
        MissingToolError: mmdebstrap, erofs-utils, dpkg or cpio is not installed.
        NoSpaceError: Less than 1 GiB is free.
    """
    key = digests.of_data([recipe(), suite, sorted(packages), kernel])[:32]
    folder = cache.folder("bases") / key
    with cache.lock(f"base-{key}", what=f"the base system ({suite})", progress=progress, timeout_s=TIMEOUT_S):
        manifest = folder / "manifest.json"
        if manifest.exists():
            return msgspec.json.decode(manifest.read_bytes(), type=Base), folder
        # Who is not root builds in a user namespace, with the ids that newuidmap may hand out.
        unprivileged = ["newuidmap"] if os.geteuid() else []
        tools.need("mmdebstrap", "mkfs.erofs", "dpkg-deb", "cpio", "apt-get", *unprivileged)
        need_space(cache.root, 1 << 30, "the base system")
        shutil.rmtree(folder, ignore_errors=True)  # half-written: it has no manifest
        progress(f"building the base system: {suite} with {', '.join(sorted(packages))}")
        with cache.staging("base") as staging:
            base = _build(suite, packages, kernel, staging, progress)
            folder.mkdir()
            for name in base.sha256:
                shutil.move(staging / name, folder / name)
        digests.write_atomically(manifest, msgspec.json.encode(base))
        return base, folder


def _build(suite: str, packages: list[str], kernel: str, staging: Path, progress: Progress) -> Base:
    out = staging / "out"
    out.mkdir()
    hook = HOOK.replace("@OUT@", OUT).replace("@PACKAGES@", shlex.join([kernel, *EXTRA_DEBS]))
    env = {**_clean_env(), "SOURCE_DATE_EPOCH": EPOCH, "EROFS_UUID": EROFS_UUID}
    if os.geteuid() == 0:
        env["TMPDIR"] = str(staging)  # what a killed build leaves is then the reaper's
    tools.run(
        [
            *tools.contained(), "mmdebstrap", "--variant=essential", "--format=null",
            f"--include={','.join(sorted({*GUEST_PACKAGES, *packages}))}",
            *(f"--dpkgopt=path-exclude={pattern}" for pattern in SLIM),
            f"--customize-hook={hook}", f"--customize-hook=sync-out /{OUT} {shlex.quote(str(out))}",
            suite, "-", *mirrors(suite),
        ],
        what="building the base system",
        progress=progress,
        timeout_s=TIMEOUT_S,
        env=env,
    )  # fmt: skip
    installed = _package_index(out / "index.txt")
    for deb in sorted(out.glob("*.deb")):
        name, version = _deb_field(deb, "Package"), _deb_field(deb, "Version")
        installed[name] = Package(version, digests.of_file(deb))
        tools.run(["dpkg-deb", "-x", str(deb), str(staging / "unpacked")],
                  what="unpacking the kernel", progress=progress, timeout_s=120)  # fmt: skip
    vmlinuz = sorted((staging / "unpacked/boot").glob("vmlinuz-*"))
    if not vmlinuz:
        raise BakeError(f"package {kernel} of {suite} brought no kernel", hint="check kernel.package in the template")
    release = vmlinuz[0].name.removeprefix("vmlinuz-")
    shutil.move(vmlinuz[0], staging / "vmlinuz")
    shutil.move(out / "base.erofs", staging / "base.erofs")
    initramfs.build(staging / "unpacked", release, staging / "initramfs.cpio", progress)
    python = re.match(r"\d+\.\d+", installed["python3"].version)
    assert python is not None
    names = ("base.erofs", "vmlinuz", "initramfs.cpio")
    for name in names:
        (staging / name).chmod(stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)
    return Base(
        suite=suite,
        packages=installed,
        kernel_package=f"linux-image-{release}",
        python=python.group(),
        sha256={name: digests.of_file(staging / name) for name in names},
    )


def _package_index(path: Path) -> dict[str, Package]:
    packages: dict[str, Package] = {}
    fields: dict[str, str] = {}
    for line in path.read_text().splitlines():
        key, _, value = line.partition(": ")
        if key == "Package":
            fields = {}
        fields[key] = value
        if len(fields) == 3:
            packages[fields["Package"]] = Package(fields["Version"], fields["SHA256"])
    return packages


def _deb_field(deb: Path, field: str) -> str:
    return subprocess.run(["dpkg-deb", "-f", deb, field], capture_output=True, text=True, check=True).stdout.strip()


def mirrors(suite: str) -> list[str]:
    """Return the machine's own apt sources for a suite, or none (mmdebstrap then knows the suite's usual ones)."""
    listing = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)|$(RELEASE)|$(COMPONENT)", "Created-By: Packages"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    wanted = {suite, f"{suite}-updates", f"{suite}-security"}
    rows = [line.split("|") for line in listing.stdout.splitlines()]
    lines = [f"deb {row[0]} {row[1]} {row[2]}" for row in rows if len(row) == 3 and row[1] in wanted]
    return list(dict.fromkeys(lines))


def _clean_env() -> dict[str, str]:
    """Return the environment without what would change an image from machine to machine."""
    keep = ("PATH", "HOME", "TMPDIR", "http_proxy", "https_proxy", "no_proxy")
    env = {name: os.environ[name] for name in keep if name in os.environ}
    env["PATH"] = env.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    return {**env, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
