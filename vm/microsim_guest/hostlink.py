"""The agent's end of the channel: one writer at a time, silence while the guest is copied, nothing for strangers."""

import os
import threading
from typing import Any, Dict, List, Sequence, Union

from microsim_guest import gvisor, kernel, mailbox, wire


class CannotQuiesce(wire.KnownError):
    """The guest cannot be copied now."""


class HostLink:
    """Frames to and from the host, over the agent's channel.

    A copy of this guest holds answers that were meant for its parent's host. Every request's id begins with its
    host's own prefix; what belongs to another prefix than the last request's is dropped.
    """

    def __init__(self, fd: int) -> None:
        self._link: Union[wire.FdLink, mailbox.MailboxLink] = wire.FdLink(fd)
        self._lock = threading.Lock()
        self._held = False
        self._prefix = ""

    def receive(self) -> wire.Frame:
        """Read one request; the first one after :meth:`quiesce` ends the silence."""
        frame = self._link.receive()
        self._prefix = _prefix(frame.header.get("id"))
        if self._held:
            self._held = False
            if kernel.is_gvisor():  # this may be a copy, whose network is a new one
                gvisor.route_multicast()
            self._lock.release()
        return frame

    def send(self, header: Dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
        """Send an answer or an event to the host that asked."""
        with self._lock:
            self._send(header, blobs)

    def move(self, request_id: Any, link: mailbox.MailboxLink) -> None:
        """Answer a request here, and all further ones over another link."""
        with self._lock:
            self._send({"id": request_id, "ok": {}}, ())
            self._link = link

    def quiesce(self, request_id: Any, flush_s: float, volumes: Sequence[str]) -> None:
        """Flush all files, answer the request, and say nothing more until the next one.

        Raises:
            CannotQuiesce: The files cannot be flushed, or not in time, or an answer is stuck on its way out.
        """
        failures: List[str] = []
        flushing = threading.Thread(target=_flush, args=(volumes, failures), daemon=True)
        flushing.start()
        flushing.join(flush_s)
        if flushing.is_alive():
            raise CannotQuiesce("its file systems did not flush within {:g} s".format(flush_s))
        if failures:
            raise CannotQuiesce("; ".join(failures))
        if not self._lock.acquire(timeout=flush_s):
            raise CannotQuiesce("an answer has been on its way to the host for {:g} s".format(flush_s))
        self._send({"id": request_id, "ok": {}}, ())
        self._held = True

    def _send(self, header: Dict[str, Any], blobs: Sequence[bytes]) -> None:
        if _prefix(header.get("id")) == self._prefix:
            self._link.send(header, blobs)


def _flush(volumes: Sequence[str], failures: List[str]) -> None:
    os.sync()
    for path in volumes:
        try:
            kernel.sync_file_system(path)
        except OSError as error:
            failures.append("{} cannot be flushed: {}".format(path, error.strerror))


def _prefix(request_id: Any) -> str:
    return str(request_id).partition("-")[0]
