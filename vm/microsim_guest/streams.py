"""One independent random stream per name, all derived from the rollout's seed.

With numpy: ``SeedSequence(seed, spawn_key=digest(name))``, numpy's own recipe for child streams. Without:
SHA-256 over the seed and the name. Never ``seed + i``, whose streams overlap between neighbouring seeds.
"""

import hashlib
from typing import Any, List

from microsim_guest import codec

WORDS = 8


def digest(name: str) -> List[int]:
    """Return a name as 128 bits in words of 32: a spawn key that no other name has."""
    raw = hashlib.sha256(name.encode()).digest()[:16]
    return [int.from_bytes(raw[i : i + 4], "little") for i in range(0, 16, 4)]


def sequence(seed: int, name: str) -> Any:
    """Return the numpy SeedSequence of a named stream (numpy must be installed)."""
    return codec.numpy().random.SeedSequence(seed, spawn_key=digest(name))


def words(seed: int, name: str) -> List[int]:
    """Return the stream's first ``WORDS`` unsigned 32-bit words."""
    if codec.numpy() is not None:
        return [int(word) for word in sequence(seed, name).generate_state(WORDS)]
    raw = _hashed(seed, name)
    return [int.from_bytes(raw[i : i + 4], "little") for i in range(0, 4 * WORDS, 4)]


def _hashed(seed: int, name: str) -> bytes:
    return hashlib.sha256(b"%d:%s" % (seed, name.encode())).digest()


def hash_seed(seed: int) -> int:
    """Return the PYTHONHASHSEED of processes started under a seed, the same with and without numpy."""
    return int.from_bytes(_hashed(seed, "PYTHONHASHSEED")[:4], "little")


def integer(seed: int, name: str, bits: int = 256) -> int:
    """Return one integer of at most ``bits`` bits from the named stream."""
    value = 0
    for index, word in enumerate(words(seed, name)):
        value |= word << (32 * index)
    return value & ((1 << bits) - 1)
