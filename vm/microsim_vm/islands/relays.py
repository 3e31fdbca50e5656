"""Relays: the only ways in and out of an island, and only those that its template names.

A relay accepts a connection on one side and makes another one on the other, in this process: no packet ever crosses,
nothing is left on the host when the process dies, and it works without any privilege there.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import os
import resource
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TypeVar

from microsim_vm.errors import NetworkError
from microsim_vm.islands import namespaces
from microsim_vm.islands.policy import Destination
from microsim_vm.islands.refusals import Refusals

LOOPBACK = "127.0.0.1"
BACKLOG = 64
AT_ONCE = 64  # connections of an island, through all of its doors; more wait in the backlog
NAMES_AT_ONCE = 4
CONNECT_S = 10.0  # to have the other side of a connection: name, socket and all
CLOSE_S = 5.0
PAUSE_S = 0.02
IDLE_S = 30  # before a silent side is asked whether it is still there
CHUNK = 1 << 16
RESET, GOODBYE = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)  # SO_LINGER: how a socket is closed
TCP_CLOSE = 7  # the state of a connection that is no more

# Returns the other side of a connection that was accepted; None where there shall be none.
Dial = Callable[[socket.socket], Awaitable[socket.socket | None]]
T = TypeVar("T")


class Doors:
    """An island's doors, until it is closed.

    Args:
        namespace: The island's.
    """

    def __init__(self, namespace: int) -> None:
        self._namespace = namespace
        self._service = _service()
        self._doors: dict[socket.socket, Dial] = {}
        self._live: set[asyncio.Task[None]] = set()
        self._sockets: set[socket.socket] = set()
        self._room = min(AT_ONCE, max(1, _descriptors() // 16))
        # Each has threads of its own: what is slow for one island, or for names, holds up nothing else.
        self._names = asyncio.Semaphore(NAMES_AT_ONCE)
        self._makings = asyncio.Semaphore(1)

    def publish(self, target: tuple[str, int]) -> int:
        """Let the host's loopback reach a port on the island; return the port of the host's."""
        listener = socket.create_server((LOOPBACK, 0), backlog=BACKLOG)
        port: int = listener.getsockname()[1]

        async def dial(_: socket.socket) -> socket.socket | None:
            try:
                async with asyncio.timeout(CONNECT_S):
                    return await _connected(await self._made(), target)
            except (OSError, NetworkError):  # nobody is there; a time-out is one of these too
                return None

        self._serve(listener, dial)
        return port

    def let_out(self, allowed: Sequence[Destination], refusals: Refusals) -> None:
        """Let the island reach what is allowed.

        Whatever address a machine of it connects to is its gateway's: the port has to have a door, and the address to
        be one behind it.
        """

        async def dial(accepted: socket.socket) -> socket.socket | None:
            text, port = accepted.getsockname()[:2]
            address = ipaddress.IPv4Address(text)
            meant = [each for each in allowed if each.port == port and address in each.network]
            if not meant or address in refusals.subnet:
                return None  # the refusals have seen it
            name = next((each.host for each in meant if each.host), "")
            exact = not name and any(each.network.prefixlen == address.max_prefixlen for each in meant)
            try:
                async with asyncio.timeout(CONNECT_S):
                    found = await self._found(name, port) if name else [text]
                    beyond = [each for each in found if exact or not _is_ours(each)]
                    if beyond:
                        return await _reached(beyond, port)
                    why = "it is this host"
            except OSError as error:
                why = _reason(error)
            refusals.add("tcp", name or text, port, why)
            return None

        for port in sorted({each.port for each in allowed}):
            listener = namespaces.socket_in(self._namespace, socket.AF_INET, socket.SOCK_STREAM)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("", port))
                listener.listen(BACKLOG)
            except BaseException:
                listener.close()
                raise
            self._serve(listener, dial)

    def close(self) -> None:
        """Shut them, and end the connections through them; may be called again."""
        if self._service.owner != os.getpid():  # forked: what serves them is in our parent, and these are only copies
            for each in self._sockets:
                each.close()
        elif self._sockets:
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._ended(), self._service.loop).result(CLOSE_S)

    def __enter__(self) -> Doors:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self, listener: socket.socket, dial: Dial) -> None:
        listener.setblocking(False)
        self._sockets.add(listener)

        def start() -> None:
            self._doors[listener] = dial
            self._attend(listener)

        self._service.loop.call_soon_threadsafe(start)

    # What follows runs in the loop's thread.

    async def _ended(self) -> None:
        loop = asyncio.get_running_loop()
        for listener in self._doors:
            loop.remove_reader(listener)
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # a process that was forked from ours may have a copy
            listener.close()
            self._sockets.discard(listener)
        self._doors.clear()
        for connection in self._live:
            connection.cancel()
        if self._live:
            await asyncio.wait(self._live)

    def _attend(self, listener: socket.socket) -> None:
        if listener in self._doors:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        service = self._service
        try:
            full = len(self._live) >= self._room or service.live >= service.room
            accepted = None if full else listener.accept()[0]
        except (BlockingIOError, ConnectionAbortedError):  # it was given up in the queue
            return
        except OSError:  # our descriptors are all in use
            accepted = None
        if accepted is None:
            service.loop.remove_reader(listener)
            service.loop.call_later(PAUSE_S, self._attend, listener)
            return
        connection = service.loop.create_task(self._carry(accepted, self._doors[listener]))
        service.live += 1
        self._live.add(connection)
        connection.add_done_callback(functools.partial(self._gone, accepted))

    def _gone(self, accepted: socket.socket, connection: asyncio.Task[None]) -> None:
        accepted.close()  # it may have been cancelled before it began
        self._live.discard(connection)
        self._service.live -= 1

    async def _carry(self, accepted: socket.socket, dial: Dial) -> None:
        """Make the other side of a connection, and pass everything on until both have ended, or either is lost."""
        with self._held(accepted):
            other = await dial(accepted)
            if other is None:
                return
            with self._held(other):
                try:
                    await _passed_on(accepted, other)
                except* OSError:
                    pass
                else:
                    for side in (accepted, other):
                        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, GOODBYE)

    @contextlib.contextmanager
    def _held(self, side: socket.socket) -> Iterator[None]:
        """Close a side at the end of the block: it is reset, unless told otherwise, for what has come is not all."""
        self._sockets.add(side)
        try:
            side.setblocking(False)
            side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            side.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, IDLE_S)
            yield
        finally:
            side.close()
            self._sockets.discard(side)

    async def _found(self, name: str, port: int) -> list[str]:
        """Return a name's addresses, in the resolver's order."""
        kind = socket.SOCK_STREAM
        found = await _in_thread(self._names, lambda: socket.getaddrinfo(name, port, socket.AF_INET, kind))
        return list(dict.fromkeys(str(target[0]) for *_, target in found))

    async def _made(self) -> socket.socket:
        """Return a socket on the island."""
        namespace = os.dup(self._namespace)  # which may be closed before it is its turn

        def make() -> socket.socket:
            try:
                return namespaces.socket_in(namespace, socket.AF_INET, socket.SOCK_STREAM)
            finally:
                os.close(namespace)

        making = asyncio.ensure_future(_in_thread(self._makings, make))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_unwanted)
            raise


def _unwanted(made: asyncio.Future[socket.socket]) -> None:
    if made.exception() is None:
        made.result().close()


async def _in_thread(turn: asyncio.Semaphore, call: Callable[[], T]) -> T:
    """Call what may take long, in a thread that nothing waits for: not even the end of this process."""
    loop = asyncio.get_running_loop()
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)
        loop.call_soon_threadsafe(turn.release)

    await turn.acquire()
    threading.Thread(target=run, name="microsim-relays-ask", daemon=True).start()
    return await asyncio.wrap_future(answer)


async def _reached(addresses: Sequence[str], port: int) -> socket.socket:
    """Connect to the first of some addresses that answers.

    Raises:
        OSError: None does; the last one's.
    """
    for number, address in enumerate(addresses, 1):
        try:
            async with asyncio.timeout(CONNECT_S / len(addresses)):
                return await _connected(socket.socket(), (address, port))
        except OSError:
            if number == len(addresses):
                raise
    raise ValueError("no addresses")


async def _connected(sock: socket.socket, target: tuple[str, int]) -> socket.socket:
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, target)
    except BaseException:
        sock.close()
        raise
    return sock


def _is_ours(address: str) -> bool:
    """Tell whether an address is one of this host's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, socket.gaierror):
        unknown = (socket.EAI_NONAME, socket.EAI_NODATA)
        return "name not known" if error.errno in unknown else f"name not known ({error.strerror})"
    return os.strerror(error.errno or 0).lower()


