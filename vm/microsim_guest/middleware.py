"""What ROS 2 and DDS are told of the network, so that nodes find those of their rollout and look for no others.

Isolation does not depend on it: a rollout's network ends at its island. It is a second wall, and without it a node
looks for others where there can be none.
"""

from typing import Dict, Mapping

LOOPBACK, ISLAND = "loopback", "island"
# Releases that know ROS_LOCALHOST_ONLY and not yet ROS_AUTOMATIC_DISCOVERY_RANGE.
OLD_RELEASES = ("foxy", "galactic", "humble")
# Cyclone DDS gives each process on an interface without multicast an index, and asks all that there may be: ten by
# default, which the tenth node finds out.
MOST_PROCESSES = 119

CYCLONE = (
    "<CycloneDDS><Domain Id='any'>"
    "<General><Interfaces><NetworkInterface name='{interface}' multicast='{multicast}'/></Interfaces>"
    "<AllowMulticast>{multicast}</AllowMulticast></General>"
    "<Discovery><ParticipantIndex>auto</ParticipantIndex>"
    "<MaxAutoParticipantIndex>{most}</MaxAutoParticipantIndex>{peers}</Discovery>"
    "</Domain></CycloneDDS>"
)


def environment(scope: str, interface: str, env: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables for one scope.

    Args:
        scope: LOOPBACK: nodes of one machine hear each other. ISLAND: those of all machines of its island do.
        interface: The interface to the island.
        env: What the template sets; its ``ROS_DISTRO`` tells an old release, and whatever it sets wins.
    """
    alone = scope == LOOPBACK
    found = {
        "ROS_DOMAIN_ID": "0",
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST" if alone else "SUBNET",
        "RMW_IMPLEMENTATION": "rmw_fastrtps_cpp",
        "CYCLONEDDS_URI": CYCLONE.format(
            interface="lo" if alone else interface,
            multicast="false" if alone else "true",
            most=MOST_PROCESSES,
            peers="<Peers><Peer Address='localhost'/></Peers>" if alone else "",
        ),
    }
    if env.get("ROS_DISTRO") in OLD_RELEASES:
        found["ROS_LOCALHOST_ONLY"] = "1" if alone else "0"
    return {name: env.get(name, value) for name, value in found.items()}
