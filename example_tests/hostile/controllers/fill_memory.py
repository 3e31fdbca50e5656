"""Takes all the memory that there is, and touches it."""

kept = []


def act(observation):
    while True:
        kept.append(bytearray(b"x") * (4 << 20))