async def _passed_on(one: socket.socket, two: socket.socket) -> None:
    """Pass on what each side sends, and its end, until both have ended.

    Raises:
        ExceptionGroup: A side is lost.
    """
    told: set[socket.socket] = set()  # that the other has ended
    async with asyncio.TaskGroup() as group:
        pumps = {group.create_task(_pump(*way, told)): way[0] for way in ((one, two), (two, one))}
        waiting = set(pumps)
        while waiting:
            _, waiting = await asyncio.wait(waiting, timeout=IDLE_S, return_when=asyncio.FIRST_COMPLETED)
            # Nobody reads any more from a side that has ended: whether it still takes anything has to be asked.
            if waiting and any(_is_lost(pumps[each]) for each in pumps.keys() - waiting):
                raise ConnectionResetError


async def _pump(source: socket.socket, target: socket.socket, told: set[socket.socket]) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, CHUNK):
        await loop.sock_sendall(target, data)
    if source not in told and _is_lost(source):  # no end: the error was told to the other pump, which wrote
        raise ConnectionResetError
    target.shutdown(socket.SHUT_WR)
    told.add(target)


def _is_lost(side: socket.socket) -> bool:
    """Tell whether a connection is no more that one of its ends has not said to have ended."""
    return side.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE


def _descriptors() -> int:
    """Return how many descriptors this process may have, at least."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit


class _Service:
    """The loop that serves all islands of this process, in a thread of its own.

    Attributes:
        owner: The process.
        loop: The loop.
        live: How many connections there are.
        room: How many there may be: each takes two descriptors, and half of all are left to others.
    """

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.live = 0
        self.room = max(1, _descriptors() // 4)
        threading.Thread(target=self.loop.run_forever, name="microsim-relays", daemon=True).start()


_lock = threading.Lock()
_current: _Service | None = None


def _service() -> _Service:
    global _current
    with _lock:
        if _current is None or _current.owner != os.getpid():
            _current = _Service()
        return _current
