"""Arguments of a new sandbox: refused before anything is baked or written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from microsim_vm import Mount, Options, Sandbox
from microsim_vm.errors import ArgumentError, MicrosimError, VolumeError
from microsim_vm.sandbox import arguments


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl_seconds": "1h"}, {"ttl_seconds": 0}, {"ttl_seconds": -1}, {"ttl_seconds": True},
        {"ttl_seconds": float("nan")}, {"hibernate_after": "5m"}, {"hibernate_after": float("inf")},
        {"metadata": {"seed": 7}}, {"metadata": {1: "x"}}, {"vcpus": 0}, {"vcpus": 65}, {"vcpus": 1.0},
        {"vcpus": True}, {"memory_mib": 10}, {"memory_mib": 100_000}, {"memory_mib": "1G"},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_none_is_refused_and_nothing_is_written(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError) as caught:
        Sandbox.create("cartpole", options=Options(cache_dir=tmp_path / "cache"), **wrong)
    assert isinstance(caught.value, ValueError)
    assert next(iter(wrong)).partition("_")[0] in str(caught.value)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "volumes",
    [{"data": "v"}, {"/": "v"}, {"/a/../b": "v"}, {"/a": "v", "/b": "v"}, {"/a": Mount("v", "/b")}],
    ids=str,
)  # fmt: skip
def test_volumes_have_one_absolute_place_each(volumes: dict[str, Any]) -> None:
    with pytest.raises(VolumeError):
        arguments.mounts(volumes)


def test_volumes_may_say_where_once_or_twice() -> None:
    wanted = {"/a": "one", "/b": Mount("two", read_only=True), "/c": Mount("three", "/c")}
    assert arguments.mounts(wanted) == (Mount("one", "/a"), Mount("two", "/b", True), Mount("three", "/c"))


def test_a_snapshot_brings_its_own_machine(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="alone"):
        Sandbox.create("cartpole", from_snapshot="x", options=Options(cache_dir=tmp_path))
    with pytest.raises(MicrosimError, match="no saved snapshot"):
        Sandbox.create(from_snapshot="x", options=Options(cache_dir=tmp_path))
