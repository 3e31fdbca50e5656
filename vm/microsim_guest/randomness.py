"""Find every generator a warmed process holds, reseed the declared ones after a fork, report the rest.

A fork inherits all of user space: whatever was seeded before the snapshot repeats in every fork. The
inventory is taken once, at the end of the warm-up, so that a fork pays for reseeding only and not for a scan.
"""

import ctypes
import functools
import os
import random
import sys
import tempfile
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from microsim_guest import codec, config, streams, survivors


class Source(NamedTuple):
    """One declared source: how to reseed it, and how to look at 64 bits without disturbing it."""

    name: str
    reseed: Callable[[int], None]
    peek: Optional[Callable[[], int]]


_registered: Dict[str, Any] = {}


def register_generator(name: str, generator: Any) -> None:
    """Declare a generator that each fork must reseed.

    Args:
        name: Unique name; each name gets its own stream of the rollout's seed.
        generator: A ``random.Random``, numpy ``Generator`` or ``RandomState``, ``torch.Generator``, or a
            function that takes an integer seed (for engines Python cannot see, such as a C++ one).
    """
    _registered[name] = generator


def _of_kind(value: Any, module: str, *names: str) -> bool:
    # str(): some extension types carry a descriptor where others have their module's name.
    return any(base.__name__ in names and str(base.__module__).startswith(module) for base in type(value).__mro__)


def is_generator(value: Any) -> bool:
    """Tell whether a value is a random generator with a state of its own."""
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    return _of_kind(value, "numpy.random", "Generator", "RandomState", "SeedSequence")


def source_of(name: str, generator: Any) -> Source:
    """Describe how to reseed one generator object in place.

    Raises:
        TypeError: Neither a known generator nor callable.
    """
    if isinstance(generator, random.Random):
        return Source(name, lambda seed: generator.seed(streams.integer(seed, name)),
                      lambda: _peek_python(generator))  # fmt: skip
    if _of_kind(generator, "numpy.random", "RandomState"):
        return Source(name, lambda seed: generator.seed(streams.words(seed, name)),
                      lambda: _peek_numpy(generator._bit_generator))  # fmt: skip
    if _of_kind(generator, "numpy.random", "Generator"):
        return Source(name, lambda seed: _reseed_numpy(generator, seed, name),
                      lambda: _peek_numpy(generator.bit_generator))  # fmt: skip
    if _of_kind(generator, "numpy.random", "SeedSequence"):
        return Source(name, lambda seed: generator.__init__(  # in place: others may hold this very object
            seed, spawn_key=streams.digest(name), pool_size=generator.pool_size), None)  # fmt: skip
    if _of_kind(generator, "torch", "Generator"):
        return Source(name, lambda seed: generator.manual_seed(streams.integer(seed, name, 63)), None)
    if callable(generator):
        return Source(name, lambda seed: generator(streams.integer(seed, name, 32)), None)
    raise TypeError(
        "generator {!r} is a {}: expected random.Random, a numpy or torch generator, or a function that "
        "takes a seed".format(name, type(generator).__name__)
    )


def _looked_up(name: str, get: Callable[[], Any]) -> Source:
    """Describe a generator that is looked up at each use, because the world's ``reset`` may replace the object."""
    peek = None if source_of(name, get()).peek is None else lambda: source_of(name, get()).peek()  # type: ignore[misc]
    return Source(name, lambda seed: source_of(name, get()).reseed(seed), peek)


def _peek_python(generator: random.Random) -> int:
    state = generator.getstate()
    try:
        return generator.getrandbits(64)
    finally:
        generator.setstate(state)


def _peek_numpy(bits: Any) -> int:
    state = bits.state  # a copy, cheaper than copying the generator
    try:
        low, high = (int(raw) for raw in bits.random_raw(2))  # some kinds give 32 bits at a time
        return (low ^ high << 32) & (1 << 64) - 1
    finally:
        bits.state = state


def _reseed_numpy(generator: Any, seed: int, name: str) -> None:
    # In place, and not by setting its state: the seed sequence, from which spawn() makes children, changes too.
    generator.bit_generator.__init__(streams.sequence(seed, name))


