#!/usr/bin/env bash
# Run one episode of a controller in the warm world, and write it down.
#
#   EPISODE_SEED=7 rollout.sh
#
# The episode depends on EPISODE_SEED, the world and the controller alone: two forks of one machine that are
# given the same seed write the same bytes.
#
# Environment:
#   EPISODE_SEED   the episode's seed, a whole number. Required: without one, every fork repeats the others.
#   CONTROLLER     the controller's file (default /workspace/controller.py)
#   MAX_STEPS      steps after which the episode is truncated (default 1000, at most 100000)
#   WALL_TIME_S    seconds that the episode may take (default 1200, at most 86400)
#
# Output: /data/episodes/$EPISODE_SEED.jsonl, one line per step and the summary as the last line.
# Exit status: 0 the episode finished, 1 it failed (why is on stderr), 2 it was not started.
set -euo pipefail

refuse() {
    printf 'rollout.sh: %s\n' "$1" >&2
    exit 2
}

whole_number() { # NAME VALUE MOST
    [[ $2 =~ ^[1-9][0-9]{0,5}$ ]] && (($2 <= $3)) || refuse "$1 must be a whole number from 1 to $3, not '$2'"
}

[[ -n ${EPISODE_SEED:-} ]] || refuse "EPISODE_SEED is not set: without a seed, every fork would run the same episode"
[[ $EPISODE_SEED =~ ^(0|[1-9][0-9]{0,199})$ ]] ||
    refuse "EPISODE_SEED must be a whole number, 0 or more, without leading zeros, not '$EPISODE_SEED'"

export EPISODE_SEED
export CONTROLLER=${CONTROLLER:-/workspace/controller.py}
export MAX_STEPS=${MAX_STEPS:-1000}
# Long, because many forks may share few processors. Whoever called this has a limit of its own.
export WALL_TIME_S=${WALL_TIME_S:-1200}
whole_number MAX_STEPS "$MAX_STEPS" 100000
whole_number WALL_TIME_S "$WALL_TIME_S" 86400
[[ -f $CONTROLLER ]] || refuse "there is no controller $CONTROLLER"

# The number of threads changes the order of sums, and with it their last bits.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMEXPR_NUM_THREADS=1

# Derived from the seed as in a rollout of the pytest plugin, so that the order of a set of strings repeats with it.
digest=$(printf '%s:PYTHONHASHSEED' "$EPISODE_SEED" | sha256sum)
export PYTHONHASHSEED=$((16#${digest:6:2}${digest:4:2}${digest:2:2}${digest:0:2}))

# Nothing is rendered.
export MUJOCO_GL=disabled

# Robots that share a network hear each other. The domain is the one that the world was warmed in.
export ROS_DOMAIN_ID=0 ROS_LOCALHOST_ONLY=1 ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST
export CYCLONEDDS_URI="<CycloneDDS><Domain Id='any'><General><Interfaces>\
<NetworkInterface name='lo' multicast='false'/></Interfaces><AllowMulticast>false</AllowMulticast></General>\
<Discovery><ParticipantIndex>auto</ParticipantIndex><MaxAutoParticipantIndex>119</MaxAutoParticipantIndex>\
<Peers><Peer Address='localhost'/></Peers></Discovery></Domain></CycloneDDS>"

PYTHONPATH=/opt/microsim/guest exec python3 -m microsim_guest.simctl episode /data/episodes
