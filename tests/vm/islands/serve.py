"""Runs in a guest: a TCP server that sends back what it is sent; after the end of it, what it was."""

import hashlib
import json
import socket
import sys
import threading

words = json.loads(sys.argv[1])


def serve(connection):
    """Send all back as it comes, and at its end one line with its digest."""
    digest = hashlib.sha256()
    with connection:
        while True:
            data = connection.recv(65536)
            if not data:
                break
            digest.update(data)
            connection.sendall(data)
        connection.sendall(digest.hexdigest().encode() + b"\n")


server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("", words["port"]))
server.listen(64)
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
