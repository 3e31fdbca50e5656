"""Answers of a hostile guest: no name, size or stream of its choosing reaches past what was asked for."""

from __future__ import annotations

import io
import json
import os
import pickle
import posixpath
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from microsim_vm.cli import copying
from microsim_vm.errors import (
    AgentError,
    AgentTimeoutError,
    CommandInterruptedError,
    SandboxStateError,
    TransferError,
)
from microsim_vm.filesystem import Filesystem
from microsim_vm.guest import MAX_OUTPUT, Guest
from microsim_vm.machine import Machine
from microsim_vm.templates.spec import ControllerLimits
from microsim_vm.terminal import Terminal
from microsim_vm.transfers import MAX_DEPTH

Answer = tuple[dict[str, Any], tuple[bytes, ...]]
FILE = ["file", 3, 0o644, 0, 0, 0]
FOLDER = ["dir", 0, 0o755, 0, 0, 0]


class HostileGuest:
    """Answers each operation with what the test made up."""

    def __init__(self, **answers: Callable[..., Answer]) -> None:
        self.answers = answers
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def call(
        self,
        op: str,
        args: dict[str, Any] | None = None,
        blobs: Sequence[bytes] = (),
        *,
        timeout_s: float,
        on_event: Callable[[str, bytes], None] | None = None,
    ) -> Answer:
        self.calls.append((op, args or {}))
        handler = self.answers[op.replace(".", "_")]
        return handler(on_event) if op == "exec" else handler(**(args or {}))


def machine_of(guest: HostileGuest) -> Machine:
    """A machine whose agent is this guest."""
    return Machine(cast(Any, None), cast(Any, guest), seed=1, limits=ControllerLimits())


def folder_with(*rows: Any) -> HostileGuest:
    """A guest whose /d lists these rows, and whose every file is "abc"."""
    return HostileGuest(
        files_stat=lambda path, missing_ok: ({"stat": FOLDER if path == "/d" else FILE}, ()),
        files_list=lambda path, follow: ({}, (json.dumps(rows if path == "/d" else []).encode(),)),
        files_read=lambda **_: ({"size": 3, "file": [1, 1], "end": True}, (b"abc",)),
    )


@pytest.mark.parametrize(
    "name",
    ["..", ".", "", "a/b", "/etc/passwd", "../x", "a\0b", "x" * 256, "é" * 128, "\ud800", None, 7, ["a"], {"a": 1}],
)
def test_names_that_are_none_write_nothing(name: Any, tmp_path: Path) -> None:
    for row in (FILE, FOLDER):
        guest = Filesystem(folder_with(["good", *FILE], [name, *row]))
        with pytest.raises(AgentError, match="malformed"):
            guest.listdir("/d")
        with pytest.raises(AgentError, match="malformed"):
            list(guest.walk("/d"))
        with pytest.raises(AgentError, match="malformed"):
            guest.download("/d", tmp_path / "d")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["d"]


@pytest.mark.parametrize(
    "row",
    [
        [], None, "file", ["file"], ["socket", 3, 0, 0, 0, 0], ["file", -1, 0, 0, 0, 0], ["file", "3", 0, 0, 0, 0],
        ["file", 3, 0, 2**63, 0, 0], ["file", 3, 1.5, 0, 0, 0], ["file", True, 0, 0, 0, 0], [["file"], 1, 0, 0, 0, 0],
    ],
)  # fmt: skip
def test_descriptions_that_are_none_are_refused(row: Any, tmp_path: Path) -> None:
    guest = Filesystem(HostileGuest(files_stat=lambda path, missing_ok: ({"stat": row}, ())))
    with pytest.raises(AgentError, match="describes a file as"):
        guest.stat("/x")
    with pytest.raises(AgentError, match="describes a file as"):
        guest.download("/x", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("listing", [b"", b"{", b"[[", b"7", b"[7]", b"[[]]", b'{"a": 1}', b"\xff", b"[" * 100_000])
def test_listings_that_are_none_are_refused(listing: bytes) -> None:
    guest = Filesystem(HostileGuest(files_list=lambda path, follow: ({}, (listing,))))
    with pytest.raises(AgentError):
        guest.listdir("/d")


def test_a_bottomless_folder_ends(tmp_path: Path) -> None:
    guest = Filesystem(
        HostileGuest(
            files_stat=lambda path, missing_ok: ({"stat": FOLDER}, ()),
            files_list=lambda path, follow: ({}, (json.dumps([["d", *FOLDER]]).encode(),)),
        )
    )
    with pytest.raises(TransferError, match=f"more than {MAX_DEPTH} folders deep"):
        guest.download("/d", tmp_path / "d")
    with pytest.raises(AgentError, match="more than 1000 entries"):
        list(guest.walk("/d", max_entries=1000))


def test_a_file_without_an_end_ends(tmp_path: Path) -> None:
    piece = bytes(1 << 20)

    def read(length: int, **_: Any) -> Answer:
        return {"size": 3, "file": [1, 1], "end": False}, (piece[:length],)

    guest = Filesystem(HostileGuest(files_read=read, files_stat=lambda path, missing_ok: ({"stat": FILE}, ())))
    with pytest.raises(AgentError, match=f"too large: more than {5 << 20} bytes, and {4 << 20} bytes are the most"):
        guest.read("/endless", max_bytes=4 << 20)
    with pytest.raises(TransferError, match="too large"):
        guest.download("/endless", tmp_path / "endless", max_bytes=4 << 20)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "second",
    [({"file": [1, 2], "end": True}, (b"x",)), ({"file": [1, 1], "end": True}, (bytes(9 << 20),)), ({}, (b"x",))],
)
def test_a_file_that_is_swapped_while_it_is_read_is_refused(second: Answer) -> None:
    answers = iter([({"file": [1, 1], "end": False}, (b"abc",)), second])
    guest = Filesystem(HostileGuest(files_read=lambda **_: next(answers)))
    with pytest.raises(AgentError, match="was replaced"):
        guest.read("/x")


