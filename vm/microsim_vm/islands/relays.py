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
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Sequence

from microsim_vm.errors import NetworkError
from microsim_vm.islands import namespaces
from microsim_vm.islands.policy import Destination
from microsim_vm.islands.refusals import Refusals

LOOPBACK = "127.0.0.1"
BACKLOG = 64
AT_ONCE = 256  # connections through one door; more wait in the backlog
CONNECT_S = 10.0
PAUSE_S = 0.05
CHUNK = 1 << 16
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: refuse rather than say goodbye

# Returns the other side of a connection that was accepted; None where there shall be none.
Dial = Callable[[socket.socket], Awaitable[socket.socket | None]]


def publish(namespace: int, target: tuple[str, int], stack: contextlib.ExitStack) -> int:
    """Let the host's loopback reach a port on an island, until the stack is closed.

    Returns:
        The port of the host's.
    """
    listener = socket.create_server((LOOPBACK, 0), backlog=BACKLOG)

    async def dial(_: socket.socket) -> socket.socket | None:
        loop = asyncio.get_running_loop()
        other = await loop.run_in_executor(
            None, namespaces.socket_in, namespace, socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK
        )
        return await _connected(other, target)

    port: int = listener.getsockname()[1]
    _serve(listener, dial, stack)
    return port


def let_out(namespace: int, allowed: Sequence[Destination], refusals: Refusals, stack: contextlib.ExitStack) -> None:
    """Let an island reach what is allowed, until the stack is closed.

    Whatever address a machine of it connects to is its gateway's: the port has to have a door, and the address to be
    one behind it.
    """

    async def dial(accepted: socket.socket) -> socket.socket | None:
        address, port = accepted.getsockname()[:2]
        for each in allowed:
            if each.port == port and ipaddress.IPv4Address(address) in each.network:
                if (target := await _meant(each, address)) is not None:
                    return await _connected(socket.socket(), (target, port))
                refusals.add("tcp", f"{each.host or address}, which is this host", port)
        return None  # the refusals have seen it

    for port in sorted({each.port for each in allowed}):
        listener = namespaces.socket_in(namespace, socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))
        listener.listen(BACKLOG)
        _serve(listener, dial, stack)


async def _meant(destination: Destination, address: str) -> str | None:
    """Return what an address of the island stands for; None where that is this host, and not by its very address."""
    if destination.host:
        found = await asyncio.get_running_loop().getaddrinfo(
            destination.host, destination.port, family=socket.AF_INET, type=socket.SOCK_STREAM
        )
        addresses = [str(target[0]) for *_, target in found]
    else:
        addresses = [address]
    exact = not destination.host and destination.network.prefixlen == 32
    return next((each for each in addresses if exact or not _is_ours(each)), None)


def _is_ours(address: str) -> bool:
    """Tell whether an address is one of this host's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


async def _connected(sock: socket.socket, target: tuple[str, int]) -> socket.socket:
    sock.setblocking(False)
    try:
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(sock, target)
    except BaseException:
        sock.close()
        raise
    return sock


def _serve(listener: socket.socket, dial: Dial, stack: contextlib.ExitStack) -> None:
    """Serve a listening socket in the background until the stack is closed."""
    listener.setblocking(False)
    loop = _loop(os.getpid())
    serving = asyncio.run_coroutine_threadsafe(_accept(listener, dial), loop)

    def stop() -> None:
        serving.cancel()
        ended = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop)
        with contextlib.suppress(TimeoutError):
            ended.result(CONNECT_S)
        listener.close()

    stack.callback(stop)


async def _accept(listener: socket.socket, dial: Dial) -> None:
    loop = asyncio.get_running_loop()
    free = asyncio.Semaphore(AT_ONCE)

    async def carry(accepted: socket.socket) -> None:
        try:
            await _carry(accepted, dial)
        finally:
            accepted.close()
            free.release()

    async with asyncio.TaskGroup() as connections:
        while True:
            await free.acquire()
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError:  # it was given up in the queue, or our descriptors are all in use: the door stays open
                free.release()
                await asyncio.sleep(PAUSE_S)
                continue
            connections.create_task(carry(accepted))


async def _carry(accepted: socket.socket, dial: Dial) -> None:
    """Make the other side of a connection, and pass everything on until both have ended."""
    try:
        other = await dial(accepted)
    except (OSError, NetworkError):  # nobody is there; a time-out is one of these too
        other = None
    if other is None:
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        return
    with other:
        await asyncio.gather(_pump(accepted, other), _pump(other, accepted))


async def _pump(source: socket.socket, target: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while data := await loop.sock_recv(source, CHUNK):
            await loop.sock_sendall(target, data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@functools.cache
def _loop(pid: int) -> asyncio.AbstractEventLoop:
    """Return the loop that serves all relays of this process, in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="microsim-relays", daemon=True).start()
    return loop
