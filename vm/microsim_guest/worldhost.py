"""The world host: one interpreter that holds the warmed world, is part of the snapshot, and serves rollouts."""

import importlib
import os
import socket
import sys
import time
import traceback
from typing import Any, Callable, Dict, List, Optional, Tuple

from microsim_guest import (
    camera,
    codec,
    config,
    controllerlink,
    driver,
    episode,
    processes,
    randomness,
    recorded,
    resetting,
    wire,
)

Answer = Tuple[Dict[str, Any], List[bytes]]


class NoWorld(wire.KnownError):
    """The request needs a world object, and there is none."""

    kind = "world"


class AlreadyLoaded(wire.KnownError):
    """A world is loaded already: a guest holds one, from then on."""

    kind = "world"


class WorldHost:
    """Answers the ``world.*`` requests that the agent passes on.

    Args:
        settings: The image's configuration.
        controllers: Socket to the controller host.
        elsewhere: Socket to the agent, for controllers of another guest.
    """

    def __init__(self, settings: Dict[str, Any], controllers: socket.socket, elsewhere: socket.socket) -> None:
        self._settings = settings
        self._controllers = controllers
        self._elsewhere = elsewhere
        self._world: Any = None
        self._loaded: Dict[str, Any] = {}
        self._inventory: Optional[randomness.Inventory] = None
        self._processes: List[processes.Running] = []
        self._controllers_ready = False
        self._reseeding = True
        self._clean_seed: Optional[int] = None

    def load(self, args: Dict[str, Any], blobs: Tuple[bytes, ...]) -> Answer:
        """Build the world (or start its processes) and take stock of its generators.

        Without a ``world`` in the arguments this is the template's own warm-up. With one (``factory`` or
        ``gymnasium``, ``kwargs``) it loads that world instead, ``name``, from the ``folder`` of its code, which
        is closed to controllers from then on.
        """
        started = time.monotonic()
        given = args.get("world")
        spec = self._settings.get("world") if given is None else given
        if self._world is not None or (given is None and self._loaded):
            raise AlreadyLoaded("a guest holds one world, and it has {} already".format(
                self._loaded["name"] or "the template's own"))  # fmt: skip
        if given is None:
            self._processes = processes.start_all(
                self._settings.get("processes", []), config.environment(self._settings), args["timeout_s"]
            )
        folder = args.get("folder", config.WORLD_FOLDER)
        self._world, inventory = (None, randomness.Inventory()) if spec is None else build_in(folder, spec)
        self._inventory, self._clean_seed = inventory, None
        self._wait_for_controllers()
        self._loaded = {
            "name": args.get("name", ""),
            "load_ms": (time.monotonic() - started) * 1000.0,
            "findings": inventory.findings,
            "sources": [source.name for source in inventory.sources],
            "versions": versions(),
        }
        return self._loaded, []

    def _wait_for_controllers(self) -> None:
        """Wait, once, until the controller host has done its imports."""
        if not self._controllers_ready:
            wire.SocketLink(self._controllers).receive()
            self._controllers_ready = True

    def status(self, args: Dict[str, Any], blobs: Tuple[bytes, ...]) -> Answer:
        """Tell whether there is a world object, and what the last load found."""
        return {"world": self._world is not None, "loaded": self._loaded}, []

    def reseed(self, args: Dict[str, Any], blobs: Tuple[bytes, ...]) -> Answer:
        """Adopt a rollout's seed, or (``reseed: false``) leave every generator as the snapshot had it."""
        os.environ.update(args.get("env", {}))
        self._reseeding = bool(args["reseed"])
        if self._reseeding:
            randomness.refresh_entropy_users()
            self._begin(args["seed"])
        return {"probes": self._known().probes(), "findings": self._known().findings}, []

    def _known(self) -> randomness.Inventory:
        """Return the generators: before anything is loaded, those that each process has."""
        if self._inventory is None:
            self._inventory = randomness.Inventory()
        return self._inventory

    def _begin(self, seed: int) -> Optional[int]:
        """Put every declared source at the start of ``seed``'s streams; return what ``reset`` is given."""
        if not self._reseeding:
            return None
        if self._clean_seed != seed:
            self._known().reseed(seed)
            self._clean_seed = seed
        return seed

    def _need_world(self) -> Any:
        if self._world is None:
            raise NoWorld("no world object is loaded; where processes are the world, drive them with exec()")
        self._clean_seed = None  # from here on the generators may be drawn from
        return self._world

    def reset(self, args: Dict[str, Any], blobs: Tuple[bytes, ...]) -> Answer:
        """Reset the world for driving by hand."""
        seed = self._begin(args["seed"])
        return packed(list(resetting.reset(self._need_world(), seed, args.get("options"))))

    def step(self, args: Dict[str, Any], blobs: Tuple[bytes, ...]) -> Answer:
        """Take one step with the host's action."""
        world = self._need_world()
        action = episode.to_action(codec.unpack(args["action"], blobs), getattr(world, "action_space", None))
        observation, reward, terminated, truncated, info = world.step(action)
        return packed([observation, float(reward), bool(terminated), bool(truncated), info])

    def sample(self, args: Dict[str, Any], blobs: Tuple[bytes, ...]) -> Answer:
        """Draw from the world's action space."""
        space = getattr(self._need_world(), "action_space", None)
        if space is None:
            raise NoWorld("the world has no action_space to sample from")
        return packed(space.sample())

    def episode(self, args: Dict[str, Any], blobs: Tuple[bytes, ...]) -> Answer:
        """Run one whole episode with a controller, or with recorded actions."""
        started = time.monotonic()
        seed = self._begin(args["seed"])
        world = self._need_world()
        host = self._elsewhere if args.get("relay") else self._controllers
        source: driver.Driver
        if args.get("kind") == "recording":
            source = recorded.Recorded(args, blobs[0])
        else:
            source = controllerlink.ControllerLink(host, args, blobs[0], seed)
        film = args.get("film")
        pictures = None if film is None else camera.Camera(world, **film)
        try:
            result, rows = episode.run(world, seed, args, source, pictures)
        finally:
            exit_info, output = source.finish()
        columns, data = rows.describe()
        packed_metrics: List[bytes] = []
        result["metrics"] = codec.pack(result["metrics"], packed_metrics)
        taken: List[bytes] = []
        if pictures is not None:
            result["film"], taken = pictures.describe()
        result.update(columns=columns, controller=exit_info, wall_ms=(time.monotonic() - started) * 1000.0)
        return result, [*output, *data, *packed_metrics, *taken]

    def logs(self, args: Dict[str, Any], blobs: Tuple[bytes, ...]) -> Answer:
        """Return the kept output of the world's processes."""
        return {"names": [p.name for p in self._processes]}, [p.output.so_far() for p in self._processes]


