"""Numbers brought to the size of 1: sums and squares of what is nearly infinite must not be."""

from __future__ import annotations

import math
from typing import Any


def scale_of(*values: Any) -> float:
    """Return a power of two, by which dividing rounds nothing, of about the size of the largest number.

    Args:
        values: Arrays of finite numbers, not empty.
    """
    import numpy as np

    largest = max(float(np.abs(each).max()) for each in values)
    return 2.0 ** (math.frexp(largest)[1] - 1)
