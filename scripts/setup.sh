#!/bin/sh
# Install what is missing: system packages (apt-get), a virtual environment in .venv, this project in it.
# Runs in a second when everything is there.
set -eu
cd "$(dirname "$0")/.."

say() { echo "setup: $*"; }

# Program to look for, and the package that brings it.
missing=
need() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || missing="$missing $2"; }
need qemu-system-x86_64 qemu-system-x86
need mmdebstrap mmdebstrap
need mkfs.erofs erofs-utils
need mkfs.ext4 e2fsprogs
need cpio cpio
need dpkg-deb dpkg
need setpriv util-linux
need python3 python3
command -v google-chrome >/dev/null 2>&1 || need chromium chromium
[ "$(id -u)" = 0 ] || need newuidmap uidmap
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing="$missing debian-archive-keyring"

# Without it guests are emulated where there is no KVM. It needs root, and not every release of Ubuntu has the package.
wanted=
[ "$(id -u)" != 0 ] || command -v runsc >/dev/null 2>&1 || [ -e .venv/.without-runsc ] || wanted=runsc

python=${PYTHON:-python3}
if [ ! -x .venv/bin/python ] && command -v "$python" >/dev/null 2>&1; then
    "$python" -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
fi

if [ -n "$missing$wanted" ]; then
    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    export DEBIAN_FRONTEND=noninteractive
    say "reading the lists of packages"
    $sudo apt-get update -q || [ -z "$missing" ]
    [ -z "$wanted" ] || ! apt-cache show "$wanted" >/dev/null 2>&1 || missing="$missing $wanted"
fi
if [ -n "$missing" ]; then
    say "installing system packages:$missing"
    # shellcheck disable=SC2086  # a list of package names
    $sudo apt-get install -q -y --no-install-recommends $missing
fi

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    say "$("$python" --version) is too old: Python 3.11 or later is needed (set PYTHON=/path/to/python3.11)"
    exit 1
fi

if [ ! -x .venv/bin/python ]; then
    say "creating a virtual environment in .venv"
    "$python" -m venv .venv
fi
command -v runsc >/dev/null 2>&1 || touch .venv/.without-runsc
stamp=.venv/.installed
want=$(sha256sum pyproject.toml)
if [ "$(cat $stamp 2>/dev/null)" != "$want" ]; then
    say "installing pytest-microsim and its development tools into .venv"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev,worlds]'
    echo "$want" >$stamp
fi
