"""Balances the cart-pole by its encoders alone; a thread of the driver takes in what they say.

The encoders measure no speeds: each is the difference of two readings, over the time between them. The controller
passes whenever you look, and has a race all the same. docs/determinism.md finds it; threaded_fixed.py is without it.
"""

import json
import queue
import threading

STEP_S = 0.02
TICK_S = 1 / 16384  # of the encoders' clock
BLEND = 0.3  # how much a new difference counts for a speed


class Controller:
    """The driver's thread, and a control loop that acts on its newest reading."""

    def __init__(self):
        self.messages = queue.Queue(maxsize=1)
        self.log = open("/tmp/encoders.jsonl", "w")  # noqa: SIM115, it stays open
        self.steps = 0
        self.time = self.cart = self.pole = 0.0
        self.before = (0.0, 0.0, 0.0)
        self.speed = self.rate = 0.0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        """The driver: keep each message's reading, and when it was taken."""
        while True:
            time, cart, pole = self.messages.get()
            line = json.dumps({"sensor": "encoders", "time_s": time, "cart_m": cart, "pole_rad": pole})
            self.cart, self.pole = cart, pole
            self.log.write(line + "\n")
            self.time = time

    def act(self, observation):
        """Return a share of the full force, -1.0 to 1.0."""
        force = self._force(self.time, self.cart, self.pole)
        self.steps += 1
        self.messages.put((self.steps * STEP_S, observation[0], observation[2]))
        return force

    def _force(self, time, cart, pole):
        before, self.before = self.before, (time, cart, pole)
        elapsed = max(time - before[0], TICK_S)  # without a new reading, nothing has moved
        self.speed += BLEND * ((cart - before[1]) / elapsed - self.speed)
        self.rate += BLEND * ((pole - before[2]) / elapsed - self.rate)
        return 0.1 * cart + 0.2 * self.speed + 3.0 * pole + 0.6 * self.rate
