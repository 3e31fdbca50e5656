"""The world's ``reset``: with a seed always, and with options where there are any."""

import inspect
from typing import Any, Dict, Optional

from microsim_guest import wire


class NoOptions(wire.KnownError):
    """There are options, and the world's ``reset`` does not take any."""

    kind = "world"
    hint = "define reset(self, *, seed=None, options=None), and refuse the options that it does not know"

    def __init__(self, options: Dict[str, Any]) -> None:
        super().__init__("the world's reset() takes no options, and is given some: {}".format(
            ", ".join(sorted(options))[:200]))  # fmt: skip


def reset(world: Any, seed: Optional[int], options: Optional[Dict[str, Any]]) -> Any:
    """Reset the world; return what it returns.

    Raises:
        NoOptions: It takes none.
        Exception: Whatever the world raises.
    """
    if not options:
        return world.reset(seed=seed)
    if not _takes_options(world.reset):
        raise NoOptions(options)
    return world.reset(seed=seed, options=options)


def _takes_options(function: Any) -> bool:
    try:
        inspect.signature(function).bind(seed=None, options=None)
    except TypeError:
        return False
    except ValueError:  # a function of an extension module does not tell
        pass
    return True
