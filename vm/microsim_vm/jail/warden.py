"""Starts jailed processes for a process of ours, as a child of it: ``python -I -S -c ...``. Standard library only.

A process with threads cannot enter a user namespace, and forking a large one takes long; so this small child does it.
What it starts are siblings of its own (CLONE_PARENT): our process waits for them, and they die with it. It reads
requests from its standard input, a socket, which carries descriptors too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import select
import signal
import socket
import stat
import sys
from typing import Any

from microsim_vm.jail import syscalls
from microsim_vm.jail.syscalls import call

MAX_REQUEST = 1 << 17
MAX_DESCRIPTORS = 64
FIRST, HIGH = 3, 100  # descriptors: the first that is given, and where all are out of the way
# Nobody else's: what systemd hands out to containers ends below, and this many process ids fit above.
USERS = 0x70000000
NOBODY = 65534
NAMESPACES = {
    "user namespace": syscalls.CLONE_NEWUSER,
    "processes": syscalls.CLONE_NEWPID,
    "network": syscalls.CLONE_NEWNET,
    "ipc": syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS,
    "view": syscalls.CLONE_NEWNS,
}
EMPTY = "/empty"


class Failed(Exception):
    """A child could not do what it is to do.

    Args:
        what: What went wrong.
        pid: The child, for its parent to wait for; 0 where that is us.
    """

    def __init__(self, what: str, pid: int = 0) -> None:
        super().__init__(what)
        self.pid = pid


class _Child:
    """What a forked child does until it becomes the program.

    Args:
        request: What it becomes: "argv", "layers", "files", "devices", "limits", "base", "owner".
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request
        self._layers = set(request["layers"])
        self._me = os.readlink("/proc/self")  # what the host calls us
        self._stat = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)

    def enter(self) -> None:
        """Enter all layers but those that the program itself takes part in."""
        if "user namespace" in self._layers:
            ids = {"setgroups": "deny", "uid_map": f"{NOBODY} {self._request['uid']} 1",
                   "gid_map": f"{NOBODY} {self._request['gid']} 1"}  # fmt: skip
            for name, text in ids.items():
                with open(f"/proc/self/{name}", "w") as setting:
                    setting.write(text)
        if "rights" in self._layers and (os.geteuid() == 0 or "user namespace" in self._layers):
            syscalls.drop_bounding_set()  # else this user has nothing, and gets nothing by no_new_privs
        if "view" in self._layers:
            self._change_view()
        for name, value in self._request["limits"].items():
            number = getattr(resource, name)
            most = resource.getrlimit(number)[1]
            least = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(number, (least, least))
        if "user" in self._layers:
            own = USERS + int(self._me)
            call("setgroups", 0, None)
            call("setresgid", own, own, own)
            call("setresuid", own, own, own)
        if "rights" in self._layers:
            syscalls.drop_capabilities()
        call("prctl", syscalls.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)

    def _change_view(self) -> None:
        """Make a root that holds what is given, and nothing else."""
        base = self._request["base"]
        call("mount", b"none", b"/", None, syscalls.MS_REC | syscalls.MS_PRIVATE, None)
        copied, links, nodes, trees, room = [], [], [], [], 1 << 16
        plain = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID
        for path, writable in [*((path, False) for path in self._request["files"]),
                             *((path, True) for path in self._request["devices"])]:  # fmt: skip
            info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode) and path.count("/") == 1:  # /lib, where it is a part of /usr
                links.append((path, os.readlink(path)))
                continue
            info = os.stat(path)
            if stat.S_ISCHR(info.st_mode) and "user" in self._layers:  # whoever it belongs to
                nodes.append((path, info.st_rdev))
                continue
            if stat.S_ISREG(info.st_mode) and "user" in self._layers and not info.st_mode & stat.S_IROTH:
                copied.append((path, os.open(path, os.O_RDONLY | os.O_CLOEXEC)))
                room += info.st_size + (1 << 16)
                continue
            fd = syscalls.tree(path, recursive=stat.S_ISDIR(info.st_mode))
            if not writable:
                syscalls.restrict(fd, plain | syscalls.MOUNT_ATTR_NODEV)
            trees.append((path, fd, stat.S_ISDIR(info.st_mode)))
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
        call("mount", b"none", os.fsencode(base), b"tmpfs", flags, f"mode=755,size={room}".encode())
        os.umask(0o022)
        for path, target in links:
            os.symlink(target, base + path)
        for path, fd, folder in trees:
            if os.path.exists(base + path):  # inside of a folder that is there already
                os.close(fd)
                continue
            os.makedirs(base + (path if folder else os.path.dirname(path)), exist_ok=True)
            if not folder:
                os.close(os.open(base + path, os.O_CREAT | os.O_WRONLY, 0o444))
            syscalls.attach(fd, base + path)
            os.close(fd)
        for path, fd in copied:
            os.makedirs(os.path.dirname(base + path), exist_ok=True)
            with open(fd, "rb") as source, open(base + path, "wb") as copy:
                os.fchmod(copy.fileno(), 0o444)
                while os.sendfile(copy.fileno(), source.fileno(), None, 1 << 30):
                    pass
        for path, device in nodes:
            folder = os.path.dirname(base + path)
            if not os.path.exists(folder):  # a file system of its own: the others have no devices
                os.makedirs(folder)
                call("mount", b"none", os.fsencode(folder), b"tmpfs", syscalls.MS_NOSUID, b"mode=755,size=16k")
            os.mknod(base + path, stat.S_IFCHR | 0o600, device)
            os.chmod(base + path, 0o666)
        os.mkdir(base + EMPTY)
        call("mount", b"none", os.fsencode(base + EMPTY), b"tmpfs", flags | syscalls.MS_RDONLY, b"mode=555,size=4k")
        change_root(base)
        root = syscalls.call("open_tree", syscalls.AT_FDCWD, b"/", os.O_CLOEXEC)
        call("mount_setattr", root, b"", syscalls.AT_EMPTY_PATH, (1).to_bytes(8, "little") + bytes(24), 32)
        os.close(root)

    def become(self, given: list[int], status: int, memory_link: socket.socket | None) -> None:
        """Become the program, with the first of the descriptors as standard error and the others from 3 on."""
        if memory_link is not None:
            listener = syscalls.intercept_opening()
            socket.send_fds(memory_link, [b"m"], [listener])
            os.close(listener)
        call("prctl", syscalls.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The kernel does not tell a child whose parent died before it asked to be told.
        if int(os.pread(self._stat, 4096, 0).rpartition(b")")[2].split()[1]) != self._request["owner"]:
            raise Failed("its owner has died")
        status = fcntl.fcntl(status, fcntl.F_DUPFD_CLOEXEC, HIGH)
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH) for fd in given]
        for target, fd in zip([2, *range(FIRST, FIRST + len(given))], moved, strict=False):
            os.dup2(fd, target)
        os.dup2(1, 0)
        call("close_range", FIRST + len(given) - 1, (1 << 32) - 1, syscalls.CLOSE_RANGE_CLOEXEC)
        os.execve(self._request["argv"][0], self._request["argv"], {})


