"""The guest's files, as the host sees them. What the guest answers is checked: it may be hostile."""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from microsim_vm import answers, transfers
from microsim_vm.errors import AgentError, MicrosimError
from microsim_vm.transfers import Transfer

if TYPE_CHECKING:
    from microsim_vm.agent import Caller

Kind = Literal["file", "dir", "symlink", "other"]
MAX_READ = 128 << 20
MAX_ENTRIES = 100_000
MAX_NAME = 255
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Stat:
    """What is at a path.

    Attributes:
        size: Bytes.
        mode: Permission bits, such as 0o644.
        mtime_ns: Time of the last modification, nanoseconds since 1970.
        kind: "file", "dir", "symlink" or "other" (a FIFO, a socket, a device).
        uid: Owner.
        gid: Group.
    """

    size: int
    mode: int
    mtime_ns: int
    kind: Kind
    uid: int
    gid: int

    @property
    def mtime(self) -> float:
        """Time of the last modification, seconds since 1970."""
        return self.mtime_ns / 1e9


@dataclass(frozen=True)
class Entry(Stat):
    """One entry of a folder.

    Attributes:
        name: Its name; bytes that are no UTF-8 are surrogates, as in :func:`os.listdir`.
        size: Bytes.
        mode: Permission bits.
        mtime_ns: Time of the last modification, nanoseconds since 1970.
        kind: "file", "dir", "symlink" or "other".
        uid: Owner.
        gid: Group.
    """

    name: str

    @property
    def is_dir(self) -> bool:
        """It is a folder; a link to one is not."""
        return self.kind == "dir"


