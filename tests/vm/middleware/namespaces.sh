#!/bin/sh
# Two nodes on the host's kernel, "left" and "right", each in a network namespace, with an image's root file system.
# They run until each has heard the other, or for so many seconds after each has heard itself; then both say what they
# have heard.
#
#   unshare --net --mount --pid --fork --kill-child namespaces.sh ROOT NODES NETWORK MEMORY SECONDS NAME=VALUE...
#
# NETWORK is "joined" (by a bridge) or "apart" (loopbacks alone), MEMORY "shared" or "private": /dev/shm.
set -eu
root=$1 nodes=$2 network=$3 memory=$4 seconds=$5
shift 5

mount -t tmpfs tmpfs /run
mkdir /run/shm
mount -t tmpfs tmpfs /run/shm

for side in left right; do
    ip netns add $side
    ip -n $side link set lo up
    ip -n $side route add 224.0.0.0/4 dev lo
done
if [ "$network" = joined ]; then
    ip link add name bridge up type bridge mcast_snooping 0
    for side in left right; do
        [ $side = left ] && address=10.0.0.1/24 || address=10.0.0.2/24
        ip -n $side link add name eth0 type veth peer name $side netns $$
        ip link set $side up master bridge
        ip -n $side address add $address dev eth0
        ip -n $side link set eth0 up multicast on
        ip -n $side route replace 224.0.0.0/4 dev eth0
    done
    # Fast DDS looks at its interfaces once, and takes none that is not running.
    for side in left right; do
        until ip -n $side link show eth0 | grep -q "state UP"; do sleep 0.05; done
    done
fi

for side in left right; do
    place=/run/root.$side
    mkdir "$place"
    mount --bind "$root" "$place"
    mount -o remount,bind,ro "$place"
    mount -t proc proc "$place/proc"
    mount -t tmpfs tmpfs "$place/tmp"
    mount -t tmpfs tmpfs "$place/dev"
    mkdir "$place/dev/shm"
    for device in null urandom; do
        touch "$place/dev/$device"
        mount --bind /dev/$device "$place/dev/$device"
    done
    [ "$memory" = shared ] && mount --bind /run/shm "$place/dev/shm" || mount -t tmpfs tmpfs "$place/dev/shm"
    cp "$nodes" "$place/tmp/nodes.py"
    ip netns exec $side chroot "$place" /usr/bin/env -i HOME=/tmp "$@" \
        /opt/venv/bin/python3 /tmp/nodes.py $side >/run/$side.log 2>&1 &
    echo $! >/run/$side.pid
done

await() { # SECONDS COMMAND...: wait for the command to succeed
    left=$(($1 * 20))
    shift
    until "$@"; do
        left=$((left - 1))
        [ $left -gt 0 ] || return 0
        sleep 0.05
    done
}
both() { grep -q "$1" /run/left.log && grep -q "$2" /run/right.log; }
await 30 both "left hears left" "right hears right"
await "$seconds" both "left hears right" "right hears left"
kill "$(cat /run/left.pid)" "$(cat /run/right.pid)"
wait
cat /run/left.log /run/right.log
