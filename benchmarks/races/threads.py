"""Four threads add to one number without a lock. Prints what was lost, in which order they ran, and the clocks."""

import hashlib
import os
import threading
import time

ROUNDS = 6000
total = 0
order = []


def note(number: int) -> None:
    """Note who runs; a call is where a thread can be made to wait for another one."""
    order.append(number)


def work(number: int) -> None:
    """Add, and let others come between reading and writing."""
    global total
    for _ in range(ROUNDS):
        seen = total
        note(number)
        total = seen + 1


threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
lost = 4 * ROUNDS - total
print(lost, hashlib.sha256(bytes(order)).hexdigest(), time.monotonic_ns(), time.time_ns(), os.urandom(8).hex())
