"""The world's ``reset``: with a seed always, and with options where there are any."""

import inspect
import weakref
from typing import Any, Dict, Iterator, Optional, Set

from microsim_guest import wire


class NoOptions(wire.KnownError):
    """There are options, and the world's ``reset`` does not take any."""

    kind = "world"
    hint = "define reset(self, *, seed=None, options=None), and refuse the options that it does not know"

    def __init__(self, options: Dict[str, Any]) -> None:
        super().__init__("the world's reset() takes no options, and is given some: {}".format(
            ", ".join(sorted(options))[:200]))  # fmt: skip


class OptionsIgnored(wire.KnownError):
    """The world's ``reset`` takes options, and did not look at some of them."""

    kind = "world"
    hint = "compare their names with those that the world's reset() knows; best, let it refuse all others"

    def __init__(self, names: Set[str]) -> None:
        super().__init__("the world's reset() ignored options: {}".format(", ".join(sorted(names))[:200]))


def reset(world: Any, seed: Optional[int], options: Optional[Dict[str, Any]]) -> Any:
    """Reset the world; return what it returns.

    Raises:
        NoOptions: It takes none.
        OptionsIgnored: It did not look at some of them.
        Exception: Whatever the world raises.
    """
    if not options:
        return world.reset(seed=seed)
    if not _takes_options(world.reset):
        raise NoOptions(options)
    seen: Set[str] = set()
    noted = _Noted(options, seen)
    answer = world.reset(seed=seed, options=noted)
    kept = weakref.ref(noted)
    del noted
    # A world that keeps them may look at them later.
    ignored = set(options) - seen
    if ignored and kept() is None:
        raise OptionsIgnored(ignored)
    return answer


class _Noted(Dict[str, Any]):
    """Options that note which of them were looked at; whoever goes through all of them has seen all."""

    def __init__(self, options: Dict[str, Any], seen: Set[str]) -> None:
        super().__init__(options)
        self._seen = seen

    def __getitem__(self, key: str) -> Any:
        self._seen.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            self._seen.add(key)
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._seen.add(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        self._seen.add(key)
        return super().pop(key, *default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        self._seen.add(key)
        return super().setdefault(key, default)

    def popitem(self) -> Any:
        key, value = super().popitem()
        self._seen.add(key)
        return key, value

    def __iter__(self) -> Iterator[str]:
        self._seen.update(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        self._seen.update(super().keys())
        return super().keys()

    def values(self) -> Any:
        self._seen.update(super().keys())
        return super().values()

    def items(self) -> Any:
        self._seen.update(super().keys())
        return super().items()

    def copy(self) -> Dict[str, Any]:
        return dict(self.items())


def _takes_options(function: Any) -> bool:
    try:
        inspect.signature(function).bind(seed=None, options=None)
    except TypeError:
        return False
    except ValueError:  # a function of an extension module does not tell
        pass
    return True
