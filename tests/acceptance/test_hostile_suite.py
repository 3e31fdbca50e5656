"""The suite of hostile controllers, as its reader runs it: all of it on the engine that is quick here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[2] / "example_tests" / "hostile"

QUICK = "gvisor" if shutil.which("runsc") and os.geteuid() == 0 else "qemu"
# What ends otherwise on another kernel, or is a matter of the kernel at all.
KERNELS = {
    *("daemon.py", "escape.py", "fill_disk.py", "fill_memory.py", "fork_bomb.py", "kill_everybody.py", "many_files.py"),
    *("panic.py", "read_the_truth.py", "scan.py", "survive.py", "text_bomb.py", "threads.py", "trace.py"),
}

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize("engine", ["qemu", "gvisor"] if QUICK == "gvisor" else ["qemu"])
def test_every_controller_comes_to_its_end_and_nobody_else_notices(engine: str) -> None:
    controllers = {path.name for path in (SUITE / "controllers").iterdir()} - {"quiet.py", "push.py", "__pycache__"}
    assert len(controllers) >= 25
    chosen = []
    if engine != QUICK:
        assert controllers > KERNELS
        controllers = KERNELS
        chosen = ["-k", " or ".join(sorted(KERNELS))]
    run = subprocess.run(
        [*(sys.executable, "-m", "pytest", "-v", "-p", "no:randomly", "-p", "no:cacheprovider", str(SUITE)),
         *("--microsim-world", "cartpole", "--microsim-engine", engine, *chosen)],
        capture_output=True, text=True, timeout=1100, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-20000:] + run.stderr
    passed = set(re.findall(r"nobody_should_trust\[(\S+)-seed-0007\] PASSED", run.stdout))
    assert passed == controllers
