"""What a template says of its network is checked before anything is built, with the line that says it."""

from __future__ import annotations

from pathlib import Path

import pytest
from microsim_vm.islands.policy import Network
from microsim_vm.templates import load_template
from templating import refused, write

MACHINE_NAME = "1 to 31 of a-z, 0-9 and -, starting with a letter, and not sim, gateway or localhost"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with templates that others name as machines: ``other``, ``silent``, ``nest`` and ``heir``."""
    write(tmp_path / "other", "network: island\n")
    write(tmp_path / "silent", "network: none\n")
    write(tmp_path / "nest", "network: island\nmachines: {a: {template: other}}\n")
    write(tmp_path / "heir", "extends: nest\n")
    return tmp_path


def test_a_template_says_what_may_be_reached(folder: Path) -> None:
    text = "network: egress\negress:\n  - maps.example:443\n  - 192.0.2.0/24:80\npublish: [8080, 9090]\n"
    template = load_template(write(folder / "t", text))
    assert template.network_plan == Network("egress", ("maps.example:443", "192.0.2.0/24:80"), (8080, 9090))
    assert load_template(write(folder / "u", "network: none\n")).network_plan == Network("none")


def test_machines_are_templates_of_their_own(folder: Path) -> None:
    template = load_template(
        write(folder / "t", "machines: {controller: {template: other}, b: {template: ../other}}\n")
    )
    assert {name: other.path for name, other in template.others.items()} == {
        "controller": folder / "other/template.yaml", "b": folder / "other/template.yaml",
    }  # fmt: skip
    assert template.network == "island"


@pytest.mark.parametrize("written", ["no", "off", "yes", "No", "false"])
def test_a_policy_that_reads_as_a_boolean_is_to_be_quoted_first(folder: Path, written: str) -> None:
    refused(write(folder / "t", f"env: {{}}\nnetwork: {written}\n"), 3, "a boolean", f'network: "{written}"')


@pytest.mark.parametrize("written", ["''", "bridge", "Island", '"no"', "islands"])
def test_a_policy_is_one_of_three(folder: Path, written: str) -> None:
    refused(write(folder / "t", f"env: {{}}\nnetwork: {written}\n"), 3, "network", "or none", "island", "egress")


@pytest.mark.parametrize("written", ["[island]", "{island: 1}"])
def test_a_policy_is_text(folder: Path, written: str) -> None:
    refused(write(folder / "t", f"network: {written}\n"), 2, "network must be text")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("egress: [a:1]\n", 2, ["egress is written, and network is island", "write network: egress"]),
        ("network: none\negress: [a:1]\n", 3, ["egress is written, and network is none", "write network: egress"]),
        ("network: none\npublish: [80]\n", 3, ["publish is written, and network is none", "write network: island"]),
        ("network: none\nmachines: {a: {template: other}}\n", 3, ["machines is written, and network is none"]),
    ],
)  # fmt: skip
def test_what_the_policy_leaves_no_place_for(folder: Path, text: str, line: int, words: list[str]) -> None:
    refused(write(folder / "t", text), line, *words)


@pytest.mark.parametrize(
    "name", ["sim", "gateway", "localhost", "A", "a_b", "2a", "-a", "a" * 32, "02-00", "'02:0:0:0:0:1'"]
)
def test_a_machines_name_is_one_that_a_host_may_have(folder: Path, name: str) -> None:
    refused(
        write(folder / "t", f"machines:\n  b: {{template: other}}\n  {name}: {{template: other}}\n"), 4, MACHINE_NAME
    )


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ("{}", ["machines.a has no template"]),
        ("other", ["machines.a must be a mapping"]),
        ("{template: missing}", ["machine 'a': there is no template 'missing'"]),
        ("{template: ../missing}", ["machine 'a': there is no file"]),
        ("{template: nest}", ["machine 'a' has machines of its own", "nest/template.yaml", "list them all in one"]),
        ("{template: heir}", ["machine 'a' has machines of its own", "heir/template.yaml"]),
        ("{template: ../t}", ["machine 'a' has machines of its own", "t/template.yaml"]),
        ("{template: other, memory: 5}", ["unknown key 'memory' in machines.a"]),
    ],
)  # fmt: skip
def test_a_machine_that_is_none(folder: Path, machine: str, words: list[str]) -> None:
    refused(write(folder / "t", f"machines:\n  a: {machine}\n"), 3, *words)


def test_a_machine_that_inherits_this_very_template_is_refused_and_not_loaded_for_ever(folder: Path) -> None:
    write(folder / "child", "extends: t\n")
    refused(write(folder / "t", "machines:\n  a: {template: child}\n"), 3, "machines of its own", "child/template.yaml")


def test_a_machine_without_a_network(folder: Path) -> None:
    path = write(folder / "t", "env: {}\nmachines:\n  a: {template: silent}\n")
    refused(path, 3, "machine 'a' has no network", "silent/template.yaml", "write network: island there")


def test_controllers_run_in_a_machine_that_there_is(folder: Path) -> None:
    text = "machines: {pilot: {template: other}}\ncontroller:\n  memory_mib: 64\n  machine: "
    template = load_template(write(folder / "t", text + "pilot\n"))
    assert (template.controller.machine, template.controller.memory_mib) == ("pilot", 64)
    plain = load_template(write(folder / "1/t", "controller: {memory_mib: 128}\n"))
    assert (plain.controller.machine, plain.canonical()) == (None, template.canonical())
    heir = load_template(write(folder / "u", "extends: t\ncontroller: {cpu_s: 1}\n"))
    assert (heir.controller.machine, list(heir.others)) == ("pilot", ["pilot"])
    refused(write(folder / "v", text + "pilots\n"), 5, "a machine 'pilots', and there is none", 'mean "pilot"?')
    refused(write(folder / "w", text + "sim\n"), 5, MACHINE_NAME)
    refused(write(folder / "x", "controller: {machine: pilot}\n"), 2, "and there is none", "or leave it out")


@pytest.mark.parametrize(("key", "value"), [("readable", "[/opt/lib]"), ("network", "guest")])
def test_what_controllers_see_is_said_by_the_template_of_their_machine(folder: Path, key: str, value: str) -> None:
    text = f"machines: {{pilot: {{template: other}}}}\ncontroller:\n  machine: pilot\n  {key}: {value}\n"
    refused(write(folder / "t", text), 5, f"controller.{key} is written", "machine 'pilot'", "other/template.yaml")


@pytest.mark.parametrize("name", ["gateway", "localhost", "sim", "controller", "Controller"])
def test_a_destination_on_the_island_itself(folder: Path, name: str) -> None:
    text = f"network: egress\nmachines: {{controller: {{template: other}}}}\negress:\n  - a.example:1\n  - {name}:80\n"
    refused(write(folder / "t", text), 6, f"egress names {name.lower()!r}, which is on the island itself")


@pytest.mark.parametrize("written", ["a", "a:0", "a:70000", "'::1:80'", "10.0.0.1/24:80", "a..b:80", "'a b:80'"])
def test_a_destination_that_is_none(folder: Path, written: str) -> None:
    text = f"network: egress\negress:\n  - b:1\n  - {written}\n"
    refused(write(folder / "t", text), 5, "egress[1]", "is not a destination", '"network/bits:port", IPv4 only')


@pytest.mark.parametrize("written", ["0", "65536", "-1", "http", "8e1", "'80'"])
def test_a_published_port_that_is_none(folder: Path, written: str) -> None:
    refused(write(folder / "t", f"publish:\n  - {written}\n"), 3, "publish[0] must be a whole number from 1 to 65535")


def test_the_image_depends_on_whether_there_is_a_network_and_on_nothing_else_of_it(folder: Path) -> None:
    def canonical(number: int, text: str) -> bytes:
        return load_template(write(folder / f"{number}" / "t", text)).canonical()

    write(folder / "1/other", "network: island\n")
    island = canonical(0, "network: island\n")
    more = canonical(1, "network: egress\negress: [a:1]\npublish: [80]\nmachines: {b: {template: other}}\n")
    assert island == more
    assert island != canonical(2, "network: none\n")


def test_a_port_is_published_once(folder: Path) -> None:
    refused(write(folder / "t", "publish:\n  - 80\n  - 81\n  - 80\n"), 5, "port '80' is there twice", "line 3")


@pytest.mark.parametrize("number", ["102", "214", "233", "-1", "7x", "1000"])
def test_a_domain_among_the_ports_of_others_is_refused(folder: Path, number: str) -> None:
    text = f'env:\n  A: b\n  ROS_DOMAIN_ID: "{number}"\n'
    refused(write(folder / "t", text), 4, number, "Linux gives to anybody", "domain 0")


@pytest.mark.parametrize("number", ["0", "101", "215", "232"])
def test_a_domain_with_ports_of_its_own_is_accepted(folder: Path, number: str) -> None:
    template = load_template(write(folder / "t", f'env: {{ROS_DOMAIN_ID: "{number}"}}\n'))
    assert template.env["ROS_DOMAIN_ID"] == number
