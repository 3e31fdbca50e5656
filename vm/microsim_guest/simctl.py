"""The command behind warmup.sh and rollout.sh: drives the warm world through the agent's local socket.

``simctl load NAME FOLDER`` loads the world that ``FOLDER/world.json`` describes. ``simctl episode FOLDER`` runs the
episode that the environment describes (see rollout.sh, which checks it) and writes it below a folder. Exit status:
0 done, 1 failed, 2 cannot be started.
"""

import array
import hashlib
import json
import math
import os
import sys
import uuid
from typing import Any, Dict, Iterator, List, Tuple

from microsim_guest import codec, files, localsocket, wire

LOAD_TIMEOUT_S = 86400.0  # whoever starts warmup.sh has a limit of its own
MAX_CONTROLLER_BYTES = 16 * 1024 * 1024
MAX_STEPS_BYTES = 16 * 1024 * 1024  # of the lines of one episode: its file lies in the guest's memory
MAX_NUMBERS = 512  # of one quantity in one line
LIMITS = {
    "memory_mib": 256, "processes": 32, "output_bytes": 65536, "workspace_mib": 64, "workspace_files": 4096,
    "open_files": 256, "cpu_s": None,
}  # fmt: skip
PASSED_ON = (
    "EPISODE_SEED", "PYTHONHASHSEED", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS", "MUJOCO_GL", "ROS_DOMAIN_ID", "ROS_LOCALHOST_ONLY", "ROS_AUTOMATIC_DISCOVERY_RANGE",
    "CYCLONEDDS_URI",
)  # fmt: skip
DONE, FAILED, REFUSED = 0, 1, 2


def load(name: str, folder: str) -> int:
    """Load a world, unless it is loaded already."""
    client = localsocket.Client()
    status, _ = client.ask("world.status", {})
    if status["world"]:
        held = status["loaded"]["name"]
        if held == name:
            print("world {} is loaded already".format(name))
            return DONE
        print(
            "warmup.sh: this machine holds world {} already, and one is all it can hold".format(held), file=sys.stderr
        )
        return REFUSED
    with open(os.path.join(folder, "world.json"), encoding="utf-8") as file:
        spec = json.load(file)
    loaded, _ = client.ask("world.load", {"name": name, "world": spec, "folder": folder, "timeout_s": LOAD_TIMEOUT_S})
    versions = ", ".join("{} {}".format(*item) for item in sorted(loaded["versions"].items()))
    print("world {} loaded in {:.1f} s ({})".format(name, loaded["load_ms"] / 1000.0, versions))
    for finding in loaded["findings"]:
        print("world {}: {}".format(name, finding))
    return DONE


def episode(folder: str) -> int:
    """Run one episode and write it down."""
    seed, path = int(os.environ["EPISODE_SEED"]), os.environ["CONTROLLER"]
    client = localsocket.Client()
    if not client.ask("world.status", {})[0]["world"]:
        print("rollout.sh: no world is warm: run warmup.sh --world NAME first", file=sys.stderr)
        return REFUSED
    source = files.read(path, 0, MAX_CONTROLLER_BYTES, MAX_CONTROLLER_BYTES)[1][0]
    request = {
        "filename": path, "seed": seed, "max_steps": int(os.environ["MAX_STEPS"]),
        "timeout_s": float(os.environ["WALL_TIME_S"]), "limits": LIMITS,
        "env": {name: os.environ[name] for name in PASSED_ON},
    }  # fmt: skip
    lines: List[bytes] = []
    summary: Dict[str, Any] = {"seed": seed, "ok": False, "steps": 0, "error": None}
    details = ""
    try:
        # First, so that nothing drawn since the fork has any part in the episode.
        client.ask("world.reseed", {"seed": seed, "reseed": True})
        result, (stdout, stderr, *data) = client.ask("world.episode", request, (source,))
    except localsocket.RequestFailed as failure:
        summary["error"], details = str(failure), failure.details
    else:
        for stream, output in ((sys.stdout, stdout), (sys.stderr, stderr)):
            stream.buffer.write(output)
            stream.flush()
        columns = [(column, data[index]) for index, column in enumerate(result["columns"])]
        rewards = [value for column, raw in columns if column["name"] == "reward" for value in array.array("d", raw)]
        lines = list(step_lines(columns, len(rewards)))
        error = result["error"]
        summary.update({key: result[key] for key in ("terminated", "truncated")})
        summary.update(steps=len(rewards), total_reward=sum(rewards))
        summary["metrics"] = codec.unpack(result["metrics"], data[len(columns) :])
        summary.update(ok=error is None, fingerprint=fingerprint(columns), lines=len(lines))
        if error is not None:
            summary["error"], details = error["message"], error["traceback"]
    write(os.path.join(folder, "{}.jsonl".format(seed)), [*lines, line(summary)])
    if summary["error"] is None:
        return DONE
    print("{}rollout.sh: seed {}: {}".format(details, seed, summary["error"]), file=sys.stderr)
    return FAILED


