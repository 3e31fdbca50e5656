"""Options reach the world's reset, and a world that does not look at them is told apart."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from microsim_guest import resetting

OPTIONS = {"friction": 0.5, "payload": 2}


class World:
    """A world whose reset does something with its options."""

    def __init__(self, look: Any) -> None:
        self.look = look

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.look(options), {}


@pytest.mark.parametrize(
    "look",
    [
        lambda options: (options["friction"], options.get("payload")),
        lambda options: [options[name] for name in ("friction", "payload") if name in options],
        dict,
        lambda options: {**options},
        lambda options: (lambda **given: given)(**options),
        lambda options: json.loads(json.dumps(options)),
        copy.deepcopy,
        lambda options: options.copy(),
        lambda options: {"friction": 1.0} | options,
        lambda options: sorted(options),
        lambda options: list(options.values()),
        lambda options: (options.pop("friction"), options.pop("payload", None), options.pop("other", 3)),
        lambda options: [options.setdefault(name, 1) for name in ("friction", "payload")],
        lambda options: [options.popitem() for _ in range(2)],
        lambda options: options | {"other": 1},
    ],
)
def test_a_world_that_looks_at_its_options_is_left_alone(look: Any) -> None:
    resetting.reset(World(look), 1, dict(OPTIONS))


def test_what_it_gets_is_what_was_given() -> None:
    seen = resetting.reset(World(lambda options: dict(options)), 1, OPTIONS)[0]
    assert seen == OPTIONS == {"friction": 0.5, "payload": 2}


@pytest.mark.parametrize("look", [lambda options: None, lambda options: options.get("friction"), len, bool])
def test_options_that_nobody_looked_at_are_an_error(look: Any) -> None:
    with pytest.raises(resetting.OptionsIgnored, match=r"ignored options: .*payload"):
        resetting.reset(World(look), 1, OPTIONS)


def test_a_world_that_keeps_them_for_later_is_believed() -> None:
    kept = []
    resetting.reset(World(kept.append), 1, OPTIONS)
    assert kept == [OPTIONS]


def test_a_world_whose_reset_takes_none_is_refused() -> None:
    class Old:
        def reset(self, seed: int | None = None) -> None: ...

    with pytest.raises(resetting.NoOptions, match="takes no options, and is given some: friction, payload"):
        resetting.reset(Old(), 1, OPTIONS)
    resetting.reset(Old(), 1, {})
