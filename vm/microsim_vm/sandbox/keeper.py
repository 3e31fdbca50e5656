"""The keeper: one small process per detached sandbox, which the microVM lives and dies with.

There is no daemon above it. Its maker hands it a sandbox's record and waits for one line; the keeper stays only
once the maker has said that it knows of the sandbox, and ends with the sandbox.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import msgspec

from microsim_vm import errors, owner, tools
from microsim_vm.cache import Cache
from microsim_vm.errors import MicrosimError, SandboxError
from microsim_vm.sandbox.store import Record, Store
from microsim_vm.tools import Progress

KEEP = b"keep\n"
LOG = "keeper.log"
LOOK_S = 5.0


def start(store: Store, record: Record, progress: Progress) -> Record:
    """Start a sandbox in a keeper of its own and return its record.

    Raises:
        MicrosimError: Whatever starting it raises, in the keeper.
    """
    log = open(store.folder(record.id) / LOG, "wb")  # noqa: SIM115  # it is the keeper's
    # A child of nobody: whoever made the sandbox need not wait for its end.
    process = subprocess.Popen(
        [tools.need("setsid"), "--fork", sys.executable, "-m", "microsim_vm.sandbox.keeper", str(store.cache.root),
         record.id],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd="/",
    )  # fmt: skip
    log.close()
    assert process.stdin is not None
    assert process.stdout is not None
    with process, process.stdin as order, process.stdout as answers:
        try:
            for line in answers:
                said = json.loads(line)
                if "progress" in said:
                    progress(said["progress"])
                elif "error" in said:
                    raise errors.rebuilt(said["error"], said["state"])
                else:
                    order.write(KEEP)
                    order.flush()
                    return msgspec.convert(said["up"], type=Record)
        except BaseException:
            order.close()
            answers.read()  # until it has ended, and its microVM with it
            raise
    raise SandboxError(
        f"the keeper of sandbox {record.id} ended before it was up", cause="it was killed, or could not begin",
        details=_tail(store, record.id),
    )  # fmt: skip


def _tail(store: Store, sandbox: str) -> str:
    """Return the end of what a keeper said."""
    with contextlib.suppress(OSError):
        return (store.folder(sandbox) / LOG).read_text(errors="replace")[-4000:]
    return ""


def main(root: str, sandbox: str) -> None:
    """Start the sandbox, hand it over, and stay until it ends."""
    from microsim_vm.sandbox import door, launch

    def say(**words: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(words), flush=True)

    store = Store(Cache(Path(root)))
    kept: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def listen() -> None:
        keep = os.read(0, len(KEEP)) == KEEP  # a buffered reader would have a lock, which the interpreter's end wants
        known = store.read(sandbox)
        if not keep and (known is None or known.owner != owner.Process.current()):
            os._exit(1)  # its maker is gone before it is up: the kernel ends the microVM with us
        kept.put(keep)

    threading.Thread(target=listen, daemon=True).start()
    record = store.read(sandbox)
    if record is None or record.status not in ("starting", "waking"):
        return  # its maker is gone, and somebody has tidied up
    try:
        live = launch.start(store, record, lambda line: say(progress=line))
    except MicrosimError as error:
        state = {key: value for key, value in vars(error).items() if isinstance(value, str)}
        say(error=type(error).__name__, state=state)
        return
    except Exception as error:
        unforeseen = SandboxError(f"sandbox {sandbox} could not be started: {error}", details=traceback.format_exc())
        say(error="SandboxError", state=vars(unforeseen))
        return
    say(up=msgspec.to_builtins(live.record))
    if not kept.get() and record.status == "starting":  # its maker died: nobody knows of the sandbox
        live.kill()
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nowhere, stream)
    while not live.ended.wait(LOOK_S):
        if store.read(sandbox) is None:  # somebody removed it by its record: nobody finds it any more
            live.kill()
    door.finish(5.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
