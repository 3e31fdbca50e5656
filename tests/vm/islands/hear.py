"""Runs in a guest: answers on TCP and UDP, by unicast, broadcast and multicast, until it is told what it has heard.

Prints "ready" once it listens. A connection that says "report" gets, as JSON, who has sent what to it.
"""

import json
import socket
import sys
import threading

words = json.loads(sys.argv[1])
port, group = words["port"], words["group"]
heard = []


def datagrams(sock, way):
    """Note all datagrams, and answer each with its own words and ours."""
    while True:
        data, peer = sock.recvfrom(2048)
        heard.append([way, peer[0], data.decode()])
        sock.sendto(b"heard " + data, peer)


def bound(address, number):
    """Return a UDP socket."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, number))
    return sock


unicast, multicast = bound("", port), bound("", port + 1)
interface = socket.inet_aton(words["address"])
multicast.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + interface)
for sock, way in ((unicast, "udp"), (multicast, "multicast")):
    threading.Thread(target=datagrams, args=(sock, way), daemon=True).start()
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("", port))
server.listen(16)
print("ready", flush=True)
while True:
    connection, peer = server.accept()
    with connection:
        text = connection.recv(2048).decode()
        if text == "report":
            connection.sendall(json.dumps(heard).encode())
        else:
            heard.append(["tcp", peer[0], text])
            connection.sendall(b"heard " + text.encode())
