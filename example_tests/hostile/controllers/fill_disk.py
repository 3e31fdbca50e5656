"""Writes until nothing more can be written."""


def act(observation):
    try:
        with open("filler", "ab") as file:
            while True:
                file.write(b"x" * (1 << 20))
    except OSError:
        pass
    return 0.0