def change_root(folder: str) -> None:
    """Make a mount the root, and take the old one away."""
    os.chdir(folder)
    call("pivot_root", b".", b".")
    call("umount2", b".", syscalls.MNT_DETACH)
    os.chdir("/")


class Warden:
    """Carries requests out."""

    def __init__(self) -> None:
        self._openings: dict[int, tuple[str, int]] = {}  # by the listener: the path, and what to answer with

    def spawn(self, request: dict[str, Any], given: list[int]) -> Any:
        """Start a jailed process; return its number.

        The descriptors are its standard error, those that it is given, and, for "memory", that of the memory file.
        """
        memory = given.pop() if request["memory"] else None
        pid = self._forked(request, given, syscalls.CLONE_PARENT, memory)
        return {"pid": pid}

    def empty(self, request: dict[str, Any], given: list[int]) -> Any:
        """Take all of its view away from the process that a descriptor stands for."""
        flags = NAMESPACES["view"] | sum(NAMESPACES[each] for each in request["layers"] if each == "user namespace")
        told, telling = os.pipe()
        pid = os.fork()
        if pid == 0:
            with _telling(telling):
                call("setns", given[0], flags)
                change_root(EMPTY)
                os._exit(0)
        os.close(telling)
        _heard(told)
        os.waitpid(pid, 0)
        return {}

    def attempt(self, request: dict[str, Any], given: list[int]) -> Any:
        """Try a set of layers with a child that ends at once; tell why they do not work, "" where they do."""
        try:
            os.waitpid(self._forked(request, given, 0, None), 0)
        except (OSError, Failed) as error:
            return {"why_not": str(error)}
        return {"why_not": ""}

    def _forked(self, request: dict[str, Any], given: list[int], how: int, memory: int | None) -> int:
        trying = not request["argv"]
        told, telling = os.pipe()
        here, there = (None, None) if memory is None else socket.socketpair()
        flags = how | sum(flag for name, flag in NAMESPACES.items() if name in request["layers"])
        try:
            pid = syscalls.clone(flags)
        except OSError:
            for end in (told, telling):
                os.close(end)
            for pair in (here, there):
                if pair is not None:
                    pair.close()
            raise
        if pid == 0:
            with _telling(telling):
                child = _Child(request)
                child.enter()
                if trying:
                    _end_trying(request)
                child.become(given, telling, there)
        os.close(telling)
        try:
            if there is not None:
                there.close()
            if here is not None and memory is not None:
                _, listeners, _, _ = socket.recv_fds(here, 1, 1)
                if listeners:
                    self._openings[listeners[0]] = request["memory"], os.dup(memory)
            _heard(told)
        except Failed as error:  # the child ends by itself
            if not how:
                os.waitpid(pid, 0)
            raise Failed(str(error), pid if how else 0) from None
        finally:
            if here is not None:
                here.close()
        return pid

    def serve(self, link: socket.socket) -> None:
        """Serve a process until it closes its end."""
        poll = select.poll()
        while True:
            for fd in (link.fileno(), *self._openings):
                poll.register(fd, select.POLLIN)
            for fd, event in poll.poll():
                if fd != link.fileno():
                    poll.unregister(fd)
                    self._opened(fd, event)
                elif not self._request(link):
                    return

    def _opened(self, listener: int, event: int) -> None:
        """Answer the one opening of the memory file, and leave others alone; or its process has ended."""
        path, memory = self._openings[listener]
        if event & select.POLLIN:
            try:
                number, asked = syscalls.opening(listener)
                if asked != path:
                    syscalls.let(listener, number)
                    return
                syscalls.answer(listener, number, memory)
            except FileNotFoundError:  # a signal has interrupted the call, which begins anew; or it has been killed
                return
            except OSError:  # it has been killed meanwhile
                pass
        del self._openings[listener]
        os.close(memory)
        os.close(listener)

    def _request(self, link: socket.socket) -> bool:
        data, given, _, _ = socket.recv_fds(link, MAX_REQUEST, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return False
        request, held = json.loads(data), list(given)
        try:
            answer = {"ok": getattr(self, request["op"])(request, given)}
        except (OSError, Failed, ValueError) as error:
            answer = {"error": str(error), "pid": getattr(error, "pid", 0)}
        finally:
            for fd in held:
                os.close(fd)
        link.send(json.dumps(answer).encode())
        return True


@contextlib.contextmanager
def _telling(telling: int) -> Any:
    """In a child: tell what went wrong, and end."""
    try:
        yield
    except BaseException as error:
        os.write(telling, (str(error) or repr(error)).encode()[:4000])
    os._exit(1)


def _heard(told: int) -> None:
    """Wait until a child has become its program, or ended.

    Raises:
        Failed: It told what went wrong.
    """
    with open(told, "rb") as pipe:
        said = pipe.read()
    if said:
        raise Failed(said.decode())


def _end_trying(request: dict[str, Any]) -> None:
    """In a child: use what was entered, and end."""
    layers = request["layers"]
    if "view" in layers:
        if {f"/{name}" for name in os.listdir("/")} != {EMPTY, *request["files"]}:
            raise Failed("the root is not what was put into it")
        change_root(EMPTY)
    if "memory" in layers:
        read_end, write_end = os.pipe()
        listener = syscalls.intercept_opening()
        if os.fork() == 0:
            number, path = syscalls.opening(listener)
            if path == os.devnull:
                syscalls.let(listener, number)
            syscalls.answer(listener, syscalls.opening(listener)[0], read_end)
            os._exit(0)
        os.close(listener)
        os.close(call("openat", syscalls.AT_FDCWD, os.fsencode(os.devnull), os.O_RDWR, 0))
        opened = call("openat", syscalls.AT_FDCWD, b"/", os.O_RDWR, 0)
        os.write(write_end, b"x")
        if os.read(opened, 1) != b"x":
            raise Failed("an intercepted opening returns something else")
    os._exit(0)


def main() -> None:
    """Serve the process that started this one."""
    Warden().serve(socket.socket(fileno=os.dup(0)))
    sys.exit(0)
