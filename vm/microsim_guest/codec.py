"""Observations, actions and infos as JSON plus binary attachments: no pickle, so a peer cannot run code.

Arrays become ``{"__array__": [dtype, shape, attachment index]}`` and travel as raw little-endian bytes. Where
numpy is not installed an array is decoded into (nested) lists. ``dict``, ``list``, ``tuple`` (as list),
``str``, ``bytes``, ``bool``, ``int``, ``float`` (NaN and infinities included) and ``None`` pass through;
anything else is replaced by its ``repr`` so that an exotic ``info`` never ends an episode.
"""

import array
import math
from typing import Any, Dict, List, Optional, Sequence

_ARRAY = "__array__"
_BYTES = "__bytes__"
_FLOAT = "__float__"
TYPECODES = {"<f8": "d", "<f4": "f", "<i8": "q", "<i4": "i", "<i2": "h", "|i1": "b",
              "<u8": "Q", "<u4": "I", "<u2": "H", "|u1": "B", "|b1": "B"}  # fmt: skip
MAX_DEPTH = 16
MAX_EMPTY = 4096  # lists that an array without numbers may consist of
_numpy: Dict[str, Any] = {}


def numpy() -> Any:
    """Return the numpy module, or None where it is not installed."""
    if "numpy" not in _numpy:
        try:
            import numpy as np
        except ImportError:
            np = None  # type: ignore[assignment]
        _numpy["numpy"] = np  # where it is missing, looking for it each time would cost
    return _numpy["numpy"]


def pack(value: Any, blobs: List[bytes], depth: int = 0) -> Any:
    """Turn a value into JSON-able data, appending its binary parts to ``blobs``."""
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else {_FLOAT: repr(value)}
    if kind in (bool, int, str) or value is None:
        return value
    if depth > MAX_DEPTH:
        return repr(value)[:200]
    if hasattr(value, "dtype") and hasattr(value, "tobytes"):
        return _pack_array(value, blobs, depth)
    if isinstance(value, (bytes, bytearray, memoryview)):
        blobs.append(bytes(value))
        return {_BYTES: len(blobs) - 1}
    if isinstance(value, dict):
        return {str(key): pack(item, blobs, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [pack(item, blobs, depth + 1) for item in value]
    if isinstance(value, (int, float)):  # subclasses: IntEnum and friends
        return pack(float(value) if isinstance(value, float) else int(value), blobs, depth)
    return repr(value)[:200]


def _pack_array(value: Any, blobs: List[bytes], depth: int) -> Any:
    if value.dtype.kind not in "fiub":
        return pack(value.tolist(), blobs, depth + 1)
    if value.shape == ():
        return pack(value.item(), blobs, depth + 1)
    kind = portable(value.dtype)
    blobs.append(value.astype(kind, copy=False).tobytes())
    return {_ARRAY: [kind, list(value.shape), len(blobs) - 1]}


def portable(dtype: Any) -> str:
    """Return the little-endian type that numbers of a numpy type travel and are recorded in.

    Half floats become floats, and what is longer than a double becomes one.
    """
    name = str(dtype.newbyteorder("<").str).replace("=", "<")
    return name if name in TYPECODES else "<f4" if dtype.itemsize < 4 else "<f8"


def unpack(value: Any, blobs: Sequence[bytes]) -> Any:
    """Reverse :func:`pack`.

    Raises:
        ValueError: The data does not describe its attachments, names one of them twice (a short text could then
            become any amount of memory), or is nested too deeply.
    """
    try:
        return _unpack(value, list(blobs))
    except (LookupError, TypeError, RecursionError) as error:
        raise ValueError("malformed value: {!r}".format(error)) from None


def _unpack(value: Any, blobs: List[Optional[bytes]]) -> Any:
    if isinstance(value, list):
        return [_unpack(item, blobs) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, item),) = value.items()
        if key == _FLOAT:
            return float(item)
        if key == _BYTES:
            return bytes(_take(blobs, item))
        if key == _ARRAY:
            return _unpack_array(item, blobs)
    return {key: _unpack(item, blobs) for key, item in value.items()}


def _take(blobs: List[Optional[bytes]], index: int) -> bytes:
    blob, blobs[index] = blobs[index], None
    if blob is None:
        raise ValueError("malformed value: attachment {} is named twice".format(index))
    return blob


def _unpack_array(item: Sequence[Any], blobs: List[Optional[bytes]]) -> Any:
    dtype, shape, index = item
    data = _take(blobs, index)
    count = 1
    for size in shape:
        if size < 0:
            raise ValueError("malformed value: an array of shape {}".format(shape))
        count *= size or 1
    if count > len(data) + MAX_EMPTY:  # (10**9, 0) has no numbers, and is a list of a thousand million lists
        raise ValueError("malformed value: an array of shape {} in {} bytes".format(shape, len(data)))
    np = numpy()
    if np is not None and dtype in TYPECODES:
        return np.frombuffer(data, dtype=dtype).reshape(shape).copy()
    return nested(dtype, shape, data)


def nested(dtype: str, shape: Sequence[int], data: bytes) -> Any:
    """Return array bytes as nested lists of plain numbers (a scalar for shape ``()``)."""
    flat: List[Any] = array.array(TYPECODES[dtype], data).tolist()
    if dtype == "|b1":
        flat = [bool(item) for item in flat]
    for size in reversed(shape[1:]):
        flat = [flat[start : start + size] for start in range(0, len(flat), size)] if size else []
    return flat if shape else flat[0]


def flatten(value: Any) -> Dict[str, Any]:
    """Return an observation as named parts: ``{"": value}``, or one entry per key of a flat dict."""
    if isinstance(value, dict):
        return {".{}".format(key): item for key, item in value.items()}
    return {"": value}
