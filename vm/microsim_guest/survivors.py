"""Find the generators that a fork would inherit unreseeded, and say where they are held."""

import gc
import sys
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple

WORLD_DEPTH = 6  # how many attributes and items away from the world, or from a module of its code
LIBRARY_DEPTH = 2  # likewise, from any other module
Place = Tuple[str, Any]


def find(world: Any, known: List[Any], is_generator: Callable[[Any], bool], folder: str) -> List[str]:
    """Return one line for each generator of this process that is not among the known ones.

    Args:
        world: The world's object; places are named from it and from modules.
        known: The generators that are reseeded.
        is_generator: Tells a generator from other objects.
        folder: Of the world's code, whose modules are looked through most deeply.
    """
    gc.collect()
    kinds: Dict[type, bool] = {}
    found: Dict[int, Any] = {}
    owned = {id(value) for value in known}
    # Extension types need not be tracked by the collector themselves: look one step further too.
    for holder in gc.get_objects():
        for value in (holder, *gc.get_referents(holder)):
            kind = type(value)
            if kind not in kinds:
                kinds[kind] = is_generator(value)
            if kinds[kind]:
                found[id(value)] = value
            elif hasattr(kind, "random_raw"):  # a bit generator: its seed sequence is a part of it
                owned.add(id(getattr(value, "seed_seq", None) or getattr(value, "_seed_seq", None)))
    for identity in owned:
        found.pop(identity, None)
    names = _names(found, world, folder)
    return sorted(
        "unreseeded generator survived the snapshot: {} at {}".format(
            _type_name(value), names.get(identity, "an unnamed place")
        )
        for identity, value in found.items()
    )


def _type_name(value: Any) -> str:
    kind = type(value)
    module = "numpy.random" if kind.__module__.startswith("numpy.random.") else kind.__module__
    return "{}.{}".format(module, kind.__name__)


def _names(wanted: Dict[int, Any], world: Any, folder: str) -> Dict[int, str]:
    """Name the places that hold objects, as a user would write them; the shortest name wins."""
    modules = [(name, module) for name, module in list(sys.modules.items()) if module is not None]
    own = [place for place in modules if str(getattr(place[1], "__file__", "")).startswith(folder)]
    names: Dict[int, str] = {}
    for places, depth in (([("world", world), *own], WORLD_DEPTH), (modules, LIBRARY_DEPTH)):
        seen: Set[int] = {id(place) for _, place in modules}  # each module is looked at under its own name
        for _ in range(depth):
            if len(names) == len(wanted):
                return names
            following: List[Place] = []
            for name, value in (part for place in places for part in _parts(*place)):
                if id(value) in wanted:
                    names.setdefault(id(value), name)
                elif id(value) not in seen:
                    seen.add(id(value))
                    following.append((name, value))
            places = following
    return names


def _parts(name: str, holder: Any) -> Iterator[Place]:
    """Yield what an object holds, with its name."""
    if isinstance(holder, dict):
        for key, value in list(holder.items()):
            yield "{}[{!r}]".format(name, key), value
    elif isinstance(holder, (list, tuple)):
        for index, value in enumerate(holder):
            yield "{}[{}]".format(name, index), value
    else:
        for attribute, value in list(getattr(holder, "__dict__", {}).items()):
            yield "{}.{}".format(name, attribute), value
