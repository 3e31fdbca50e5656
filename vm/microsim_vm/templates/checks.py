"""Checks of single values of a template: each takes the text as written and raises :class:`Complaint`."""

from __future__ import annotations

import posixpath
import re
from typing import get_args

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from microsim_vm import wallclock
from microsim_vm.islands.policy import Policy, destinations

# Debian suite -> the Python its `python3` package brings; wheels are chosen for it.
SUITES = {"bookworm": "3.11"}

# Guest paths that the bake or the guest's init own: a file written there would be lost or break the guest.
RESERVED = ("/opt/microsim", "/opt/venv", "/proc", "/sys", "/dev", "/run")

# Debian has links at these places; a folder laid over a link would hide everything behind it.
_LINKED = {
    "/bin": "/usr/bin",
    "/sbin": "/usr/sbin",
    "/lib": "/usr/lib",
    "/lib32": "/usr/lib32",
    "/lib64": "/usr/lib64",
    "/libx32": "/usr/libx32",
    "/var/run": "/opt/data",
    "/var/lock": "/opt/data",
}

OUT_OF_SCOPE = "GPU physics, photoreal rendering and hardware in the loop are out of scope of pytest-microsim"

_GPU = "it needs a GPU"
_PHOTOREAL = "it is a photoreal renderer, which needs a GPU"
_HARDWARE = "it talks to real hardware, which a microVM does not have"
_GPU_INSTEAD = "use a CPU simulator (MuJoCo, PyBullet, Gymnasium's own worlds) or a CPU-only build"
_HARDWARE_INSTEAD = "replace the device by a simulated one behind the same Python interface"

# Canonical distribution name (a trailing * stands for any ending) -> why it cannot work here.
_UNSUPPORTED = {
    "isaacsim*": _PHOTOREAL,
    "isaaclab*": _PHOTOREAL,
    "isaacgym*": _GPU,
    "omniverse*": _PHOTOREAL,
    "nvidia-*": _GPU,
    "cupy*": _GPU,
    "pycuda": _GPU,
    "cuda-python": _GPU,
    "tensorflow-gpu": _GPU,
    "onnxruntime-gpu": _GPU,
    "warp-lang": _GPU,
    "mujoco-mjx": _GPU,
    "mujoco-warp": _GPU,
    "brax": _GPU,
    "genesis-world": _GPU,
    "carla": _PHOTOREAL,
    "airsim": _PHOTOREAL,
    "unrealcv": _PHOTOREAL,
    "unreal*": _PHOTOREAL,
    "habitat-sim*": _PHOTOREAL,
    "pyserial": _HARDWARE,
    "pyusb": _HARDWARE,
    "libusb1": _HARDWARE,
    "hidapi": _HARDWARE,
    "pyrealsense2*": _HARDWARE,
    "depthai": _HARDWARE,
    "rpi-gpio": _HARDWARE,
    "gpiozero": _HARDWARE,
    "spidev": _HARDWARE,
    "smbus2": _HARDWARE,
    "unitree-sdk2py": _HARDWARE,
    "ur-rtde": _HARDWARE,
}
_GPU_EXTRA = re.compile(r"(and-)?(cuda|rocm|tpu|gpu)", re.ASCII)
_GPU_LOCAL_VERSION = re.compile(r"==\s*[^;,\s+]+\+(cu|rocm|xpu)", re.ASCII)
_GPU_DEBIAN = re.compile(r"(nvidia-|libnvidia-|libcuda|cuda-|libcudart)", re.ASCII)
_PHOTOREAL_COMMAND = re.compile(r"(^|[/\s])(CarlaU[EN]\w*|isaac-sim|isaaclab|UnrealEditor|UE4Editor)", re.ASCII)


