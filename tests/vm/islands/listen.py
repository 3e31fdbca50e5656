"""Runs in a guest: reads all frames that pass its interface for a while; prints who sent them."""

import json
import socket
import struct
import sys
import time

words = json.loads(sys.argv[1])
SOL_PACKET, ADD_MEMBERSHIP, PROMISCUOUS, OUTGOING = 263, 1, 1, 4
try:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    sock.bind((words["interface"], 0))
except OSError as error:  # this kernel lets nobody look
    print(json.dumps({"refused": str(error)}))
    sys.exit()
index = socket.if_nametoindex(words["interface"])
sock.setsockopt(SOL_PACKET, ADD_MEMBERSHIP, struct.pack("iHH8x", index, PROMISCUOUS, 0))
sock.settimeout(0.1)
senders = {}
deadline = time.monotonic() + words["seconds"]
while time.monotonic() < deadline:
    try:
        frame, address = sock.recvfrom(65535)
    except TimeoutError:
        continue
    if address[2] != OUTGOING:
        sender = frame[6:12].hex(":")
        senders[sender] = senders.get(sender, 0) + 1
print(json.dumps({"senders": senders}))
