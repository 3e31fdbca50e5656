"""The microVM layer: templates, images, engines, snapshots, forks, sandboxes. Knows nothing of pytest."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from microsim_vm.options import Options
    from microsim_vm.sandbox.sandbox import ForkResult, Sandbox
    from microsim_vm.sandbox.saved import SavedSnapshot
    from microsim_vm.sandbox.store import Mount
    from microsim_vm.volumes import Volume

__all__ = ["ForkResult", "Mount", "Options", "Sandbox", "SavedSnapshot", "Volume"]

_HOMES = {
    "ForkResult": "sandbox.sandbox",
    "Mount": "sandbox.store",
    "Options": "options",
    "Sandbox": "sandbox.sandbox",
    "SavedSnapshot": "sandbox.saved",
    "Volume": "volumes",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is: pytest loads this package also where no sandbox is used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
