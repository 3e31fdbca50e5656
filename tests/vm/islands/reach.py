"""Runs in a guest: tries to reach what it is given, all at once; prints how each attempt ended, and after how long."""

import errno
import json
import socket
import sys
import threading
import time

words = json.loads(sys.argv[1])
outcomes = {}


def attempt(kind, host, port):
    """Try one, and return how it ended."""
    if kind == "name":
        try:
            return socket.getaddrinfo(host, port, family=socket.AF_INET)[0][4][0]
        except OSError:
            return "unknown"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as sock:
        sock.settimeout(words["patience_s"])
        try:
            sock.connect((host, port))
            sock.sendall(b"hello")
            return sock.recv(2048).decode() or "closed"
        except TimeoutError:
            return "timeout"
        except OSError as error:
            return errno.errorcode[error.errno]


def timed(kind, host, port):
    """Try one, and note it."""
    began = time.monotonic()
    outcome = attempt(kind, host, port)
    outcomes[f"{kind} {host}:{port}"] = [outcome, time.monotonic() - began]


threads = [threading.Thread(target=timed, args=tuple(each)) for each in words["attempts"]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(outcomes))
