"""Forks of a running fork: they continue from its very moment, apart from it and from each other."""

import contextlib

import pytest
from microsim_vm.errors import SnapshotError
from microsim_vm.world import WarmWorld

pytestmark = pytest.mark.timeout(180)


def test_children_continue_the_parents_moment_apart_from_each_other(cartpole: WarmWorld) -> None:
    with cartpole.fork(5) as parent, contextlib.ExitStack() as stack:
        parent.filesystem.write("/workspace/note", "before")
        parent.reset()
        for _ in range(5):
            parent.step(1)

        children = [stack.enter_context(child) for child in parent.fork(2)]
        # The next position follows from the state they share; the velocity has noise, of each one's own.
        position, velocity, *_ = zip(*(machine.step(1)[0] for machine in (parent, *children)), strict=True)
        assert len(set(position)) == 1
        assert len(set(velocity)) == 3
        assert all(child.filesystem.read("/workspace/note") == b"before" for child in children)

        children[0].filesystem.write("/workspace/note", "child")
        assert children[1].filesystem.read("/workspace/note") == b"before"
        assert parent.filesystem.read("/workspace/note") == b"before"


def test_children_have_seeds_and_randomness_of_their_own(cartpole: WarmWorld) -> None:
    with cartpole.fork(5) as parent, contextlib.ExitStack() as stack:
        children = [stack.enter_context(child) for child in parent.fork(2)]
        more = [stack.enter_context(child) for child in parent.fork(1)]
        family = [parent, *children, *more]
        assert len({machine.seed for machine in family}) == 4
        assert len({tuple(sorted(machine.probes.items())) for machine in family}) == 4
        draws = {machine.exec("head -c 16 /dev/urandom | od -An -tx1", check=True).stdout for machine in family}
        assert len(draws) == 4
    with cartpole.fork(5) as again, contextlib.ExitStack() as stack:
        assert [stack.enter_context(child).seed for child in again.fork(2)] == [child.seed for child in children]


def test_a_child_outlives_its_parent_and_can_be_forked_itself(cartpole: WarmWorld) -> None:
    with contextlib.ExitStack() as stack:
        with cartpole.fork(9) as parent:
            parent.filesystem.write("/workspace/note", "kept")
            child = stack.enter_context(parent.fork()[0])
        grandchild = stack.enter_context(child.fork()[0])
        assert child.filesystem.read("/workspace/note") == grandchild.filesystem.read("/workspace/note") == b"kept"


def test_a_useless_number_of_children_is_refused(cartpole: WarmWorld) -> None:
    with cartpole.fork(1) as parent, pytest.raises(ValueError, match="1 or more"):
        parent.fork(0)
    with pytest.raises(SnapshotError):
        parent.fork()  # it is closed