class Filesystem:
    """The guest's files.

    Paths are the guest's. Only the guest follows its links; nothing here opens a guest's path on the host.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def read(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int = MAX_READ) -> bytes:
        """Return a regular file's bytes, or a part of them.

        Args:
            path: The file.
            offset: Where to begin, in bytes.
            length: How many bytes at most; None for the rest.
            max_bytes: Without a length, refuse a file that is larger.

        Raises:
            AgentError: Missing, too large, or not a regular file.
        """
        data = bytearray()
        cap = max_bytes if length is None else None
        for piece in self.pieces(path, offset=offset, length=length, max_bytes=cap):
            data += piece
        return bytes(data)

    def pieces(
        self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int | None = MAX_READ,
        follow: bool = True,
    ) -> Iterator[bytes]:  # fmt: skip
        """Yield a regular file's bytes, or a part of them, in pieces of 8 MiB at most.

        It must stay the same file, but may grow.

        Args:
            path: The file.
            offset: Where to begin, in bytes.
            length: How many bytes at most; None for the rest.
            max_bytes: Refuse a file that is larger, or turns out to be; None for no limit.
            follow: Follow a link at the path's end.

        Raises:
            AgentError: Missing, too large, not a regular file, or replaced while it was read.
        """
        left = length
        total = 0
        identity = None
        while left is None or left > 0:
            asked = transfers.PIECE if left is None else min(left, transfers.PIECE)
            answer, blobs = self._call(
                "files.read", path=path, offset=offset, length=asked, max_bytes=max_bytes, follow=follow
            )
            piece = blobs[0] if blobs else b""
            if len(piece) > asked or (identity is not None and answer.get("file") != identity):
                raise AgentError(f"{path} was replaced by another file while it was read")
            identity = answer.get("file")
            total += len(piece)
            if max_bytes is not None and total > max_bytes:  # a file of /proc, or one that grows
                raise AgentError(f"{path} is too large: more than {total} bytes, and {max_bytes} bytes are the most")
            yield piece
            offset += len(piece)
            if left is not None:
                left -= len(piece)
            if answer.get("end") is not False or not piece:
                return

    def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        """Write a whole file, creating its folders; it is visible only when complete.

        Args:
            path: The file. What is there is replaced, a link too, but no folder.
            data: Its contents; text is written as UTF-8.
            mode: Its permission bits.

        Raises:
            AgentError: It cannot be written.
        """
        raw = memoryview(data.encode() if isinstance(data, str) else data).cast("B")
        self._write(path, lambda start: bytes(raw[start : start + transfers.PIECE]), mode, None)

    def listdir(self, path: str) -> list[Entry]:
        """Return a folder's entries, sorted by name.

        Raises:
            AgentError: Missing, not a folder, or more than 50,000 entries.
        """
        return self._list(path, follow=True)

    def stat(self, path: str) -> Stat:
        """Describe what is at a path; a link at its end is not followed.

        Raises:
            AgentError: There is nothing.
        """
        result, _ = self._call("files.stat", path=path, missing_ok=False)
        return Stat(**_checked_row(result.get("stat")))

    def exists(self, path: str) -> bool:
        """Tell whether there is anything at a path; a link is something, wherever it leads.

        Raises:
            AgentError: It cannot be found out.
        """
        return self._call("files.stat", path=path, missing_ok=True)[0].get("stat") is not None

    def walk(self, path: str, *, max_entries: int = MAX_ENTRIES) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield ``(folder, names of folders, names of all else)`` for a folder and each below it, top down.

        Links are never followed; remove names from the second list to leave folders out.

        Args:
            path: Where to begin.
            max_entries: Give up after so many.

        Raises:
            AgentError: A folder cannot be listed, or there are more entries.
        """
        waiting = [path]
        left = max_entries
        while waiting:
            folder = waiting.pop()
            entries = self._list(folder, follow=folder == path)
            left -= len(entries)
            if left < 0:
                raise AgentError(f"{path} has more than {max_entries} entries", hint="walk a smaller folder")
            names = [entry.name for entry in entries if entry.is_dir]
            yield folder, names, [entry.name for entry in entries if not entry.is_dir]
            waiting += [posixpath.join(folder, name) for name in reversed(names)]

    def mkdir(self, path: str) -> None:
        """Create a folder, and those above it; one that is there is left as it is.

        Raises:
            AgentError: It cannot be created.
        """
        self._call("files.mkdir", path=path, mode=None, mtime_ns=None)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link (not what it leads to) or an empty folder.

        Args:
            path: What to remove.
            recursive: A folder with all that is in it.

        Raises:
            AgentError: There is nothing, or it cannot be removed.
        """
        self._call("files.remove", path=path, recursive=recursive)

    def upload(self, source: str | os.PathLike[str], target: str, *, max_bytes: int = transfers.MAX_BYTES) -> Transfer:
        """Copy a file or a whole folder of the host into the guest; modes and times of modification are kept.

        Everything is looked at before anything is sent. Links inside a folder are links in the guest.

        Args:
            source: A regular file, or a folder.
            target: Its path in the guest. Of a folder that is there, what the source has is replaced.
            max_bytes: Refuse more.

        Raises:
            TransferError: Too large; or a link that leads out of the folder, a FIFO, a socket or a device.
            OSError: The source cannot be read.
            AgentError: The guest cannot write it.
        """
        return transfers.upload(self, os.fspath(source), target, max_bytes)

    def download(
        self, source: str, target: str | os.PathLike[str], *, max_bytes: int = transfers.MAX_BYTES
    ) -> Transfer:
        """Copy a file or a whole folder of the guest to the host; modes and times of modification are kept.

        No link of the guest is followed or recreated, and nothing is written through a link on the host. Set-id
        bits are left out.

        Args:
            source: A regular file, or a folder, of the guest.
            target: Its path on the host. Of a folder that is there, what the source has is replaced.
            max_bytes: Refuse more.

        Returns:
            What was copied. Inside a folder, links, FIFOs, sockets and devices are skipped and listed.

        Raises:
            TransferError: Too large, or neither file nor folder; or the host has something else in its place.
            OSError: The target cannot be written.
            AgentError: The guest cannot read it, or gives it a name that leads out of the target.
        """
        return transfers.download(self, source, os.fspath(target), max_bytes)

    def _call(self, op: str, *blobs: bytes, **args: Any) -> tuple[dict[str, Any], tuple[bytes, ...]]:
        return self._caller.call(op, args, blobs, timeout_s=TIMEOUT_S)

    def _list(self, path: str, *, follow: bool) -> list[Entry]:
        _, blobs = self._call("files.list", path=path, follow=follow)
        with answers.read("files.list"):
            return [Entry(name=_checked_name(row[0]), **_checked_row(row[1:])) for row in json.loads(blobs[0])]

    def _write(self, path: str, piece: Callable[[int], bytes], mode: int, mtime_ns: int | None) -> int:
        """Write a file whose pieces begin at the offsets that are asked for; return its size in bytes."""
        part = uuid.uuid4().hex
        offset = 0
        data = piece(0)
        try:
            while True:
                following = piece(offset + len(data)) if data else b""
                self._call("files.write", data, path=path, part=part, offset=offset, last=not following,
                           mode=mode, mtime_ns=mtime_ns)  # fmt: skip
                offset += len(data)
                data = following
                if not data:
                    return offset
        except BaseException:
            with contextlib.suppress(MicrosimError):  # the sandbox may have been paused, or ended
                self._call("files.discard", path=path, part=part)
            raise

    def _mkdir(self, path: str, mode: int, mtime_ns: int | None) -> None:
        self._call("files.mkdir", path=path, mode=mode, mtime_ns=mtime_ns)

    def _link(self, path: str, target: str) -> None:
        self._call("files.link", path=path, target=target, part=uuid.uuid4().hex)


def _checked_name(name: object) -> str:
    """Return one component of a path, or refuse it: joined to a folder it must stay inside.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not a file name")
    if len(os.fsencode(name)) > MAX_NAME:
        raise ValueError(f"{name[:40]!r}... is longer than a file name can be")
    return name


def _checked_row(row: object) -> dict[str, Any]:
    """Return the fields of a :class:`Stat`.

    Raises:
        AgentError: The guest's row is none.
    """
    kinds = ("file", "dir", "symlink", "other")
    if isinstance(row, Sequence) and len(row) == 6 and row[0] in kinds:
        kind, size, mode, mtime_ns, uid, gid = row
        numbers = (size, mode, mtime_ns, uid, gid)
        if all(type(number) is int and -(2**63) <= number < 2**63 for number in numbers) and size >= 0:
            return {"kind": kind, "size": size, "mode": mode & 0o7777, "mtime_ns": mtime_ns, "uid": uid, "gid": gid}
    raise AgentError(f"the guest describes a file as {row!r:.200}")
