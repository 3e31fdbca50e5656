"""256 episodes of one controller without pytest: warm a world once, fork the machine for each seed.

python example_tests/fanout.py --n 256 --workers 32 --world warehouse
"""

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from microsim_vm import Sandbox


def run_episode(parent: Sandbox, controller: bytes, seed: int) -> dict:
    """Run one episode in a fork of its own, which is thrown away at the end."""
    with parent.fork() as child:
        child.filesystem.write("/workspace/controller.py", controller)
        res = child.exec(f"EPISODE_SEED={seed} bash /opt/sim/rollout.sh", timeout_seconds=1800)
        if res.exit_code != 0:
            return {"seed": seed, "ok": False, "error": res.stderr[-2000:]}
        summary = child.exec(f"tail -n 1 /data/episodes/{seed}.jsonl", timeout_seconds=30)
        return {"seed": seed, "ok": True, "result": summary.stdout.strip()}


def main() -> int:
    """Run all episodes; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(description="Run one controller with many seeds, each in a fork of one machine.")
    parser.add_argument("--n", type=int, default=256, help="how many episodes (default 256)")
    parser.add_argument("--workers", type=int, default=32, help="forks at a time (default 32)")
    parser.add_argument("--world", default="warehouse", help="cartpole, pendulum or warehouse (default)")
    parser.add_argument(
        "--controller", type=Path, default=Path(__file__).parent / "controllers" / "dock.py",
        help="the controller's file (default: dock.py, which is for the warehouse)",
    )  # fmt: skip
    args = parser.parse_args()
    controller = args.controller.read_bytes()
    started = time.monotonic()

    with Sandbox.create(template="base", ttl_seconds=7200, metadata={"role": "sim-parent"}) as parent:
        warm = parent.exec(f"bash /opt/sim/warmup.sh --world {args.world}", timeout_seconds=900)
        if warm.exit_code != 0:
            print(warm.stderr, file=sys.stderr)
            return 1
        print(warm.stdout.strip())
        snapshot = parent.snapshot()
        try:
            with ThreadPoolExecutor(max_workers=args.workers) as pool:
                futures = [pool.submit(run_episode, parent, controller, 1000 + i) for i in range(args.n)]
                results = [f.result() for f in as_completed(futures)]
        finally:
            snapshot.delete()  # it would outlive this program, for Sandbox.create(from_snapshot=...)

    for failed in sorted((r for r in results if not r["ok"]), key=lambda r: r["seed"]):
        print(f"seed {failed['seed']}: {failed['error']}")
    episodes = [json.loads(r["result"]) for r in results if r["ok"]]
    # Two seeds with the same trajectory are one episode that was paid for twice.
    distinct = len({episode["fingerprint"] for episode in episodes})
    reward = sum(episode["total_reward"] for episode in episodes) / max(1, len(episodes))
    print("episodes  finished  distinct  mean reward  wall time")
    print(f"{len(results):<9} {len(episodes):<9} {distinct:<9} {reward:<12.3f} {time.monotonic() - started:.1f} s")
    return 0 if len(episodes) == args.n else 1


if __name__ == "__main__":
    sys.exit(main())
