#!/usr/bin/env bash
# Load a world into this machine, so that a snapshot of it has the world at step zero.
#
#   warmup.sh --world NAME
#
# NAME is a folder of /opt/sim/worlds. A machine holds one world; asking for the loaded one again is no error.
# Exit status: 0 loaded, 1 the world failed, 2 asked for wrongly.
set -euo pipefail

worlds=/opt/sim/worlds

refuse() {
    printf 'warmup.sh: %s\nworlds: %s\n' "$1" "$(cd "$worlds" && echo *)" >&2
    exit 2
}

world=
while (($#)); do
    case $1 in
        --world)
            (($# > 1)) || refuse "--world needs a name"
            world=$2
            shift 2
            ;;
        --world=*)
            world=${1#*=}
            shift
            ;;
        *) refuse "unknown option '$1'" ;;
    esac
done
[[ -n $world ]] || refuse "no world is named: warmup.sh --world NAME"
[[ $world != */* && $world != .* && -f $worlds/$world/world.json ]] || refuse "there is no world '$world'"

PYTHONPATH=/opt/microsim/guest exec python3 -m microsim_guest.simctl load "$world" "$worlds/$world"
