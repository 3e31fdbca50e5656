"""What a controller sees of its guest: a file tree of its own.

The tree has the interpreter and the installed packages, read-only (``/usr`` with the links beside it, ``/opt/venv``,
and what the template lists as ``controller.readable``), a few files of ``/etc``, five devices, a ``/proc`` of its own
processes, and one small file system to write to. Its folders are ``/workspace/controller`` (where it starts),
``/tmp`` and ``/dev/shm``. Nothing else of the guest has a name in it: not the world's code, not its state, not
``/sys``, not the agent. Whatever is not there need not be forbidden.

Linux and gVisor build it alike, from mounts, but for this:

* A read-only view of a folder is a bind mount on Linux. gVisor has none; there it is an overlay of the folder over an
  empty one, without an upper layer.
* Linux gives each controller a mount namespace, and its tree becomes the root by ``pivot_root``. gVisor (2022) accepts
  the flag and goes on with the one namespace, and knows no ``pivot_root``: there the tree becomes the root by
  ``chroot``, which nobody leaves who may not call ``chroot`` again.
* The writable file system has a limit of bytes and of files on Linux. gVisor's has one of bytes, fixed when it is
  mounted; files are counted by looking (:meth:`Jail.crowded`).
"""

import itertools
import os
import shutil
import stat
from typing import Iterator, List, Sequence

from microsim_guest import config, kernel

FOLDER = "/run/microsim-controllers"
WORKSPACE = "/workspace/controller"  # seen from inside
PROGRAM_FOLDER = "/controller"  # likewise; of programs that are no Python modules
READABLE = ("/usr", "/opt/venv")
LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # into /usr, since Debian's merge of the two
DEVICES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}
ETC_FILES = ("ld.so.cache", "ld.so.conf", "localtime", "mime.types", "nsswitch.conf", "os-release", "services")
ETC_FOLDERS = ("alternatives", "fonts", "ssl")
DEFAULT_BYTES, DEFAULT_FILES = 64 << 20, 4096
TREE_BYTES = 256 << 20  # of the tree itself, whose only large file may be the controller's program
_numbers = itertools.count()