class Complaint(ValueError):
    """A value that cannot be used; whoever knows the file and line turns it into a ``TemplateError``.

    Args:
        what: What is wrong, without file and line.
        hint: What to write instead.
        unsupported: True where the world is out of scope, rather than badly written.
    """

    def __init__(self, what: str, hint: str = "", *, unsupported: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.unsupported = unsupported


def requirement(text: str) -> None:
    """Accept one pinned Python requirement: ``name[extras]==version``, with an environment marker or not."""
    if text.lstrip().startswith("-"):
        raise Complaint(
            f"pip options such as {text!r} are not allowed in requirements",
            'write each package as a pin of its own: "numpy==2.4.6"',
        )
    try:
        parsed = Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise Complaint(
            f"{text!r} is not a Python requirement: {reason}", 'write a name and a pin: "numpy==2.4.6"'
        ) from None
    _supported(text, parsed)
    extras = f"[{','.join(sorted(parsed.extras))}]" if parsed.extras else ""
    if parsed.url is not None:
        raise Complaint(
            f"requirement {text!r} is an address, which is not pinned",
            f'write "{parsed.name}{extras}==VERSION", or put the package beside template.yaml',
        )
    pins = list(parsed.specifier)
    if len(pins) != 1 or pins[0].operator != "==" or pins[0].version.endswith(".*"):
        version = next((pin.version.removesuffix(".*") for pin in pins if pin.version[:1].isdigit()), "VERSION")
        raise Complaint(
            f"requirement {text!r} is not pinned to one version",
            f'pin it with ==: "{parsed.name}{extras}=={version}" (the version you tested with)',
        )


def python_package(text: str) -> None:
    """Accept the plain name of a Python package."""
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", text):
        raise Complaint(f"{text!r} is not the name of a Python package", "write the bare name, without a version")


def requirement_key(text: str) -> tuple[str, str]:
    """Return what two requirements may not share: the package's canonical name and the marker."""
    parsed = Requirement(text)
    return canonicalize_name(parsed.name), str(parsed.marker or "")


def _supported(text: str, parsed: Requirement) -> None:
    name = canonicalize_name(parsed.name)
    reason = next(
        (why for known, why in _UNSUPPORTED.items() if name == known or _starts(name, known)),
        "",
    )
    if not reason and (any(_GPU_EXTRA.match(extra) for extra in parsed.extras) or _GPU_LOCAL_VERSION.search(text)):
        reason = _GPU
    if reason:
        instead = _HARDWARE_INSTEAD if reason is _HARDWARE else _GPU_INSTEAD
        raise Complaint(f"{text!r} cannot run here: {reason}; {OUT_OF_SCOPE}", instead, unsupported=True)


def _starts(name: str, known: str) -> bool:
    return known.endswith("*") and name.startswith(known[:-1])


def debian_package(text: str) -> None:
    """Accept the plain name of a Debian package."""
    if _GPU_DEBIAN.match(text):
        raise Complaint(
            f"Debian package {text!r} cannot work here: {_GPU}; {OUT_OF_SCOPE}",
            _GPU_INSTEAD,
            unsupported=True,
        )
    if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", text):
        raise Complaint(
            f"{text!r} is not the name of a Debian package",
            "write the bare name (lower case, digits, + - .); the versions are recorded in template.lock",
        )


def suite(text: str) -> None:
    """Accept a Debian suite that the bake knows."""
    if text not in SUITES:
        raise Complaint(f"Debian suite {text!r} is not supported by this version", f"write {' or '.join(SUITES)}")


def gymnasium_id(text: str) -> None:
    """Accept a versioned Gymnasium id, with its namespace or module or without."""
    if text.startswith("Isaac-"):
        raise Complaint(
            f"Gymnasium world {text!r} cannot run here: {_PHOTOREAL}; {OUT_OF_SCOPE}",
            _GPU_INSTEAD,
            unsupported=True,
        )
    if not re.fullmatch(r"([\w.-]+:)?([\w:-]+/)?[\w:.-]+-v\d+", text, re.ASCII):
        raise Complaint(
            f"{text!r} is not a Gymnasium id with a version", 'write it as Gymnasium lists it: "Pendulum-v1"'
        )


def factory(text: str) -> None:
    """Accept ``module:callable``."""
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", text):
        raise Complaint(
            f"{text!r} does not name a world factory",
            'write "module:callable", for example "world:make" for the function make in world.py',
        )


def command(text: str) -> None:
    """Accept a word of a command, or a whole shell command."""
    if _PHOTOREAL_COMMAND.search(text):
        raise Complaint(f"{text!r} cannot run here: {_PHOTOREAL}; {OUT_OF_SCOPE}", _GPU_INSTEAD, unsupported=True)


def network(text: str) -> None:
    """Accept a network's policy."""
    if text not in get_args(Policy):
        raise Complaint(
            f"{text!r} is not a kind of network",
            "write island (the rollout's machines and nothing beyond), egress (and what egress: lists), or none",
        )


def destination(text: str) -> None:
    """Accept one line of an allow-list."""
    try:
        destinations((text,))
    except ValueError as error:
        raise Complaint(
            f"{text!r} is not a destination: {error}",
            'write "name:port", "address:port" or "network/bits:port", IPv4 only',
        ) from None


def wall_clock(text: str) -> None:
    """Accept where a wall clock starts."""
    try:
        wallclock.start_of(text)
    except ValueError as error:
        raise Complaint(
            f"{text!r} is not where a wall clock can start: {error}",
            'write now, or a date and time such as "2030-06-01T12:00:00Z"',
        ) from None


def ros_domain(text: str) -> None:
    """Accept the number of a ROS 2 domain whose ports belong to nobody else."""
    # A domain's ports begin at 7400 + 250 * number. Linux gives 32768 to 60999 to whoever asks for any port.
    if not re.fullmatch(r"[0-9]{1,3}", text) or int(text) not in (*range(102), *range(215, 233)):
        raise Complaint(
            f"{text!r} is no domain that a ROS 2 node can rely on: its ports are those that Linux gives to anybody",
            "leave it out: rollouts cannot hear each other, all of them in domain 0; or write one from 0 to 101",
        )


def guest_path(text: str) -> None:
    """Accept a normalized absolute path in the guest, outside the folders that the guest itself uses."""
    if not text.startswith("/") or text == "/" or not text.isprintable():
        raise Complaint(
            f"{text!r} is not an absolute path in the guest",
            'write where the file goes: "/opt/data/map.yaml"',
        )
    normal = "/" + posixpath.normpath(text).lstrip("/")
    if normal != text:
        raise Complaint(f"guest path {text!r} is not in its shortest form", f'write "{normal}"')
    for link, real in _LINKED.items():
        if text == link or text.startswith(link + "/"):
            raise Complaint(
                f"guest path {text!r} goes through {link}, which is a link in Debian",
                f'write "{real}{text.removeprefix(link)}"',
            )
    if any(text == folder or text.startswith(folder + "/") for folder in RESERVED):
        raise Complaint(
            f"guest path {text!r} is in a folder that the guest uses itself",
            f"choose one outside {', '.join(RESERVED)}, for example /opt/data",
        )


def extends(text: str) -> None:
    """Accept the name of a template, or a relative path that starts with ``./`` or ``../``."""
    if is_path(text):
        relative_path(text)
    elif not re.fullmatch(NAME, text):
        raise Complaint(f"{text!r} is neither a template's name nor a path", 'write "warehouse" or "../warehouse"')


def is_path(text: str) -> bool:
    """Tell a path from the name of a template."""
    return "/" in text or text.startswith(".") or text.endswith((".yaml", ".yml"))


def relative_path(text: str) -> None:
    """Accept a path relative to the file that writes it."""
    if not text or text.startswith(("/", "~")):
        raise Complaint(
            f"path {text!r} holds on one machine only",
            'write it relative to this file: "./assets" or "../shared/assets"',
        )


NAME = r"[a-z0-9][a-z0-9_-]{0,62}"
