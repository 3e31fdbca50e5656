"""The controller's own process: load the user's file, then answer observations with actions."""

import contextlib
import io
import linecache
import os
import socket
import sys
import traceback
import types
from typing import Any, Callable, List, NoReturn, Optional

from microsim_guest import codec, randomness, wire

CANNOT_EXECUTE = 126  # as a shell's exit status


def serve(
    source: bytes, filename: str, seed: Optional[int], inventory: randomness.Inventory, link: wire.SocketLink
) -> None:
    """Load the controller and answer until the world host closes the link.

    Args:
        source: The user's file.
        filename: Its name.
        seed: For the process's generators; None leaves them as they are.
        inventory: These generators.
        link: To the world host.
    """
    # Unbuffered: what a controller printed before it was killed must not be lost.
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(fd, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)
        for fd in (1, 2)
    )
    if seed is not None:
        # CPython reseeds `random` in a forked child from the kernel; here it must follow the seed.
        inventory.reseed(seed)
    randomness.refresh_entropy_users()
    try:
        act = load(source, filename)
    except BaseException as error:
        _report(link, error, filename)
        return
    with contextlib.suppress(OSError):  # the episode may have ended meanwhile, which the loop sees
        link.send({"ok": {}})
    while True:
        try:
            frame = link.receive()
        except (wire.LinkClosed, OSError):
            return
        try:
            action = act(codec.unpack(frame.header["observation"], frame.blobs))
            blobs: List[bytes] = []
            # An action may raise when it is looked at, and be too large to be sent: that is the controller's failure.
            answer = wire.encode({"asked": frame.header["asked"], "action": codec.pack(action, blobs)}, blobs)
        except BaseException as error:
            _report(link, error, filename)
            return
        with contextlib.suppress(OSError):
            link.send_bytes(answer)


def execute(path: str, words: List[str], link: socket.socket) -> NoReturn:
    """Become another program, which speaks the line protocol over its standard input and output.

    Args:
        path: The program.
        words: Its arguments, without its own name.
        link: To the world host.
    """
    for descriptor in (0, 1):
        os.dup2(link.fileno(), descriptor)
    link.close()
    try:
        os.execv(path, [path, *words])
    except OSError as error:
        os.write(2, "{}: {}\n".format(os.path.basename(path), error.strerror).encode())
        os._exit(CANNOT_EXECUTE)


def load(source: bytes, filename: str) -> Callable[[Any], Any]:
    """Execute the controller's file and return its ``act``.

    Raises:
        Exception: Whatever the file raises.
        TypeError: The file has neither a function ``act`` nor a class ``Controller`` with ``act``.
    """
    text = source.decode("utf-8-sig", "replace")
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    module = types.ModuleType("controller")
    module.__file__ = filename
    sys.modules["controller"] = module
    exec(compile(source, filename, "exec"), module.__dict__)
    act = getattr(module, "act", None)
    if callable(act):
        return act  # type: ignore[no-any-return]
    kind = getattr(module, "Controller", None)
    if isinstance(kind, type) and callable(getattr(kind, "act", None)):
        return kind().act  # type: ignore[no-any-return]
    raise TypeError("{}: no function `act(observation)` and no class `Controller` with one".format(filename))


def _report(link: wire.SocketLink, error: BaseException, filename: str) -> None:
    """Send the error with a traceback that starts at the controller's own file."""
    frames = traceback.TracebackException.from_exception(error)
    while frames.stack and frames.stack[0].filename != filename:
        frames.stack.pop(0)
    text = "".join(frames.format())
    try:
        link.send({"error": wire.error_header(error, text)})
    except OSError:
        os.write(2, text.encode("utf-8", "backslashreplace"))
