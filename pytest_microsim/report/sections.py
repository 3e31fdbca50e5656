"""The section of a failing rollout's report: how to replay it, its network, what controller and guest wrote."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from microsim_vm.errors import MicrosimError

from ..state import ITEM, RUN, ItemState
from .captures import announced
from .keeping import kept

if TYPE_CHECKING:
    from ..rollout import Rollout

LIMIT = 64 * 1024 + 256
"""Most bytes of one stream that are shown: what a guest keeps by default, with its note on what it left out."""

MOST_REFUSED = 10
"""Most refused destinations that are listed."""

# All controls but tab and newline, surrogates, and the two other characters that XML forbids.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def add_section(item: pytest.Item, report: pytest.TestReport) -> None:
    """Add the section to the report of a failed test that uses a rollout."""
    state = item.stash.get(ITEM, None)
    if state is None or not report.failed:
        return
    content = "\n".join(_lines(item, state))
    longrepr: Any = report.longrepr
    # In the failure text it reaches the JUnit file too, which takes only captured output from sections.
    if hasattr(longrepr, "addsection"):
        longrepr.addsection("microsim", content)
    else:
        report.sections.append(("microsim", content))


def replay_command(item: pytest.Item, state: ItemState) -> str:
    """Return the shell command that replays a test's rollout, from the directory pytest was started in.

    One that was never begun has nothing to be compared with: its command runs the test.
    """
    settings = item.config.stash[RUN].settings
    path = os.path.relpath(item.path, item.config.invocation_params.dir)
    names = [node.name for node in item.listchain() if isinstance(node, pytest.Class)]
    words = ["pytest", shlex.quote("::".join([path, *names, item.name])), *settings.replay_flags]
    if state.warm is not None and state.replay is not None and state.rollout is not None:
        chosen = state.warm.snapshot.manifest.engine
        # "auto" may choose another one elsewhere, and its episodes are other ones.
        if settings.engine == "auto":
            words += ["--microsim-engine", chosen["engine"]]
        if settings.accel == "auto" and "accelerator" in chosen:
            words += ["--microsim-accel", chosen["accelerator"]]
        words += ["--microsim-replay", str(state.replay.ended(state.rollout))]
    return " ".join(words)


def shown(data: bytes, limit: int = LIMIT) -> str:
    """Return output as bounded text, safe in a terminal and in XML: bad bytes replaced, controls escaped."""
    left_out = len(data) - limit
    if left_out <= 0:
        return _escaped(data)
    # The beginning says what it is, the end says how it failed.
    head = limit // 4
    return (
        f"{_escaped(data[:head])}\n[... {left_out} bytes left out, {limit} shown ...]\n"
        f"{_escaped(data[head + left_out :])}"
    )


def _lines(item: pytest.Item, state: ItemState) -> Iterator[str]:
    digest = f" (image {state.digest[:16]})" if state.digest else ""
    number = None if state.rollout is None else state.rollout.schedule
    schedule = "" if number is None else f", schedule {number},"
    yield f"seed {state.seed}{schedule} of world {state.world}{digest}"
    yield f"replay: {replay_command(item, state)}"
    if state.rollout is None:
        return
    yield from network_lines(state.rollout, state.env)
    if capture := announced(item, state):
        yield capture
    if place := kept(item, state):
        yield place
    yield from state.remarks
    for number, episode in enumerate(state.rollout.episodes):
        which = f"episode {number}, seed {episode.seed}"
        yield f"{which}: {episode!r}, {dict(episode.metrics)}"
        if episode.attempts:
            yield f"the controller ({which}):"
            yield _indented(shown("\n".join(episode.attempts).encode("utf-8", "replace")))
        for name, data in (("stdout", episode.stdout_bytes), ("stderr", episode.stderr_bytes)):
            if data:
                yield f"controller {name} ({which}):"
                yield _indented(shown(data))
    try:
        console = state.rollout.console()
    except (MicrosimError, OSError) as error:
        console = f"(not available: {error})"
    if console:
        yield "guest console, last lines:"
        yield _indented(shown(console.encode("utf-8", "replace")))


def network_lines(rollout: Rollout, env: Mapping[str, str]) -> Iterator[str]:
    """Yield a rollout's network in one line, and what its processes are told of it for DDS and ROS 2 in more.

    Args:
        rollout: The rollout.
        env: What its template sets in every process.
    """
    from microsim_guest import config, middleware
    from microsim_vm.islands.island import ALONE

    machine, island = rollout.machine, rollout.machine.island
    if island is None:
        yield "network: none, a loopback and nothing else"
        return
    plug = island.plugs[ALONE]
    parts = [
        f"network: {island.network.policy}",
        f"subnet {island.subnet.network}",
        f"{config.INTERFACE} {plug.address.ip} at {plug.interface}",
    ]
    if len(island.plugs) > 1:
        parts.append("machines " + ", ".join(f"{name} {each.address.ip}" for name, each in island.plugs.items()))
    if rollout.published:
        places = (f"{port} at {host}:{ours}" for port, (host, ours) in rollout.published.items())
        parts.append("published " + ", ".join(places))
    refused = [] if island.refusals is None else island.refusals.lines()
    if refused:
        more = [f"{len(refused) - MOST_REFUSED} more"] if len(refused) > MOST_REFUSED else []
        parts.append("refused or failed " + ", ".join([*refused[:MOST_REFUSED], *more]))
    yield "; ".join(parts)
    for name, value in middleware.environment(machine.scope, config.INTERFACE, env).items():
        yield f"{name}={shown(value.encode('utf-8', 'replace'))}"


def _escaped(data: bytes) -> str:
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    return _UNPRINTABLE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def _indented(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.rstrip("\n").split("\n"))