class Jail:
    """One file tree for one controller, built here and entered by the controller's process.

    Args:
        owner: The user that the writable folders belong to.
        readable: Folders and files that the controller may read besides the usual ones.
    """

    def __init__(self, owner: int, readable: Sequence[str] = ()) -> None:
        self.root = "{}/{}".format(FOLDER, next(_numbers))
        self._owner = owner
        kernel.mount("tmpfs", self.root, "tmpfs", kernel.MS_NOSUID, "mode=755,size={}".format(TREE_BYTES))
        os.makedirs(self._inside("empty"))
        for name in LINKS:
            if os.path.islink("/" + name):
                os.symlink(os.readlink("/" + name), self._inside(name))
        for source in (*READABLE, *readable):
            self._show(source)
        self._make_etc()
        self._make_devices()
        for name in ("proc", "controller", "workspace"):
            os.makedirs(self._inside(name), exist_ok=True)
        os.symlink("workspace/tmp", self._inside("tmp"))
        os.symlink("../workspace/shm", self._inside("dev/shm"))
        self._files = 0
        self._mount_scratch(DEFAULT_BYTES, DEFAULT_FILES)

    def _inside(self, path: str) -> str:
        return os.path.join(self.root, path.lstrip("/"))

    def _show(self, source: str) -> None:
        """Show a folder of the guest, or a file, read-only, by the same name."""
        if os.path.isfile(source):
            os.makedirs(os.path.dirname(self._inside(source)), exist_ok=True)
            shutil.copy(source, self._inside(source))
        elif kernel.is_gvisor():
            empty = self._inside("empty")
            os.makedirs(empty, exist_ok=True)
            kernel.mount(
                "none", self._inside(source), "overlay", kernel.MS_RDONLY, "lowerdir={}:{}".format(source, empty)
            )
        else:
            kernel.mount(source, self._inside(source), "", kernel.MS_BIND)
            flags = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
            kernel.mount("none", self._inside(source), "", flags)

    def _make_etc(self) -> None:
        os.makedirs(self._inside("etc"))
        for name in ETC_FILES:
            if os.path.isfile("/etc/" + name):
                shutil.copyfile("/etc/" + name, self._inside("etc/" + name))
        for name in ETC_FOLDERS:
            if os.path.isdir("/etc/" + name):
                self._show("/etc/" + name)
        for name, text in (
            ("passwd", "root:x:0:0::/:/bin/sh\ncontroller:x:{0}:{0}::{1}:/bin/sh\n".format(self._owner, WORKSPACE)),
            ("group", "root:x:0:\ncontroller:x:{}:\n".format(self._owner)),
            ("hosts", "127.0.0.1 localhost\n::1 localhost\n"),
        ):
            with open(self._inside("etc/" + name), "w") as file:
                file.write(text)

    def _make_devices(self) -> None:
        os.makedirs(self._inside("dev"))
        for name, minor in DEVICES.items():
            os.mknod(self._inside("dev/" + name), stat.S_IFCHR | 0o666, os.makedev(1, minor))
            os.chmod(self._inside("dev/" + name), 0o666)  # whatever the umask is
        for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
            os.symlink("/proc/self/fd" + target, self._inside("dev/" + name))

    def _mount_scratch(self, size: int, files: int) -> None:
        gvisor = kernel.is_gvisor()
        data = "mode=755,size={}".format(size) + ("" if gvisor else ",nr_inodes={}".format(files))
        kernel.mount("tmpfs", self._inside("workspace"), "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, data)
        self._size, self._files = size, files
        for name, mode in (("controller", 0o700), ("tmp", 0o1777), ("shm", 0o1777)):
            path = config.scratch(self._inside("workspace/" + name), self._owner)
            os.chmod(path, mode)

    def limit(self, size: int, files: int) -> None:
        """Set what the writable file system holds, before anything has been written or opened there.

        Args:
            size: Bytes.
            files: Files and folders.
        """
        if (size, files) == (self._size, self._files):
            return
        if kernel.is_gvisor():
            self._mount_scratch(size, files)  # over the other one
            return
        self._size, self._files = size, files
        flags = kernel.MS_REMOUNT | kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount("none", self._inside("workspace"), "", flags, "size={},nr_inodes={}".format(size, files))

    def put(self, name: str, data: bytes) -> str:
        """Write the controller's program, which it may read and run but not change; return its path inside."""
        inside = "{}/{}".format(PROGRAM_FOLDER, os.path.basename(name.rstrip("/.")) or "program")
        with open(self._inside(inside), "wb") as file:
            file.write(data)
        os.chmod(self._inside(inside), 0o755)
        return inside

    def overruns(self) -> List[str]:
        """Return which limits of the writable file system are reached: "workspace.bytes", "workspace.files"."""
        found = os.statvfs(self._inside("workspace"))
        if kernel.is_gvisor():
            used = (found.f_blocks - found.f_bfree) * found.f_bsize
            full = ((used + (64 << 10) >= self._size, "bytes"), (self.crowded(), "files"))
        else:
            full = ((found.f_bfree == 0, "bytes"), (found.f_ffree == 0, "files"))
        return ["workspace." + what for reached, what in full if reached]

    def crowded(self) -> bool:
        """Tell whether there are more files than there may be, by counting no more than those."""
        entries = _entries(self._inside("workspace"))
        return sum(1 for _ in itertools.islice(entries, self._files + 1)) > self._files

    def enter(self) -> None:
        """Make the tree the calling process's root; its ``/proc`` is that of the process's own pid namespace."""
        if kernel.is_gvisor():
            kernel.mount("proc", self._inside("proc"), "proc", kernel.MS_RDONLY | kernel.MS_NOEXEC)
            os.chroot(self.root)
        else:
            kernel.mount("none", "/", "", kernel.MS_PRIVATE | kernel.MS_REC)
            flags = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
            kernel.mount("proc", self._inside("proc"), "proc", flags)
            os.chdir(self.root)
            kernel.pivot_root(".", ".")
            kernel.detach(".")
        os.chdir("/")

    def remove(self) -> None:
        """Take the tree away, with all that was written to it; nothing may run in it any more."""
        kernel.detach_all(self.root)
        os.rmdir(self.root)


def _entries(folder: str) -> Iterator[str]:
    """Yield the path of each entry in a folder, to any depth; links are not followed."""
    pending = [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    yield entry.path
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except OSError:
            continue  # it has been removed meanwhile
