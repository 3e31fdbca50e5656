"""QEMU's monitor, with a QEMU at the other end that answers when it likes."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from microsim_vm.engines.qmp import Qmp
from microsim_vm.errors import EngineError

pytestmark = pytest.mark.timeout(30)


class Monitor:
    """The other end; the test plays QEMU."""

    def __init__(self) -> None:
        ours, self.sock = socket.socketpair()
        self.qmp = Qmp(ours)

    def request(self) -> dict[str, Any]:
        request: dict[str, Any] = json.loads(self.sock.recv(65536))
        return request

    def say(self, **message: Any) -> None:
        self.sock.sendall(json.dumps(message).encode() + b"\r\n")


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    made = Monitor()
    yield made
    made.qmp.close()
    made.sock.close()


def test_a_late_answer_is_not_the_next_commands(monitor: Monitor) -> None:
    with pytest.raises(EngineError, match="did not answer"):
        monitor.qmp.command("stop", timeout_s=0.05)
    first = monitor.request()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(monitor.qmp.command, "query-status", timeout_s=10.0)
        second = monitor.request()
        assert (first["execute"], second["execute"]) == ("stop", "query-status")
        monitor.say(**{"return": {"late": True}, "id": first["id"]})
        monitor.say(error={"desc": "late too"}, id=first["id"])
        monitor.say(event="STOP")
        monitor.say(**{"return": {"status": "paused"}, "id": second["id"]})
        assert answer.result() == {"status": "paused"}
    assert monitor.qmp.wait_event("STOP", timeout_s=0.05)["event"] == "STOP"


def test_what_qemu_cannot_read_is_an_error(monitor: Monitor) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(monitor.qmp.command, "x", timeout_s=10.0)
        monitor.request()
        monitor.say(error={"desc": "JSON parse error"})  # such an error has no id
        with pytest.raises(EngineError, match="JSON parse error"):
            answer.result()


def test_a_qemu_that_takes_nothing_is_given_up(monitor: Monitor) -> None:
    with pytest.raises(EngineError, match="did not take human-monitor-command"):
        monitor.qmp.command("human-monitor-command", timeout_s=0.05, text="x" * (4 << 20))
