"""Flags and ini settings, and which of them wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_microsim.settings import read_settings


def test_nothing_set_means_auto_and_no_header(pytester: pytest.Pytester) -> None:
    settings = read_settings(pytester.parseconfig())
    assert (settings.world, settings.seeds, settings.cache_dir, settings.templates) == (None, None, None, ())
    assert (settings.engine, settings.accel, settings.isolation, settings.locked) == (
        "auto",
        "auto",
        "emulated",
        False,
    )
    assert settings.header() is None
    assert (settings.subnets, settings.pcap) == ("", None)
    options = settings.vm_options("s")
    assert (options.subnets, options.capture) == ("", False)


def test_the_ini_file_chooses_and_its_paths_are_its_own(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        """
        [pytest]
        microsim_world = warehouse
        microsim_templates = worlds "more worlds"
        microsim_cache_dir = keep/here
        microsim_engine = qemu
        microsim_accel = tcg
        microsim_isolation = sandbox
        microsim_subnets = 10.213.0.0/16
        """
    )
    below = pytester.mkdir("below")
    pytester.chdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(below)
        settings = read_settings(pytester.parseconfig("--rootdir", pytester.path, "-c", pytester.path / "tox.ini"))
    assert settings.world == "warehouse"
    assert settings.world_source == "the ini setting microsim_world"
    assert settings.templates == (pytester.path / "worlds", pytester.path / "more worlds")
    assert settings.cache_dir == pytester.path / "keep/here"
    assert (settings.engine, settings.accel, settings.isolation) == ("qemu", "tcg", "sandbox")
    assert settings.subnets == "10.213.0.0/16"
    assert settings.replay_flags == ()
    assert settings.header() == (
        "microsim: world warehouse (from the ini setting microsim_world), engine qemu, accel tcg, "
        "isolation at least sandbox"
    )


def test_the_command_line_wins_over_the_ini_file(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        "[pytest]\nmicrosim_world = warehouse\nmicrosim_accel = kvm\nmicrosim_templates = b\nmicrosim_cache_dir = x\n"
        "microsim_subnets = 10.213.0.0/16"
    )
    settings = read_settings(
        pytester.parseconfig(
            "--microsim-world=cart pole",
            "--microsim-accel=tcg",
            "--microsim-templates=a",
            "--microsim-seeds=0:4",
            "--microsim-cache-dir=y",
            "--microsim-subnets=10.214.0.0/16",
            "--microsim-pcap=frames",
            "--microsim-locked",
        )
    )
    here = pytester.path
    assert (settings.world, settings.world_source) == ("cart pole", "--microsim-world")
    assert settings.accel == "tcg"
    assert settings.templates == (here / "a", here / "b")
    assert settings.cache_dir == here / "y"
    assert settings.seeds == (0, 1, 2, 3)
    assert (settings.subnets, settings.pcap) == ("10.214.0.0/16", here / "frames")
    options = settings.vm_options("s")
    assert (options.subnets, options.capture) == ("10.214.0.0/16", True)
    assert settings.replay_flags == (
        *("--microsim-world", "'cart pole'"),
        *("--microsim-templates", str(here / "a")),
        *("--microsim-seeds", "0:4"),
        *("--microsim-accel", "tcg"),
        *("--microsim-cache-dir", str(here / "y")),
        *("--microsim-subnets", "10.214.0.0/16"),
        *("--microsim-pcap", str(here / "frames")),
        "--microsim-locked",
    )


def test_a_home_directory_is_expanded(pytester: pytest.Pytester) -> None:
    settings = read_settings(pytester.parseconfig("--microsim-cache-dir=~/c"))
    assert settings.cache_dir == Path.home() / "c"


def test_an_impossible_ini_value_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmicrosim_isolation = strong")
    with pytest.raises(pytest.UsageError, match="microsim_isolation is 'strong'; it can be hardware, sandbox"):
        read_settings(pytester.parseconfig())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("10.213.0.0/33", "is no range of addresses"),
        ("10.213.0.1/16", "has host bits set"),
        ("fd00::/64", "is no range of addresses"),
        ("10.213.0.0/31", "10.213.0.0/31 has no room for an island"),
        ("many", "'many' is no range of addresses"),
    ],
)
def test_what_is_no_range_of_addresses_is_refused_with_the_reason(
    pytester: pytest.Pytester, text: str, words: str
) -> None:
    with pytest.raises(pytest.UsageError, match=rf"--microsim-subnets: .*{words}"):
        read_settings(pytester.parseconfig(f"--microsim-subnets={text}"))
    pytester.makeini(f"[pytest]\nmicrosim_subnets = {text}")
    with pytest.raises(pytest.UsageError, match=rf"tox.ini: microsim_subnets: .*{words}"):
        read_settings(pytester.parseconfig())


@pytest.mark.parametrize("flag", ["--microsim-seeds=-1", "--microsim-seeds=5:5", "--microsim-engine=vmware"])
def test_impossible_flags_are_refused(pytester: pytest.Pytester, flag: str) -> None:
    with pytest.raises(pytest.UsageError):
        pytester.parseconfig(flag)
