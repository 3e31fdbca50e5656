"""Keep what failed: a rollout's microVM as it is when its test fails, for whoever wants to look into it."""

from __future__ import annotations

import shlex

import pytest
from microsim_vm.errors import MicrosimError

from ..state import RUN, ItemState


def kept(item: pytest.Item, state: ItemState) -> str | None:
    """Leave a hibernated sandbox that is a failed rollout's microVM; return what to say of it, None where nobody asks.

    What the microVM was doing goes on when it is woken. The rollout itself ends as usual.
    """
    settings = item.config.stash[RUN].settings
    if not settings.keep or state.rollout is None or state.warm is None:
        return None
    from microsim_vm.sandbox.kept import keep

    world = state.warm
    try:
        record = keep(world.forker, state.rollout.machine, world.digest, {"test": item.nodeid, "seed": str(state.seed)})
    except (MicrosimError, OSError) as error:
        return f"kept: no: {str(error).splitlines()[0]}"
    place = f" --cache-dir {shlex.quote(str(settings.cache_dir))}" if settings.cache_dir else ""
    return f"kept: microsim shell{place} {record.id} (microsim rm{place} {record.id} removes it)"
