"""What an episode scores, worked out on the host from what was recorded, where no controller reaches.

Steps and the total reward come from the trajectory. Metrics come from the world, and are believed when they are
finite numbers with names; a template's ``score`` names a Python file with ``metrics(trajectory)``, which the host runs
over the columns and whose numbers replace the world's of the same names. Anything else makes the episode invalid.
"""

from __future__ import annotations

import hashlib
import math
import sys
import threading
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microsim_vm.errors import InvalidEpisodeError, ScoreError

if TYPE_CHECKING:
    from microsim_vm.episode import Column

MOST_METRICS = 256
LONGEST_NAME = 100
Scorer = Callable[[Mapping[str, "Column"]], Any]
_loaded: dict[Path, tuple[tuple[int, int], Scorer]] = {}  # with each file's time of change and size
_loading = threading.Lock()


def checked(metrics: Any, source: str) -> dict[str, float]:
    """Return metrics as numbers by name.

    Args:
        metrics: What a world or a scorer gave.
        source: Which of them, for messages.

    Raises:
        InvalidEpisodeError: They are not finite numbers by name, or too many.
    """
    if not isinstance(metrics, Mapping):
        raise _invalid(f"{source} gave {_shown(metrics)} in place of metrics", "return a dict of numbers by name")
    if len(metrics) > MOST_METRICS:
        raise _invalid(f"{source} gave {len(metrics)} metrics", f"{MOST_METRICS} are the most there may be")
    return {_name(name, source): _number(name, value, source) for name, value in metrics.items()}


def _name(name: Any, source: str) -> str:
    if isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable():
        return name
    hint = f"a name has 1 to {LONGEST_NAME} printable characters"
    raise _invalid(f"{source} gave a metric the name {_shown(name)}", hint)


def _number(name: Any, value: Any, source: str) -> float:
    if not isinstance(value, bool | int | float):
        raise _invalid(f"{source} gave the metric {name!r} as {_shown(value)}", "a metric is one number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _invalid(
            f"{source} gave the metric {name!r} as {_shown(number)}",
            "a comparison with NaN is never true, so that a test may pass by it; leave out what cannot be told",
        )
    return number


def total(rewards: Column | None) -> float:
    """Return the sum of an episode's rewards, added one after the other.

    Raises:
        InvalidEpisodeError: It is not finite.
    """
    value = 0.0
    for reward in [] if rewards is None else rewards:
        value += reward
    if not math.isfinite(value):
        raise _invalid(f"the episode's rewards add up to {value}", "a reward is a finite number")
    return value


def load(path: Path) -> Scorer:
    """Return the function ``metrics`` of a template's ``score``. The file is run once per process, until it changes.

    Raises:
        ScoreError: The file cannot be run, or has no such function.
    """
    if path.suffix != ".py":
        raise ScoreError(f"{path} is no Python file", hint="score: names a file that ends with .py")
    with _loading:
        try:
            status = path.stat()
            version = (status.st_mtime_ns, status.st_size)
            known = _loaded.get(path)
            if known is None or known[0] != version:
                known = _loaded[path] = (version, _run(path))
            return known[1]
        except Exception as error:
            if isinstance(error, ScoreError):
                raise
            raise ScoreError(f"{path}: {type(error).__name__}: {error}") from error


def _run(path: Path) -> Scorer:
    """Run a scorer's file, without leaving bytecode beside it: the template's folder is an input of its image."""
    module = types.ModuleType(f"microsim_score_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}")
    module.__file__ = str(path)
    code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    sys.modules[module.__name__] = module  # where dataclasses look for what an annotation names
    exec(code, module.__dict__)
    found: Scorer | None = getattr(module, "metrics", None)
    if not callable(found):
        raise ScoreError(f"{path} has no function metrics(trajectory)")
    return found


def scored(path: Path, columns: Mapping[str, Column]) -> dict[str, float]:
    """Return the metrics of a trajectory by a template's ``score``.

    Raises:
        ScoreError: It raises.
        InvalidEpisodeError: What it returns are no metrics.
    """
    scorer = load(path)
    try:
        metrics = scorer(columns)
    except Exception as error:
        raise ScoreError(f"{path}: metrics(trajectory) raised {type(error).__name__}: {error}") from error
    return checked(metrics, path.name)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}... ({len(text)} characters)"


def _invalid(what: str, hint: str) -> InvalidEpisodeError:
    return InvalidEpisodeError(what, hint=hint)
