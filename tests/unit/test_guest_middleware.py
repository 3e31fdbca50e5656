"""The variables of ROS 2 and DDS: by scope, by release, and what a template sets itself."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from microsim_guest import config
from microsim_guest.middleware import ISLAND, LOOPBACK, OLD_RELEASES, environment


def cyclone(scope: str) -> ElementTree.Element:
    return ElementTree.fromstring(environment(scope, "eth0", {})["CYCLONEDDS_URI"])


def test_alone_a_rollouts_nodes_look_at_their_own_machine_only() -> None:
    found = environment(LOOPBACK, "eth0", {})
    assert found.pop("CYCLONEDDS_URI").startswith("<CycloneDDS>")
    assert found == {
        "ROS_DOMAIN_ID": "0", "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", "RMW_IMPLEMENTATION": "rmw_fastrtps_cpp",
    }  # fmt: skip
    root = cyclone(LOOPBACK)
    interfaces = [each.attrib for each in root.iter("NetworkInterface")]
    assert interfaces == [{"name": "lo", "multicast": "false"}]
    assert [each.text for each in root.iter("AllowMulticast")] == ["false"]
    assert [each.attrib for each in root.iter("Peer")] == [{"Address": "localhost"}]


def test_with_others_they_look_at_their_island() -> None:
    assert environment(ISLAND, "eth0", {})["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "SUBNET"
    root = cyclone(ISLAND)
    assert [each.attrib for each in root.iter("NetworkInterface")] == [{"name": "eth0", "multicast": "true"}]
    assert [each.text for each in root.iter("AllowMulticast")] == ["true"]
    assert list(root.iter("Peer")) == []


@pytest.mark.parametrize("scope", [LOOPBACK, ISLAND])
def test_more_than_ten_participants_have_a_place(scope: str) -> None:
    root = cyclone(scope)
    assert [each.text for each in root.iter("ParticipantIndex")] == ["auto"]
    assert [int(each.text or "") for each in root.iter("MaxAutoParticipantIndex")] == [119]
    assert [each.attrib for each in root.iter("Domain")] == [{"Id": "any"}]


@pytest.mark.parametrize("release", OLD_RELEASES)
@pytest.mark.parametrize(("scope", "value"), [(LOOPBACK, "1"), (ISLAND, "0")])
def test_old_releases_are_told_in_their_own_word(release: str, scope: str, value: str) -> None:
    assert environment(scope, "eth0", {"ROS_DISTRO": release})["ROS_LOCALHOST_ONLY"] == value


@pytest.mark.parametrize("env", [{}, {"ROS_DISTRO": "jazzy"}, {"ROS_DISTRO": "kilted"}, {"ROS_DISTRO": "iron"}])
def test_new_releases_are_not(env: dict[str, str]) -> None:
    assert "ROS_LOCALHOST_ONLY" not in environment(LOOPBACK, "eth0", env)


@pytest.mark.parametrize("name", environment(LOOPBACK, "eth0", {"ROS_DISTRO": "humble"}))
def test_what_a_template_sets_wins_and_nothing_else_changes(name: str) -> None:
    usual = environment(LOOPBACK, "eth0", {"ROS_DISTRO": "humble"})
    assert environment(LOOPBACK, "eth0", {"ROS_DISTRO": "humble", name: "mine"}) == {**usual, name: "mine"}


def test_an_empty_value_is_one_too() -> None:
    assert environment(LOOPBACK, "eth0", {"CYCLONEDDS_URI": ""})["CYCLONEDDS_URI"] == ""


def test_every_process_of_a_guest_has_them() -> None:
    image = {"env": {"ROS_DOMAIN_ID": "7", "ROS_DISTRO": "humble"}}
    alone, together = config.environment(image), config.environment(image, 3, ISLAND)
    assert alone["ROS_DOMAIN_ID"] == together["ROS_DOMAIN_ID"] == "7"
    assert (alone["ROS_LOCALHOST_ONLY"], together["ROS_LOCALHOST_ONLY"]) == ("1", "0")
    assert (alone["ROS_DISTRO"], together["EPISODE_SEED"]) == ("humble", "3")
    assert f"name='{config.INTERFACE}'" in together["CYCLONEDDS_URI"]
