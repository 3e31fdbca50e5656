"""What ``microsim doctor`` finds of networks: the product's own islands, on machines that lack a part each."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from microsim_vm import probes
from microsim_vm.islands import subnets, trials

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only from root can single rights be taken")
# In a process of its own, as each process has one maker.
SCRIPT = (
    "import json; from microsim_vm import probes;"
    "print(json.dumps([[each.name, each.state, each.detail, each.fix] for each in probes._networks()]))"
)
NAMES = ["network", "network of several", "network capture", "subnets"]

Findings = dict[str, list[str]]


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def found(*before: str) -> Findings:
    """Return state, detail and fix of each finding of a process that certain words start."""
    done = subprocess.run([*before, sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    findings = json.loads(done.stdout)
    assert [name for name, *_ in findings] == NAMES
    return {name: rest for name, *rest in findings}


def test_a_machine_that_has_all() -> None:
    findings = {finding.name: finding for finding in probes._networks()}
    assert list(findings) == NAMES
    assert {finding.state for finding in findings.values()} == {"ok"}
    assert {finding.fix for finding in findings.values()} == {""}
    for name in NAMES[:3]:
        assert re.search(r" made in \d+ ms, (as root|in a user namespace)$", findings[name].detail)
    assert "of 16384 subnets of 198.18.0.0/16" in findings["subnets"].detail


@ROOT
def test_a_namespace_without_rights_in_it_is_not_usable() -> None:
    findings = found("setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin")
    for name in NAMES[:3]:
        state, detail, _ = findings[name]
        assert state == "unusable"
        assert detail.startswith("a namespace can be made, and nothing in it: its rights are withheld (")
        assert "Operation not permitted" in detail
    assert findings["subnets"][0] == "ok"


@ROOT
def test_without_the_right_to_make_one_a_user_namespace_serves() -> None:
    findings = found("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    assert [state for state, _, _ in findings.values()] == ["ok"] * 4
    assert findings["network"][1].endswith("in a user namespace")


@ROOT
def test_without_tun_the_rest_is_tried_and_the_module_named() -> None:
    findings = found("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/net && exec "$@"', "sh")
    assert findings["network"] == [
        "missing",
        "/dev/net/tun does not exist: the kernel's module tun is not loaded",
        "sudo modprobe tun",
    ]
    assert [findings[name][0] for name in NAMES[1:]] == ["ok"] * 3
    assert "with a bridge, veths, made in" in findings["network of several"][1]


@ROOT
def test_a_tun_that_may_not_be_opened_is_told_from_rights_withheld() -> None:
    hidden = 'mount -t tmpfs none /dev/net && mknod -m 0 /dev/net/tun c 10 200 && exec setpriv "$@"'
    words = ("--bounding-set=-dac_override", "--inh-caps=-dac_override")
    state, detail, fix = found("unshare", "--mount", "sh", "-c", hidden, "sh", *words)["network"]
    assert (state, fix) == ("unusable", "sudo chmod 0666 /dev/net/tun")
    assert detail.startswith("this user may not use /dev/net/tun")


def test_the_limit_of_namespaces_is_named_and_said_once() -> None:
    limited = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    findings = found("unshare", "--user", "--map-root-user", "sh", "-c", limited, "sh")
    assert findings["network"] == [
        "unusable",
        "there are as many namespaces as user.max_net_namespaces allows: 0",
        "sudo sysctl user.max_net_namespaces=65536",
    ]
    assert [fix for _, _, fix in findings.values()].count(findings["network"][2]) == 1
    assert {state for state, _, _ in findings.values()} == {"unusable"}


def test_a_range_that_is_none_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MICROSIM_SUBNETS", "10.0.0.1/8")
    assert trials.addresses().state == "unusable"
    assert "'10.0.0.1/8' is no range of addresses" in trials.addresses().detail
    monkeypatch.setenv("MICROSIM_SUBNETS", "127.0.0.0/16")
    assert "MICROSIM_SUBNETS: 127.0.0.0/16 has no addresses that a machine can have" in trials.addresses().detail
    monkeypatch.setenv("MICROSIM_SUBNETS", "10.99.0.0/16")
    monkeypatch.setattr(trials.namespaces, "routed", lambda pool: [pool])
    assert trials.addresses() == (
        "unusable",
        "0 of 16384 subnets of 10.99.0.0/16 are free of the host's routes, 0 are taken now",
        "export MICROSIM_SUBNETS=10.213.0.0/16",
    )


POOL = ipaddress.IPv4Network("10.213.0.0/24")


@pytest.mark.parametrize(
    ("routes", "routed"),
    [
        ([], 0),
        (["0.0.0.0/0", "10.0.0.0/7"], 0),
        (["10.0.0.0/8"], 64),
        (["10.213.0.0/25", "10.213.0.64/26"], 32),
        (["10.213.0.5/32", "10.213.0.6/32", "10.213.0.8/31"], 2),
        (["10.214.0.0/24"], 0),
    ],
)
def test_routed_subnets_are_counted_once(routes: list[str], routed: int) -> None:
    found = subnets.usage(POOL, [ipaddress.IPv4Network(route) for route in routes])
    assert found == (64, routed, 0)


def test_taken_subnets_are_counted_whoever_has_them() -> None:
    held = [
        subnets.take(POOL, f"owner {number}", [], machines=machines) for number, machines in enumerate((1, 3, 1, 2))
    ]
    sizes = [each.network.num_addresses // 4 for each in held]
    assert subnets.usage(POOL, []).taken == sum(sizes) == 6
    half = held[1].network.subnets(new_prefix=30)
    assert subnets.usage(next(half), []).taken == 1
    held.pop().close()
    assert subnets.usage(POOL, []).taken == 4
    for each in held:
        each.close()
    assert subnets.usage(POOL, []).taken == 0