def step_lines(columns: List[Tuple[Dict[str, Any], bytes]], steps: int) -> Iterator[bytes]:
    """Yield one line per step: what the controller saw, what it did, and what came of it; bounded in all."""
    total = 0
    for step in range(steps):
        values: Dict[str, Any] = {"step": step}
        for column, data in columns:
            rows, shape = column["shape"][0], column["shape"][1:]
            size = len(data) // rows
            values[column["name"]] = shown(column["dtype"], shape, data[step * size : (step + 1) * size])
        text = line(values)
        total += len(text)
        if total > MAX_STEPS_BYTES:
            return
        yield text


def shown(dtype: str, shape: List[int], data: bytes) -> Any:
    """Return a row's numbers, or the hash of too many of them (an image, say)."""
    if math.prod(shape) > MAX_NUMBERS:
        return {"shape": shape, "sha256": hashlib.sha256(data).hexdigest()}
    return codec.nested(dtype, shape, data)


def fingerprint(columns: List[Tuple[Dict[str, Any], bytes]]) -> str:
    """Return the trajectory's fingerprint, the one that the gates of the pytest plugin compare.

    Each part is hashed as its kind, its length in 8 bytes, and its bytes.
    """
    total = hashlib.blake2b(digest_size=16)

    def add(kind: bytes, data: bytes) -> None:
        total.update(kind + len(data).to_bytes(8, "little") + data)

    for column, data in sorted(columns, key=lambda item: str(item[0]["name"])):
        add(b"[", b"4")
        add(b"s", column["name"].encode())
        add(b"s", column["dtype"].encode())
        add(b"[", str(len(column["shape"])).encode())
        for size in column["shape"]:
            add(b"i", str(size).encode())
        add(b"b", data)
    return total.hexdigest()


def line(values: Dict[str, Any]) -> bytes:
    """Return a line of JSON; NaN and infinities, which JSON does not have, as text."""
    return json.dumps(finite(values), separators=(",", ":"), allow_nan=False).encode() + b"\n"


def finite(value: Any) -> Any:
    """Return a value with NaN and infinities as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value


def write(path: str, lines: List[bytes]) -> None:
    """Write a file that is there whole or not at all, in a folder for root alone: a controller may run next."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    files.write(path, b"".join(lines), uuid.uuid4().hex, 0, True, 0o644, None)


def main(argv: List[str]) -> int:
    """Run the command and return the exit status."""
    try:
        return load(*argv[2:]) if argv[1] == "load" else episode(*argv[2:])
    except localsocket.RequestFailed as failure:
        print("{}{}".format(failure.details, failure), file=sys.stderr)
    except (OSError, wire.LinkClosed) as error:
        print("the agent of this machine cannot be asked: {!r}".format(error), file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv))
