"""The suite of hostile controllers, as its reader runs it, on each engine that works here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[2] / "example_tests" / "hostile"

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("engine", ["qemu", "gvisor"])
def test_every_controller_comes_to_its_end_and_nobody_else_notices(engine: str) -> None:
    if engine == "gvisor" and (shutil.which("runsc") is None or os.geteuid() != 0):
        pytest.skip("gVisor's guests need runsc, and root")
    controllers = {path.name for path in (SUITE / "controllers").iterdir()} - {"quiet.py", "push.py", "__pycache__"}
    assert len(controllers) >= 25
    run = subprocess.run(
        [*(sys.executable, "-m", "pytest", "-v", "-p", "no:randomly", "-p", "no:cacheprovider", str(SUITE)),
         *("--microsim-world", "cartpole", "--microsim-engine", engine)],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-20000:] + run.stderr
    passed = set(re.findall(r"nobody_should_trust\[(\S+)-seed-0007\] PASSED", run.stdout))
    assert passed == controllers