def packed(value: Any) -> Answer:
    """Return a value as an answer."""
    blobs: List[bytes] = []
    return {"value": codec.pack(value, blobs)}, blobs


def build_in(folder: str, spec: Dict[str, Any]) -> Tuple[Any, randomness.Inventory]:
    """Build a world whose code lies in a folder, and take stock of its generators.

    A world that fails leaves no module behind that the next one would find in place of its own.

    Raises:
        Exception: See :func:`build`.
    """
    if folder != config.WORLD_FOLDER:  # the bake has closed that one
        os.chmod(folder, 0o700)  # ground truth, and controllers run as another user
    sys.path.insert(0, folder)
    try:
        world = build(spec)
        randomness.refresh_entropy_users()  # what each fork renews is nothing to report
        return world, randomness.Inventory(world, folder)
    except BaseException:
        sys.path.remove(folder)
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "")).startswith(folder + os.sep):
                del sys.modules[name]
        raise


def build(spec: Dict[str, Any]) -> Any:
    """Build the world that the template names.

    Raises:
        Exception: Whatever the factory raises.
        TypeError: What it returned is no environment.
    """
    kwargs = spec.get("kwargs", {})
    if spec.get("gymnasium"):
        gymnasium = importlib.import_module("gymnasium")
        return gymnasium.make(spec["gymnasium"], **kwargs)
    module_name, _, attribute = spec["factory"].partition(":")
    factory: Callable[..., Any] = getattr(importlib.import_module(module_name), attribute)
    world = factory(**kwargs)
    for method in ("reset", "step"):
        if not callable(getattr(world, method, None)):
            raise TypeError("{} returned a {}, which has no {}()".format(
                spec["factory"], type(world).__name__, method))  # fmt: skip
    return world


def versions() -> Dict[str, str]:
    """Return what decides a trajectory besides the seed: kernel, Python, loaded packages."""
    found = {"kernel": os.uname().release, "python": sys.version.split()[0]}
    for name in ("numpy", "gymnasium", "mujoco", "torch"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version:
            found[name] = str(version)
    return found


def main(argv: List[str]) -> None:
    """Serve the agent until the guest ends."""
    link = wire.SocketLink(socket.socket(fileno=int(argv[1])), read_ahead=True)
    controllers, elsewhere = (socket.socket(fileno=int(word)) for word in argv[2:])
    host = WorldHost(config.load(), controllers, elsewhere)
    operations = {
        "world.load": host.load, "world.reseed": host.reseed, "world.reset": host.reset,
        "world.step": host.step, "world.sample": host.sample, "world.episode": host.episode,
        "world.logs": host.logs, "world.status": host.status,
    }  # fmt: skip
    while True:
        frame = link.receive()
        request_id = frame.header["id"]
        try:
            result, blobs = operations[frame.header["op"]](frame.header["args"], frame.blobs)
            link.send({"id": request_id, "ok": result}, blobs)
        except BaseException as error:
            header = wire.error_header(error, traceback.format_exc())
            if not isinstance(error, wire.KnownError):
                header = dict(header, kind="world", message="{kind}: {message}".format(**header))
            link.send({"id": request_id, "error": header})


if __name__ == "__main__":
    main(sys.argv)
