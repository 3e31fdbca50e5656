"""Names and hardware addresses on an island: short, plain and never the same twice."""

from __future__ import annotations

import re

from microsim_vm.islands.island import interface_name, mac_of

LONG = "test_ein_sehr_langer_name_mit_ümläuten_[роботы-机器人-🤖]_" + "é" * 24


def labels() -> list[str]:
    """Labels of two sessions' rollouts: tests, seeds, workers and machines that differ at the end or the beginning."""
    assert len(LONG) == 80 - 2
    return [
        f"{session} {worker} {LONG}{number} seed {seed} {machine}"
        for session in ("f3a1", "f3a2") for worker in ("master", "gw0", "gw1", "gw10")
        for number in (1, 10) for seed in (1, 10, 100) for machine in ("", "sim", "controller", "controller-1")
    ]  # fmt: skip


def test_an_interfaces_name_fits_into_the_kernels_field_and_is_unique() -> None:
    names = [interface_name(label) for label in labels()]
    assert len(set(names)) == len(names) == 192
    assert all(name.isascii() and len(name.encode()) <= 15 for name in names)
    assert all(re.fullmatch("[a-z0-9]+", name) for name in names)
    assert names == [interface_name(label) for label in labels()]


def test_names_of_many_rollouts_do_not_meet() -> None:
    count = 20_000
    assert len({interface_name(f"rollout {number}") for number in range(count)}) == count
    assert len({mac_of(f"rollout {number}") for number in range(count)}) == count


def test_a_hardware_address_is_a_local_one_of_one_machine() -> None:
    addresses = [mac_of(label) for label in labels()]
    assert len(set(addresses)) == len(addresses)
    for address in addresses:
        assert re.fullmatch("02(:[0-9a-f]{2}){5}", address)
        first = int(address[:2], 16)
        assert (first & 1, first & 2) == (0, 2)  # one machine's, and nobody's product


def test_names_are_usable_where_there_is_nothing_to_hash() -> None:
    assert interface_name("") != interface_name(" ")
    assert len(interface_name("")) <= 15
