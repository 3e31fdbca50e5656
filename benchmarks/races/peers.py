"""Two processes send each other datagrams on the loopback, as fast as they can. Prints what each one heard when."""

import hashlib
import os
import socket
import time

MESSAGES = 100
PORTS = (7001, 7002)


def peer(number: int, link: socket.socket) -> bytes:
    """Send, and take what has come after every third message; return a hash of it all."""
    heard = hashlib.sha256()
    for message in range(MESSAGES):
        link.sendto(b"%d %d %d" % (number, message, time.monotonic_ns()), ("127.0.0.1", PORTS[1 - number]))
        try:
            while message % 3 == number:
                heard.update(link.recv(100))
        except BlockingIOError:
            heard.update(b"-")
    return heard.hexdigest().encode()


links = []
for port in PORTS:
    links.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    links[-1].bind(("127.0.0.1", port))
    links[-1].setblocking(False)
take, give = os.pipe()
if os.fork() == 0:
    os.write(give, peer(1, links[1]))
    os._exit(0)
mine = peer(0, links[0])
os.wait()
print(0, hashlib.sha256(mine + os.read(take, 100)).hexdigest(), time.monotonic_ns())