def process_sources() -> List[Source]:
    """Return the sources every Python process has: ``random``, numpy, torch, libc, OpenSSL, tempfile."""
    sources = [source_of("python.random", random._inst)]
    np = codec.numpy()
    if np is not None:
        sources.append(source_of("numpy.global", np.random.mtrand._rand))
    torch = sys.modules.get("torch")
    if torch is not None:
        sources.append(Source("torch.global", lambda seed: torch.manual_seed(
            streams.integer(seed, "torch.global", 63)), None))  # fmt: skip
    libc = ctypes.CDLL(None)

    def reseed_libc(seed: int) -> None:
        libc.srand(ctypes.c_uint(streams.integer(seed, "libc.rand", 32)))
        libc.srand48(ctypes.c_long(streams.integer(seed, "libc.rand48", 32)))

    sources.append(Source("libc", reseed_libc, None))
    return sources


def refresh_entropy_users() -> None:
    """Renew what draws on kernel entropy rather than on the seed. Call after the kernel was reseeded."""
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        ssl.RAND_add(os.urandom(32), 32.0)
    vars(tempfile)["_name_sequence"] = None  # its private generator is a copy too


def world_sources(world: Any) -> List[Source]:
    """Return the sources of an environment: its own generator, its spaces, and those it declares."""
    sources: List[Source] = []
    for depth, layer in enumerate(_layers(world)):
        generator = getattr(layer, "np_random", None)  # touching it creates it before the snapshot
        if is_generator(generator):
            name = "world.np_random{}".format(depth or "")
            sources.append(_looked_up(name, functools.partial(getattr, layer, "np_random")))
        for attribute in ("action_space", "observation_space", "single_action_space",
                          "single_observation_space"):  # fmt: skip
            space = getattr(layer, attribute, None)
            if hasattr(space, "seed"):
                name = "world.{}{}".format(attribute, depth or "")
                sources.append(Source(name, _space_seeder(space, name), None))
        declared = getattr(layer, "generators", None)
        if callable(declared):
            for key in sorted(declared()):
                taken = any(source.name == "world." + key for source in sources)  # by another member's
                name = "world.{}{}".format(key, depth if taken else "")
                sources.append(_looked_up(name, functools.partial(_declared_by, layer, key)))
    sources += [source_of(name, value) for name, value in sorted(_registered.items())]
    return sources


def _declared_by(layer: Any, key: str) -> Any:
    return layer.generators()[key]


def _space_seeder(space: Any, name: str) -> Callable[[int], None]:
    def reseed(seed: int) -> None:
        space.seed(streams.integer(seed, name, 63))

    reseed(0)  # a space that was never used creates its generator from kernel entropy on first use
    return reseed


def _layers(world: Any) -> List[Any]:
    """Return a wrapped environment's layers, outermost first."""
    layers = [world]
    while hasattr(layers[-1], "env") and layers[-1].env is not None and len(layers) < 32:
        layers.append(layers[-1].env)
    for env in getattr(layers[-1], "envs", None) or []:  # a vector environment's members
        layers += _layers(env)
    return layers


class Inventory:
    """The generators of one process, as known at the end of its warm-up.

    Args:
        world: The world's object, where the process holds one.
        folder: Of the world's code.
    """

    def __init__(self, world: Any = None, folder: str = config.WORLD_FOLDER) -> None:
        self.sources = process_sources() + (world_sources(world) if world is not None else [])
        self.findings = [] if world is None else survivors.find(world, _declared(world), is_generator, folder)

    def reseed(self, seed: int) -> None:
        """Reseed every declared source, each from its own stream of ``seed``."""
        for source in self.sources:
            source.reseed(seed)

    def probes(self) -> Dict[str, str]:
        """Return 64 bits as 16 hex digits from a copy of each declared source that can be copied."""
        return {source.name: "%016x" % source.peek() for source in self.sources if source.peek is not None}


def _declared(world: Any) -> List[Any]:
    """Return the generators that a fork reseeds."""
    known: List[Any] = [random._inst]
    np = codec.numpy()
    if np is not None:
        known.append(np.random.mtrand._rand)
    for layer in _layers(world):
        known.append(getattr(layer, "np_random", None))
        declared = getattr(layer, "generators", None)
        if callable(declared):
            known += list(declared().values())
        for attribute in ("action_space", "observation_space", "single_action_space",
                          "single_observation_space"):  # fmt: skip
            known += _space_generators(getattr(layer, attribute, None))
    known += list(_registered.values())
    return known


def _space_generators(space: Any, depth: int = 0) -> List[Any]:
    if space is None or depth > 8:
        return []
    found = [getattr(space, "_np_random", None)]
    children = getattr(space, "spaces", ())
    for child in children.values() if isinstance(children, dict) else children:
        found += _space_generators(child, depth + 1)
    return found