def test_what_the_guest_reads_is_no_more_than_was_asked_for() -> None:
    guest = HostileGuest(files_read=lambda **_: ({"file": [1, 1], "end": False}, (b"abcd",)))
    with pytest.raises(AgentError, match="was replaced"):
        Filesystem(guest).read("/x", length=3)


def test_output_past_the_limit_is_not_kept() -> None:
    def run(on_event: Callable[[str, bytes], None]) -> Answer:
        for _ in range(20):
            on_event("stdout", bytes(1 << 20))
        on_event("screen", b"no stream of ours")
        return {"exit_code": 0, "duration_ms": 1.0, "timed_out": False, "dropped": 0, "limits_hit": []}, ()

    guest = HostileGuest(exec=run, exec_confirm=lambda token, size: ({}, ()))
    assert len(Guest(guest).exec("x").stdout_bytes) == MAX_OUTPUT


@pytest.mark.parametrize(
    "answer", [{}, {"exit_code": "x", "duration_ms": 1, "timed_out": False, "dropped": 0, "limits_hit": []}]
)
def test_an_answer_without_a_result_is_no_success(answer: dict[str, Any]) -> None:
    with pytest.raises(AgentError, match="malformed"):
        Guest(HostileGuest(exec=lambda on_event: (answer, ()))).exec("x")


MALFORMED_ADOPTIONS: list[dict[str, Any]] = [
    {}, {"probes": {}}, {"probes": [1], "findings": []}, {"probes": {"numpy": 1}, "findings": []},
    {"probes": {}, "findings": "all"}, {"probes": {}, "findings": []}, {"probes": {}, "findings": [], "drawn": 7},
]  # fmt: skip


@pytest.mark.parametrize("answer", MALFORMED_ADOPTIONS)
def test_a_fork_that_is_not_adopted_as_it_should_be_is_the_guests_error(answer: dict[str, Any]) -> None:
    machine = machine_of(HostileGuest(adopt=lambda **_: (answer, ())))
    with pytest.raises(AgentError, match="adopt: the guest's answer is malformed"):
        machine.adopt(b"", reseed=True)
    assert machine.drawn == ""


@pytest.mark.parametrize("value", [None, 7, [], [1], [1, 2, 3], {"__array__": ["<f8", [2**70], 0]}, {}])
def test_what_is_no_reset_and_no_step_is_the_guests_error(value: Any) -> None:
    answer: Answer = ({"value": value}, (b"12345678",))
    machine = machine_of(HostileGuest(world_reset=lambda **_: answer, world_step=lambda **_: answer))
    with pytest.raises(AgentError, match=r"world\.reset: the guest's answer is malformed"):
        machine.reset()
    with pytest.raises(AgentError, match=r"world\.step: the guest's answer is malformed"):
        machine.step(0)


@pytest.mark.parametrize("answer", [({}, ()), ({"names": ["a"]}, ()), ({"names": 7}, ()), ({"names": [7]}, (b"x",))])
def test_logs_that_are_none_are_the_guests_error(answer: Answer) -> None:
    machine = machine_of(HostileGuest(world_logs=lambda **_: answer))
    with pytest.raises(AgentError, match=r"world\.logs: the guest's answer is malformed"):
        machine.logs()


@pytest.mark.parametrize("answer", [{}, {"columns": 7}, {"columns": [], "steps": 1}])
def test_an_episode_that_is_none_is_the_guests_error(answer: dict[str, Any]) -> None:
    for blobs in ((), (b"", b""), (b"", b"", b"")):
        machine = machine_of(HostileGuest(world_episode=lambda **_: (answer, blobs)))  # noqa: B023
        with pytest.raises(AgentError, match=r"world\.episode: the guest's answer is malformed"):
            machine.run_episode(b"", filename="x.py")


