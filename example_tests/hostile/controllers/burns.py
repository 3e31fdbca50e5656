"""Never answers, and keeps a processor busy."""


def act(observation):
    while True:
        pass
