"""What a run may call different, where it looks at many things."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values after Holm: to call different what is below *alpha* errs anywhere with *alpha* at the most.

    Nothing is assumed of how the tests depend on each other.

    Args:
        p_values: Of all tests of a run.

    Returns:
        The corrected values, in the same order, 1.0 at the most.
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected = [1.0] * len(p_values)
    reached = 0.0
    for rank, index in enumerate(order):
        reached = max(reached, min(1.0, (len(order) - rank) * p_values[index]))
        corrected[index] = reached
    return corrected
