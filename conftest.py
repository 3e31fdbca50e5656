"""Settings of this repository's own tests."""

import signal

pytest_plugins = ["pytester"]

# A shell lets jobs in the background ignore Ctrl-C, and children inherit that: tests that press it need it back.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
