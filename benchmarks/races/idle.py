"""Sleeps again and again, so that the processor has nothing to do. Prints when it woke."""

import hashlib
import time

woke = hashlib.sha256()
for number in range(300):
    time.sleep(0.0005 + number * 7919 % 13 * 0.0003)
    woke.update(b"%d" % time.monotonic_ns())
print(0, woke.hexdigest(), time.monotonic_ns())