@pytest.mark.parametrize("answer", [{}, {"exit_code": None}, {"exit_code": "x"}, {"exit_code": float("inf")}])
def test_a_terminal_that_ends_without_a_status_is_the_guests_error(answer: dict[str, Any]) -> None:
    with pytest.raises(AgentError, match=r"terminal\.run: the guest's answer is malformed"):
        Terminal(HostileGuest(terminal_run=lambda token: (answer, ())), "token").run(lambda _: None)


def test_a_sandbox_that_is_paused_or_gone_hides_no_error(tmp_path: Path) -> None:
    def refuse(**_: Any) -> Answer:
        raise SandboxStateError("it is paused")

    def full(**_: Any) -> Answer:
        raise AgentError("full")

    def hang(on_event: Callable[[str, bytes], None]) -> Answer:
        raise AgentTimeoutError("no answer")

    guest = HostileGuest(exec=hang, exec_cancel=refuse, files_write=full, files_discard=refuse,
                         terminal_run=full, terminal_close=refuse)  # fmt: skip
    with pytest.raises(CommandInterruptedError, match="no answer"):
        Guest(guest).exec("x")
    with pytest.raises(AgentError, match="full"):
        Filesystem(guest).write("/x", b"abc")
    with pytest.raises(AgentError, match="full"), Terminal(guest, "token") as terminal:
        terminal.run(lambda _: None)


def test_cp_to_stdout_has_a_limit_and_stays_with_one_file(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    def read(offset: int, length: int, max_bytes: int, follow: bool, **_: Any) -> Answer:
        assert not follow
        return {"file": [1, offset // (8 << 20) // 2], "end": False}, (bytes(length),)

    guest = Filesystem(HostileGuest(files_read=read))
    with pytest.raises(AgentError, match=f"{10 << 20} bytes are the most"):
        copying._to_stdout(guest, "/x", 10 << 20)
    with pytest.raises(AgentError, match="was replaced"):
        copying._to_stdout(guest, "/x", 1 << 30)
    sys.stdout.flush()
    assert len(capfdbinary.readouterr().out) == 24 << 20


def test_cp_from_stdin_keeps_no_more_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(io.RawIOBase):
        given = 0

        def read(self, size: int = -1) -> bytes:
            self.given += size
            return bytes(size)

    stdin = Endless()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin))
    guest = HostileGuest()
    with pytest.raises(TransferError, match=f"more than {10 << 20} bytes"):
        copying._from_stdin(Filesystem(guest), "/x", 10 << 20)
    assert stdin.given <= 24 << 20
    assert guest.calls == []


def test_a_link_that_is_lost_or_hangs_interrupts_the_command() -> None:
    def hang(on_event: Callable[[str, bytes], None]) -> Answer:
        on_event("stdout", b"\xffpartial")
        raise AgentTimeoutError("no answer", cause="why", details="console")

    guest = HostileGuest(exec=hang, exec_cancel=lambda token: ({}, ()))
    with pytest.raises(CommandInterruptedError, match="'echo a b' was interrupted: no answer") as caught:
        Guest(guest).exec(["echo", "a b"])
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.partial.stdout_bytes, copy.partial.stdout, copy.partial.stderr) == (
        b"\xffpartial",
        "\ufffdpartial",
        "",
    )
    assert (copy.cause, copy.details) == ("why", "console")
    (_, started), (op, cancelled) = guest.calls
    assert (op, cancelled["token"]) == ("exec.cancel", started["token"])


def test_an_upload_that_fails_is_given_up(tmp_path: Path) -> None:
    def write(**_: Any) -> Answer:
        raise AgentError("full")

    guest = HostileGuest(files_write=write, files_discard=lambda path, part: ({}, ()))
    with pytest.raises(AgentError, match="full"):
        Filesystem(guest).write("/x", b"abc")
    assert [(op, args["path"]) for op, args in guest.calls] == [("files.write", "/x"), ("files.discard", "/x")]
    assert guest.calls[0][1]["part"] == guest.calls[1][1]["part"]


def test_a_file_that_becomes_a_link_while_it_is_uploaded_is_not_followed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "file").write_text("mine")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("secret")

    def swap(path: str, **_: Any) -> Answer:
        if posixpath.basename(path) == "sub" and not (source / "sub").is_symlink():
            os.rename(source / "sub", source / "gone")
            (source / "sub").symlink_to(tmp_path / "outside")
        return {}, ()

    guest = HostileGuest(files_mkdir=swap)
    with pytest.raises(OSError, match="sub"):
        Filesystem(guest).upload(source, "/x")
    assert {op for op, _ in guest.calls} == {"files.mkdir"}
