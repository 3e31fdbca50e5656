"""A small initramfs: load a handful of modules, stack the read-only layers, hand over to the guest's init."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from microsim_vm import tools
from microsim_vm.errors import BakeError
from microsim_vm.tools import Progress

# In load order: each one's dependencies come before it.
MODULES = (
    "virtio_ring", "virtio", "virtio_mmio", "virtio_blk", "virtio_console",
    "libcrc32c", "erofs", "overlay", "failover", "net_failover", "virtio_net",
)  # fmt: skip
# Beside those, for layers that lie in the guest's memory.
MEMORY_MODULES = ("libnvdimm", "nd_btt", "nd_pmem", "nd_e820")
LAYERS = ("base", "python", "world")
LAYERS_IN_MEMORY = "microsim.layers=memory"
PROBE_MARKER = "microsim: probe ok"

# The overlay's upper layer is a tmpfs: every write is guest memory, so a fork copies no disk.
INIT = r"""#!/bin/busybox sh
export PATH=/bin
fail() { echo "microsim: initramfs: $*"; busybox reboot -f; }
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs dev /dev
if busybox grep -q microsim.probe /proc/cmdline; then
    echo "@MARKER@"
    while :; do busybox sleep 3600; done
fi
load() { while read -r module; do busybox insmod "/modules/$module.ko" || fail "module $module"; done < "$1"; }
load /modules/order
dax=
if busybox grep -q "@IN_MEMORY@" /proc/cmdline; then
    load /modules/memory_order
    dax=,dax
fi
lower=
number=0
for layer in @LAYERS@; do
    tries=0
    device=
    while [ -z "$device" ]; do
        [ -n "$dax" ] && [ -b "/dev/pmem$number" ] && device="/dev/pmem$number"
        for entry in /sys/block/vd*; do
            [ "$(busybox cat "$entry/serial" 2>/dev/null)" = "$layer" ] && device="/dev/${entry##*/}"
        done
        tries=$((tries + 1))
        [ "$tries" -gt 200 ] && fail "no disk is called $layer"
        [ -z "$device" ] && busybox sleep 0.05
    done
    busybox mkdir -p "/layers/$layer"
    number=$((number + 1))
    busybox mount -t erofs -o "ro$dax" "$device" "/layers/$layer" || fail "mount $layer"
    lower="/layers/$layer${lower:+:$lower}"
done
busybox mkdir -p /rw /root
busybox mount -t tmpfs -o mode=755,size=90% tmpfs /rw || fail "tmpfs"
busybox mkdir -p /rw/upper /rw/work
busybox mount -t overlay -o "lowerdir=$lower,upperdir=/rw/upper,workdir=/rw/work" overlay /root || fail "overlay"
busybox mkdir /root/proc /root/sys
busybox mount --move /dev /root/dev
busybox umount /sys /proc
export PATH=/usr/sbin:/usr/bin:/sbin:/bin PYTHONPATH=/opt/microsim/guest PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1
exec busybox switch_root /root /opt/venv/bin/python3 -m microsim_guest.init
"""


def build(unpacked: Path, release: str, target: Path, progress: Progress) -> None:
    """Write the initramfs.

    Args:
        unpacked: Folder with the unpacked kernel and busybox packages.
        release: The kernel's release, as in ``lib/modules/<release>``.
        target: The archive to write.
        progress: Takes one-line texts.

    Raises:
        BakeError: The kernel package lacks a module that the guest needs.
    """
    root = target.parent / "initramfs"
    for name in ("bin", "modules", "proc", "sys", "dev"):
        (root / name).mkdir(parents=True)
    shutil.copyfile(unpacked / "bin/busybox", root / "bin/busybox")
    available = {path.name: path for path in (unpacked / "lib/modules" / release).rglob("*.ko")}
    for module in (*MODULES, *MEMORY_MODULES):
        source = available.get(f"{module}.ko")
        if source is None:
            raise BakeError(f"kernel {release} has no module {module}", hint="choose Debian's cloud kernel package")
        shutil.copyfile(source, root / "modules" / source.name)
    (root / "modules/order").write_text("".join(f"{module}\n" for module in MODULES))
    (root / "modules/memory_order").write_text("".join(f"{module}\n" for module in MEMORY_MODULES))
    script = INIT.replace("@LAYERS@", " ".join(LAYERS)).replace("@MARKER@", PROBE_MARKER)
    (root / "init").write_text(script.replace("@IN_MEMORY@", LAYERS_IN_MEMORY))
    paths = sorted(root.rglob("*"))
    for path in [root, *paths]:
        path.chmod(0o755)  # whatever this machine's umask is
        os.utime(path, (0, 0), follow_symlinks=False)
    names = "".join(f"{path.relative_to(root)}\n" for path in paths)
    with open(target, "wb") as archive:
        packed = subprocess.run(
            [tools.need("cpio"), "--quiet", "--create", "--format=newc", "--reproducible", "--owner=+0:+0"],
            input=names.encode(), stdout=archive, stderr=subprocess.PIPE, cwd=root, timeout=60, check=False,
        )  # fmt: skip
    if packed.returncode != 0:
        raise BakeError("cpio could not write the initramfs", details=packed.stderr.decode("utf-8", "replace"))
    progress(f"initramfs for kernel {release}: {target.stat().st_size >> 10} KiB")
