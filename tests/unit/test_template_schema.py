"""The schema: unknown keys, wrong shapes, defaults, and the fields that have checks of their own."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from microsim_vm.errors import UnsupportedWorldError
from microsim_vm.templates import load_template
from microsim_vm.templates.spec import ControllerLimits, MachineShape
from templating import refused, write


def test_defaults(tmp_path: Path):
    template = load_template(write(tmp_path / "t", ""))
    assert template.name == "t"
    assert (template.base.suite, template.base.packages, template.base.python_version) == (
        "bookworm",
        ("python3",),
        "3.11",
    )
    assert template.machine == MachineShape(vcpus=1, memory_mib=512)
    assert template.controller == ControllerLimits(wall_time_s=120.0, memory_mib=256, processes=32, output_bytes=65536)
    assert template.kernel.package == "linux-image-cloud-amd64"
    assert (template.world, template.processes, template.network) == (None, (), "island")
    assert template.warmup_timeout_s == 300.0
    assert template.path == tmp_path / "t/template.yaml"
    assert template.lock_path == tmp_path / "t/template.lock"
    assert template.world_folders == (tmp_path / "t",)


def test_a_template_survives_pickling(tmp_path: Path):
    template = load_template(write(tmp_path / "t", "env: {A: b}\n"))
    assert pickle.loads(pickle.dumps(template)) == template


def test_python3_is_always_among_the_packages(tmp_path: Path):
    one = load_template(write(tmp_path / "t", "base: {packages: [libgl1]}\n"))
    assert one.base.packages == ("python3", "libgl1")
    two = load_template(write(tmp_path / "t", "base: {packages: [python3, libgl1]}\n"))
    assert one.canonical() == two.canonical()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("machin: {}\n", 2, ["unknown key 'machin'", 'did you mean "machine"?', "valid keys:", "controller"]),
        (
            "machine:\n  memory: 5\n",
            3,
            ["unknown key 'memory' in machine", '"memory_mib"', "memory_mib, vcpus"],
        ),
        ("base: {suit: bookworm}\n", 2, ["unknown key 'suit' in base", '"suite"', "packages, suite"]),
        ("python: {requirement: []}\n", 2, ["in python", '"requirements"']),
        ("kernel: {pakage: x}\n", 2, ["in kernel", '"package"']),
        ("world: {factroy: world:make}\n", 2, ["in world", '"factory"', "factory, gymnasium, kwargs"]),
        ("controller: {wall_time: 1}\n", 2, ["in controller", '"wall_time_s"']),
        ("files:\n  - source: a\n    destination: /b\n", 4, ["in files[0]", "mode, source, target"]),
        ("processes:\n  - name: a\n    comand: b\n", 4, ["in processes[0]", '"command"']),
        ("path: /x\n", 2, ["unknown key 'path'"]),
        ("world_folders: []\n", 2, ["unknown key 'world_folders'"]),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_and_all_valid_ones(
    tmp_path: Path, text: str, line: int, words: list[str]
):
    refused(write(tmp_path / "t", text), line, *words)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("machine: [1]\n", 2, ["machine must be a mapping, not a list"]),
        ("env: [A=b]\n", 2, ["env must be a mapping, not a list"]),
        ("env: {A: [b]}\n", 2, ["env.A must be text, not a list"]),
        ("env: {1A: b}\n", 2, ["key '1A' of env", "not starting with a digit"]),
        ("env:\n  A=B: c\n", 3, ["key 'A=B' of env", "letters, digits"]),
        ("files: /a\n", 2, ["files must be a list, not /a"]),
        ("files: {source: a}\n", 2, ["files must be a list, not a mapping"]),
        ("files:\n  - a\n", 3, ["files[0] must be a mapping, not a"]),
        ("files:\n  - source: ./world.py\n", 3, ["files[0] has no target", "add target"]),
        ("processes:\n  - name: sim\n    command: sleep 1\n", 3, ["processes[0] has no readiness"]),
        ("processes:\n  - {name: sim, command: [], readiness: x}\n", 3, ["processes[0].command is empty"]),
        (
            'processes:\n  - {name: sim, command: "", readiness: x}\n',
            3,
            ["processes[0].command", "must be text"],
        ),
        ("processes:\n  - {name: Sim!, command: x, readiness: x}\n", 3, ["processes[0].name", "a-z"]),
        (
            "processes:\n  - {name: a, command: x, readiness: x}\n  - {name: a, command: y, readiness: y}\n",
            4,
            ["process 'a'", "twice", "line 3"],
        ),
        ("base: {suite: trixie}\n", 2, ["'trixie'", "not supported", "write bookworm"]),
        ("base: {packages: [Python3]}\n", 2, ["'Python3'", "bare name"]),
        ("base: {packages: [python3=3.11.2-1]}\n", 2, ["bare name", "template.lock"]),
        ("kernel: {package: vmlinuz}\n", 2, ["kernel.package", "linux-image-"]),
        ("network: bridge\n", 2, ["'bridge'", "write island"]),
    ],
)
def test_a_wrong_value_is_refused_with_its_line(tmp_path: Path, text: str, line: int, words: list[str]):
    refused(write(tmp_path / "t", text), line, *words)


def test_the_name_is_the_folders(tmp_path: Path):
    refused(write(tmp_path / "t", "name: u\n"), 1, "'u'", "folder 't'", "write name: t")
    refused(write(tmp_path / "Big", "name: Big\n"), 1, '"Big"', "a-z")
    path = tmp_path / "u/template.yaml"
    path.parent.mkdir()
    path.write_text("\ndescription: x\n")
    refused(path, 2, "no name", "add name: u")
    path = write(tmp_path / ("x" * 64), "")
    refused(path, 1, "1 to 63")


def test_commands_are_a_line_or_a_list(tmp_path: Path):
    text = "processes:\n  - {name: sim, command: [sleep, inf], readiness: test -e /run/ready}\n"
    process = load_template(write(tmp_path / "t", text)).processes[0]
    assert process.command == ("sleep", "inf")
    assert process.readiness == "test -e /run/ready"


@pytest.mark.parametrize(
    ("world", "line", "words"),
    [
        ("{}", 2, ["world has no factory", "gymnasium"]),
        ("{kwargs: {a: 1}}", 2, ["world has no factory"]),
        (
            "{factory: world:make, gymnasium: Pendulum-v1}",
            2,
            ["both a factory and a gymnasium id", "keep one"],
        ),
        ("{factory: world.make}", 2, ["'world.make'", "module:callable"]),
        ('{factory: "world:"}', 2, ["module:callable"]),
        (
            "{factory: wolrd:make}",
            2,
            ["no module 'wolrd'", 'did you mean "world"?', "wolrd.py beside template.yaml"],
        ),
        ("{factory: simulators.arm:make}", 2, ["no module 'simulators.arm'", "simulators/arm.py"]),
        ("{gymnasium: Pendulum}", 2, ["Gymnasium id", "Pendulum-v1"]),
        (
            "{gymnasium: Pendulum-v1}",
            2,
            ["needs gymnasium", "python.requirements is empty", "gymnasium==VERSION"],
        ),
    ],
)
def test_a_world_is_one_factory_or_one_gymnasium_id(tmp_path: Path, world: str, line: int, words: list[str]):
    refused(write(tmp_path / "t", f"world: {world}\n"), line, *words)


@pytest.mark.parametrize("file", ["arm/world.py", "arm/world/__init__.py"])
def test_the_factory_may_be_in_a_package(tmp_path: Path, file: str):
    path = write(tmp_path / "t", "world: {factory: arm.world:make}\n", world=False)
    (path.parent / file).parent.mkdir(parents=True)
    (path.parent / file).write_text("")
    assert load_template(path).world is not None


@pytest.mark.parametrize("identifier", ["Pendulum-v1", "ALE/Pong-v5", "my_envs:Robot-v0", "phys2d/CartPole-v1"])
def test_gymnasium_ids(tmp_path: Path, identifier: str):
    text = f'world: {{gymnasium: "{identifier}"}}\npython: {{requirements: ["gymnasium==1.2.0"]}}\n'
    world = load_template(write(tmp_path / "t", text)).world
    assert world is not None
    assert world.gymnasium == identifier


@pytest.mark.parametrize(
    "pin",
    [
        "numpy==2.4.6",
        "gymnasium[mujoco]==1.2.0",
        "numpy == 2.4.6",
        "torch==2.4.0+cpu",
        'tomli==2.0.1; python_version < "3.11"',
        "mujoco==3.3.0",
    ],
)
def test_pinned_requirements_are_kept_as_written(tmp_path: Path, pin: str):
    template = load_template(write(tmp_path / "t", f"python:\n  requirements: ['{pin}']\n"))
    assert template.python.requirements == (pin,)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("numpy", ["not pinned", '"numpy==VERSION"']),
        ("numpy>=2.0", ["not pinned", '"numpy==2.0"']),
        ("numpy==2.*", ["not pinned", '"numpy==2"']),
        ("numpy===2.0", ["not pinned", '"numpy==2.0"']),
        ("numpy==2.0,!=2.1", ["not pinned", "==2.0"]),
        ("gymnasium[mujoco]~=1.2", ["not pinned", '"gymnasium[mujoco]==1.2"']),
        ("robot @ https://example.org/robot.whl", ["address", '"robot==VERSION"']),
        ("https://example.org/robot.whl", ["not a Python requirement"]),
        ("./robot", ["not a Python requirement"]),
        ("-r requirements.txt", ["pip options"]),
        ("--index-url https://example.org", ["pip options"]),
        ("", ["not a Python requirement"]),
    ],
)
def test_other_requirements_are_refused_with_the_pin_to_write(tmp_path: Path, written: str, words: list[str]):
    path = write(tmp_path / "t", f'python:\n  requirements:\n    - "{written}"\n')
    refused(path, 4, "python.requirements[0]", *words)


def test_a_package_pinned_twice_is_refused(tmp_path: Path):
    path = write(tmp_path / "t", "python:\n  requirements:\n    - my_pkg==1.0\n    - My-Pkg==2.0\n")
    refused(path, 5, "'my-pkg'", "twice", "line 4")
    both = 'python:\n  requirements:\n    - a==1; python_version<"3.11"\n    - a==2; python_version>="3.11"\n'
    assert len(load_template(write(tmp_path / "t", both)).python.requirements) == 2


@pytest.mark.parametrize(
    "pin",
    [
        "isaacsim==4.5.0",
        "isaacsim-rl==4.5.0",
        "isaaclab==2.0",
        "isaacgym==1.0",
        "nvidia-cublas-cu12==12.1",
        "cupy-cuda12x==13.0",
        "jax[cuda12]==0.4.30",
        "torch==2.4.0+cu121",
        "warp-lang==1.5",
        "mujoco-mjx==3.3.0",
        "mujoco_warp==0.1",
        "Brax==0.12",
        "carla==0.9.15",
        "habitat_sim==0.3",
        "genesis-world==0.2",
        "unrealcv==1.0",
        "pyserial==3.5",
        "pyusb==1.2",
        "pyrealsense2==2.55",
        "isaacsim",
    ],
)
def test_gpus_photoreal_renderers_and_hardware_are_out_of_scope(tmp_path: Path, pin: str):
    path = write(tmp_path / "t", f'python:\n  requirements:\n    - "{pin}"\n')
    error = refused(
        path,
        4,
        pin,
        "GPU physics, photoreal rendering and hardware in the loop are out of scope",
        kind=UnsupportedWorldError,
    )
    assert error.hint.startswith("use a CPU simulator") or error.hint.startswith("replace the device")


@pytest.mark.parametrize(
    "text",
    [
        "world: {gymnasium: Isaac-Cartpole-v0}\n",
        "base: {packages: [nvidia-driver]}\n",
        "base: {packages: [libcuda1]}\n",
        "processes: [{name: a, command: ./CarlaUE4.sh -opengl, readiness: x}]\n",
        "processes: [{name: a, command: [/isaac-sim/isaac-sim.sh], readiness: x}]\n",
    ],
)
def test_worlds_that_are_out_of_scope_elsewhere(tmp_path: Path, text: str):
    refused(write(tmp_path / "t", text), 2, "out of scope", "CPU simulator", kind=UnsupportedWorldError)


def test_jax_for_the_cpu_is_fine(tmp_path: Path):
    template = load_template(write(tmp_path / "t", 'python: {requirements: ["jax[cpu]==0.4.30"]}\n'))
    assert template.python.requirements == ("jax[cpu]==0.4.30",)
