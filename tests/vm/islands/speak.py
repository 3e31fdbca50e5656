"""Runs in a guest: says something to a name by TCP, UDP, broadcast and multicast; prints what was answered."""

import json
import socket
import sys

words = json.loads(sys.argv[1])
port, text = words["port"], words["text"].encode()


def by_tcp():
    """Say it over a connection."""
    with socket.create_connection((words["to"], port), timeout=5) as sock:
        sock.sendall(text)
        return sock.recv(2048).decode()


def by_udp(target, number):
    """Say it in a datagram, until somebody answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((words["address"], 0))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(words["address"]))
        sock.settimeout(1)
        for _ in range(5):
            try:
                sock.sendto(text, (target, number))
                answer, peer = sock.recvfrom(2048)
                return [answer.decode(), peer[0]]
            except TimeoutError:
                continue
    return None


answers = {
    "tcp": by_tcp(),
    "udp": by_udp(words["to"], port),
    "broadcast": by_udp(words["broadcast"], port),
    "multicast": by_udp(words["group"], port + 1),
}
print(json.dumps(answers))
