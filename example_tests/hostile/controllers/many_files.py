"""Makes a hundred thousand files."""


def act(observation):
    try:
        for number in range(100_000):
            open(f"file{number}", "w").close()
    except OSError:
        pass
    return 0.0
