"""Files of a guest: exact bytes, whole folders, and no link that leads the other side anywhere."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosting import ON_ANY_ENGINE
from microsim_vm.errors import AgentError, TransferError
from microsim_vm.filesystem import Filesystem
from microsim_vm.machine import Machine
from microsim_vm.world import WarmWorld

pytestmark = pytest.mark.timeout(180)

MIB = 1 << 20
SECRET = b"the host's secret"
WHEN = 1_600_000_000_123_456_789


@pytest.fixture(scope="module")
def machine(cartpole: WarmWorld) -> Iterator[Machine]:
    with cartpole.fork(7) as fork:
        yield fork


@pytest.fixture
def files(machine: Machine) -> Filesystem:
    machine.exec("rm -rf /workspace/t && mkdir /workspace/t", check=True)
    return machine.filesystem


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "outside" / "secret"
    path.parent.mkdir()
    path.write_bytes(SECRET)
    return path


def test_files_round_trip(machine: Machine, files: Filesystem) -> None:
    files.write("/workspace/t/folder/data", bytes(range(256)) * 4)
    assert files.read("/workspace/t/folder/data") == bytes(range(256)) * 4
    files.write("/workspace/t/empty", b"")
    assert files.read("/workspace/t/empty") == b""
    files.write("/workspace/t/bytes", bytearray(b"\xff\xfe\x00\x1b"))
    assert files.read("/workspace/t/bytes") == b"\xff\xfe\x00\x1b"
    files.write("/workspace/t/text", "é", mode=0o755)
    files.write("/workspace/t/text", "ü", mode=0o755)
    shown = machine.exec("cat text; stat -c %a text; ls -A", cwd="/workspace/t").stdout
    assert shown == "ü755\nbytes\nempty\nfolder\ntext\n"


def test_a_large_file_takes_many_pieces(machine: Machine, files: Filesystem) -> None:
    data = os.urandom(26 * MIB + 1)
    files.write("/workspace/t/large", data)
    assert files.read("/workspace/t/large") == data
    assert files.read("/workspace/t/large", offset=12 * MIB - 3, length=9 * MIB) == data[12 * MIB - 3 : 21 * MIB - 3]
    assert machine.exec("ls -A /workspace/t").stdout == "large\n", "a partial file was left"
    with pytest.raises(AgentError, match=rf"large is too large: {26 * MIB + 1} bytes, and 1000 bytes are the most"):
        files.read("/workspace/t/large", max_bytes=1000)
    exact = data[: 8 * MIB]
    files.write("/workspace/t/large", exact)
    assert files.read("/workspace/t/large") == exact


def test_parts_of_a_file(files: Filesystem, engine: str) -> None:
    files.write("/workspace/t/digits", "0123456789")

    def part(offset: int, length: int | None) -> bytes:
        return files.read("/workspace/t/digits", offset=offset, length=length)

    assert [part(0, 3), part(4, 2), part(8, 50), part(7, None)] == [b"012", b"45", b"89", b"789"]
    assert [part(0, 0), part(10, 5), part(99, None)] == [b"", b"", b""]
    assert files.read("/proc/version").startswith(b"Linux"), "a file whose size is told as 0"
    if engine == "qemu":  # gVisor's kernel shows nobody its memory
        with pytest.raises(AgentError, match="too large"):
            files.read("/proc/kcore")


def test_folders_are_listed(machine: Machine, files: Filesystem) -> None:
    machine.exec(
        r"""mkdir dir; printf 123 >file; ln -s /nowhere link; mkfifo pipe; chown 1:2 file; chmod 4750 file
            touch -d @1000.5 file; mkdir bad; touch bad/$(printf '\377')""",
        check=True,
        cwd="/workspace/t",
    )
    entries = {entry.name: entry for entry in files.listdir("/workspace/t")}
    assert list(entries) == ["bad", "dir", "file", "link", "pipe"]
    assert [entry.kind for entry in entries.values()] == ["dir", "dir", "file", "symlink", "other"]
    assert [entry.is_dir for entry in entries.values()] == [True, True, False, False, False]
    file = entries["file"]
    assert (file.size, file.mode, file.mtime, file.uid, file.gid) == (3, 0o4750, 1000.5, 1, 2)
    found = files.stat("/workspace/t/file")
    assert (found.size, found.mode, found.mtime, found.kind) == (3, 0o4750, 1000.5, "file")
    assert files.stat("/workspace/t/link").kind == "symlink"
    assert files.stat("/dev/zero").kind == "other"
    assert [entry.name for entry in files.listdir("/workspace/t/bad")] == ["\udcff"]
    assert files.stat("/workspace/t/bad/\udcff").size == 0


@ON_ANY_ENGINE
def test_existence_is_told(machine: Machine, files: Filesystem) -> None:
    machine.exec("touch file; ln -s /nowhere dangling", check=True, cwd="/workspace/t")
    assert [files.exists(f"/workspace/t/{name}") for name in ("", "file", "dangling")] == [True] * 3
    assert [files.exists(f"/workspace/t/{name}") for name in ("missing", "missing/x", "file/x")] == [False] * 3
    with pytest.raises(AgentError, match="No such file"):
        files.stat("/workspace/t/missing")


@ON_ANY_ENGINE
def test_walking_never_follows_links(machine: Machine, files: Filesystem) -> None:
    machine.exec("mkdir -p a/b c; touch a/1 a/b/2 3; ln -s .. a/up; ln -s / c/root", check=True, cwd="/workspace/t")
    walked = list(files.walk("/workspace/t"))
    assert walked == [
        ("/workspace/t", ["a", "c"], ["3"]),
        ("/workspace/t/a", ["b"], ["1", "up"]),
        ("/workspace/t/a/b", [], ["2"]),
        ("/workspace/t/c", [], ["root"]),
    ]
    for _, folders, _ in (pruned := files.walk("/workspace/t")):
        folders.clear()
        assert next(pruned, None) is None
    with pytest.raises(AgentError, match="more than 5 entries"):
        list(files.walk("/workspace/t", max_entries=5))


@ON_ANY_ENGINE
def test_things_are_removed_and_links_only_themselves(machine: Machine, files: Filesystem) -> None:
    machine.exec("mkdir -p a/b keep; touch a/1 keep/it; ln -s ../keep a/link; ln -s keep link", cwd="/workspace/t")
    files.remove("/workspace/t/link")
    files.remove("/workspace/t/a/1")
    with pytest.raises(AgentError, match="not empty"):
        files.remove("/workspace/t/a")
    files.remove("/workspace/t/a", recursive=True)
    assert machine.exec("find . | sort", cwd="/workspace/t").stdout == ".\n./keep\n./keep/it\n"
    with pytest.raises(AgentError, match="No such file"):
        files.remove("/workspace/t/a", recursive=True)
    with pytest.raises(AgentError):
        files.remove("/", recursive=True)
    assert machine.exec("true").exit_code == 0
    files.mkdir("/workspace/t/new/deep")
    files.mkdir("/workspace/t/new/deep")
    files.remove("/workspace/t/new/deep")
    assert files.listdir("/workspace/t/new") == []


def test_files_that_are_none_are_refused_at_once(machine: Machine, files: Filesystem) -> None:
    machine.exec("mkfifo fifo; ln -s /dev/zero endless; ln -s fifo link", check=True, cwd="/workspace/t")
    started = time.monotonic()
    for path, reason in [
        ("/workspace/t/fifo", "a FIFO"),
        ("/workspace/t/link", "a FIFO"),
        ("/dev/zero", "a character device"),
        ("/workspace/t/endless", "a character device"),
        ("/dev/tty", "a character device"),
        ("/workspace", "a folder"),
    ]:
        with pytest.raises(AgentError, match=f"{path} is {reason}, not a regular file"):
            files.read(path)
    for path in ("/workspace/t/missing", "/workspace/t/missing/deeper", "bad\0name"):
        with pytest.raises(AgentError):
            files.read(path)
        with pytest.raises(AgentError):
            files.listdir(path)
    with pytest.raises(AgentError, match="Not a directory"):
        files.listdir("/etc/passwd")
    with pytest.raises(AgentError):
        files.write("/workspace", b"")
    with pytest.raises(AgentError):
        files.write("/proc/nothing", b"")
    machine.exec("truncate -s 200M big", check=True, cwd="/workspace/t")
    with pytest.raises(AgentError, match="too large"):
        files.read("/workspace/t/big")
    files.write("/workspace/t/fifo", b"now a file")
    assert files.read("/workspace/t/fifo") == b"now a file"
    assert time.monotonic() - started < 60.0
    assert [entry.name for entry in files.listdir("/") if entry.name.startswith(".")] == []


def test_a_folder_goes_there_and_back(machine: Machine, files: Filesystem, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "tool.sh").write_bytes(b"#!/bin/sh\n")
    (source / "tool.sh").chmod(0o755)
    (source / "sub" / "data").write_bytes(os.urandom(9 * MIB))
    (source / "sub" / os.fsdecode(b"\xff")).write_bytes(b"odd name")
    (source / "inside").symlink_to("sub/data")
    (source / "sub" / "back").symlink_to(f"../../{source.name}/tool.sh")
    (source / "absolute").symlink_to(source / "sub")
    (source / "dangling").symlink_to("not-yet")
    for path in (source / "tool.sh", source / "sub"):
        os.utime(path, ns=(WHEN, WHEN))
    sent = files.upload(source, "/workspace/t/copy")
    assert (sent.files, sent.size, sent.skipped) == (3, 10 + 9 * MIB + 8, ())
    shown = machine.exec("readlink inside sub/back absolute dangling; ./absolute/../tool.sh; stat -c %a tool.sh",
                         cwd="/workspace/t/copy", check=True).stdout  # fmt: skip
    assert shown == "sub/data\n../tool.sh\nsub\nnot-yet\n755\n"
    for name in ("tool.sh", "sub"):
        assert files.stat(f"/workspace/t/copy/{name}").mtime_ns == WHEN
    back = tmp_path / "back"
    got = files.download("/workspace/t/copy", back)
    assert (got.files, got.size) == (3, sent.size)
    assert sorted(got.skipped) == sorted(
        (name, "a symbolic link") for name in ("inside", "sub/back", "absolute", "dangling")
    )
    for path in ("tool.sh", "sub/data", os.fsdecode(b"sub/\xff")):
        assert (back / path).read_bytes() == (source / path).read_bytes()
    assert (back / "sub" / "empty").is_dir()
    assert (back / "tool.sh").stat().st_mode & 0o7777 == 0o755
    assert [(back / name).stat().st_mtime_ns for name in ("tool.sh", "sub")] == [WHEN, WHEN]
    assert not list(back.rglob(".microsim*"))
    files.download("/workspace/t/copy", back)  # again, over what is there
    files.upload(back, "/workspace/t/copy")


def test_a_large_file_there_and_back(files: Filesystem, tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.write_bytes(os.urandom(26 * MIB))
    assert files.upload(source, "/workspace/t/new/large").size == 26 * MIB
    assert files.download("/workspace/t/new/large", tmp_path / "new" / "back").files == 1
    assert (tmp_path / "new" / "back").read_bytes() == source.read_bytes()


@ON_ANY_ENGINE
def test_uploads_never_leave_their_root(files: Filesystem, tmp_path: Path, secret: Path) -> None:
    source = tmp_path / "task"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "first").write_bytes(b"x")

    def refused(make: Path, reason: str) -> None:
        with pytest.raises(TransferError, match=f"{make}.*{reason}"):
            files.upload(source, "/workspace/t/task")
        assert not files.exists("/workspace/t/task"), "something was sent"
        make.unlink()

    link = source / "deep" / "leak"
    for target in (secret, "../../outside/secret", secret.parent, "../../outside/../outside", "/etc/passwd"):
        link.symlink_to(target)
        refused(link, "is a link to .*, which is outside of")
    os.mkfifo(source / "deep" / "pipe")
    refused(source / "deep" / "pipe", "is a FIFO")
    with socket.socket(socket.AF_UNIX) as sock, contextlib.chdir(source):  # the whole path may be too long for it
        sock.bind("sock")
    refused(source / "sock", "is a socket")
    (source / "hop").symlink_to("deep/leak2")
    (source / "deep" / "leak2").symlink_to(secret)
    with pytest.raises(TransferError, match="outside of"):
        files.upload(source, "/workspace/t/task")
    link.symlink_to(secret)
    for path, reason in ((link, "a symbolic link"), (Path("/dev/zero"), "a device")):
        with pytest.raises(TransferError, match=f"{path} is {reason}"):
            files.upload(path, "/workspace/t/x")
    with pytest.raises(FileNotFoundError):
        files.upload(tmp_path / "missing", "/workspace/t/x")
    assert not files.exists("/workspace/t/x")


def test_links_and_devices_of_the_guest_stay_there(
    machine: Machine, files: Filesystem, tmp_path: Path, secret: Path
) -> None:
    machine.exec(
        f"""mkdir -p d/real; echo fine >d/real/file; ln -s /etc/shadow d/shadow; ln -s {secret.parent} d/dir
            ln -s real d/inner; mkfifo d/fifo; ln -s /dev/zero d/zero; mknod d/device c 1 5
            mkdir d/last; echo x >d/z""",
        check=True,
        cwd="/workspace/t",
    )
    started = time.monotonic()
    got = files.download("/workspace/t/d", tmp_path / "d")
    special = "a FIFO, a socket or a device"
    assert got.skipped == (
        ("device", special), ("dir", "a symbolic link"), ("fifo", special), ("inner", "a symbolic link"),
        ("shadow", "a symbolic link"), ("zero", "a symbolic link"),
    )  # fmt: skip
    assert sorted(str(path.relative_to(tmp_path / "d")) for path in (tmp_path / "d").rglob("*")) == [
        "last", "real", "real/file", "z",
    ]  # fmt: skip
    for name, reason in (("shadow", "a symbolic link"), ("zero", "a symbolic link"), ("fifo", "a FIFO"),
                         ("device", "device"), ("dir", "a symbolic link"), ("inner", "a symbolic link")):  # fmt: skip
        with pytest.raises(TransferError, match=f"/workspace/t/d/{name} is .*{reason}"):
            files.download(f"/workspace/t/d/{name}", tmp_path / "x")
    assert not (tmp_path / "x").exists()
    assert time.monotonic() - started < 60.0


@ON_ANY_ENGINE
def test_links_on_the_host_are_not_written_through(
    machine: Machine, files: Filesystem, tmp_path: Path, secret: Path
) -> None:
    machine.exec("mkdir -p d/sub; echo new >d/sub/secret; echo new >d/file", check=True, cwd="/workspace/t")
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").symlink_to(secret)
    (target / "sub").symlink_to(secret.parent)
    with pytest.raises(TransferError, match="sub is there on the host, as a link or a file"):
        files.download("/workspace/t/d", target)
    assert secret.read_bytes() == SECRET
    assert not (target / "file").is_symlink(), "the file took the link's place"
    (tmp_path / "whole").symlink_to(secret.parent)
    for path in (str(tmp_path / "whole"), f"{tmp_path / 'whole'}/"):
        with pytest.raises(TransferError, match="as a link or a file"):
            files.download("/workspace/t/d/sub", path)
    (tmp_path / "one").symlink_to(secret)
    files.download("/workspace/t/d/file", tmp_path / "one")
    assert (tmp_path / "one").read_bytes() == b"new\n"
    assert [path.name for path in secret.parent.iterdir()] == ["secret"]
    assert secret.read_bytes() == SECRET


def test_transfers_have_a_size_limit(machine: Machine, files: Filesystem, tmp_path: Path, engine: str) -> None:
    machine.exec("mkdir d; truncate -s 600 d/a d/b; truncate -s 2G sparse", check=True, cwd="/workspace/t")
    with pytest.raises(
        TransferError, match=r"d/b has 600 bytes, 600 bytes came before it, and 1000 bytes are the most"
    ):
        files.download("/workspace/t/d", tmp_path / "d", max_bytes=1000)
    with pytest.raises(TransferError, match=f"sparse has {2 << 30} bytes"):
        files.download("/workspace/t/sparse", tmp_path / "sparse")
    assert not (tmp_path / "sparse").exists()
    if engine == "qemu":
        with pytest.raises(TransferError, match="/proc/kcore has"):
            files.download("/proc/kcore", tmp_path / "core")
    source = tmp_path / "source"
    source.mkdir()
    for name in "ab":
        (source / name).write_bytes(bytes(600))
    with pytest.raises(TransferError, match=r"source/. has 600 bytes, 600 bytes came before it"):
        files.upload(source, "/workspace/t/up", max_bytes=1000)
    with pytest.raises(TransferError, match="and 10 bytes are the most"):
        files.upload(source / "a", "/workspace/t/up", max_bytes=10)
    assert not files.exists("/workspace/t/up")


@ON_ANY_ENGINE
def test_set_id_bits_of_a_guest_end_there(machine: Machine, files: Filesystem, tmp_path: Path) -> None:
    machine.exec("cp /bin/true t; chmod 6755 t", check=True, cwd="/workspace/t")
    files.download("/workspace/t/t", tmp_path / "t")
    assert (tmp_path / "t").stat().st_mode & 0o7777 == 0o755
