"""The example pipelines of ci/, run as a build server would: each step that is a command, in order, in a project."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from microsim_vm import scaffold

pytestmark = [
    pytest.mark.timeout(500),
    pytest.mark.skipif(os.geteuid() != 0, reason="the pipelines run in containers, as root"),
]

REPOSITORY = Path(__file__).parents[2]
STEP_S = 600
ONCE = ("apt-get ", "python3 -m venv ", ".venv/bin/pip ", ".venv/bin/microsim doctor")
SUITE = """
import pytest

@pytest.mark.seeds(range(4))
def test_fails_where_it_is_told_to(rollout):
    rollout.run("controllers/push.py", max_steps=5)
    assert rollout.seed != 2, "the cart is 100% lost"
"""


class Job:
    """One job of a pipeline, on a machine that it shares with the others: it is installed and looked at once.

    Args:
        project: The checked out repository.
        env: The job's environment.
    """

    _done: ClassVar[set[tuple[Path, str]]] = set()

    def __init__(self, project: Path, env: dict[str, str]) -> None:
        self.project = project
        self.env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "CI": "true", **env}
        self.env["PIP_NO_COMPILE"] = "1"  # Python compiles what it imports, which is little of it
        self.output: list[str] = []
        self.failed: list[str] = []

    def run(self, name: str, commands: str) -> None:
        """Run a step's commands, as the runners do."""
        began = time.monotonic()
        found = subprocess.run(
            ["bash", "-e", "-c", "\n".join(self._due(commands))],
            cwd=self.project, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=STEP_S, errors="replace",
        )  # fmt: skip
        self.output.append(f"== {name}, {time.monotonic() - began:.1f} s\n{found.stdout}")
        if found.returncode:
            self.failed.append(name)

    def _due(self, commands: str) -> Iterator[str]:
        for line in commands.replace("\\\n", " ").splitlines():
            if line.startswith(ONCE):
                if (self.project, line) in self._done:
                    continue
                self._done.add((self.project, line))
            yield line

    @property
    def text(self) -> str:
        """What the job has printed."""
        return "\n".join(self.output)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, cache_with_layers: Callable[[Path], None]) -> Path:
    """A user's repository: what ``microsim init`` writes, one more test, a lock, and this project as a package."""
    folder = tmp_path_factory.mktemp("ci") / "project"
    folder.mkdir()
    scaffold.write(folder, "cart")
    (folder / "test_lost.py").write_text(SUITE)
    packages = folder.parent / "packages"
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(packages)]
    subprocess.run([*wheel, str(REPOSITORY)], check=True, timeout=STEP_S)
    requirement = "pytest-microsim[xdist,baselines]"
    (folder / "requirements-test.txt").write_text(f"--find-links {packages}\n{requirement}\n")
    subprocess.run([sys.executable, "-m", "microsim_vm", "warm", "cart"], cwd=folder, check=True, timeout=STEP_S)
    # What a restored cache has at least: the layers that take minutes.
    cache_with_layers(folder / ".microsim-cache")
    return folder


@pytest.fixture(autouse=True)
def no_results(project: Path) -> Iterator[None]:
    """Remove what a pipeline has left."""
    yield
    shutil.rmtree(project / "out")


def test_every_step_of_the_github_workflow_runs(project: Path, tmp_path: Path) -> None:
    workflow = yaml.safe_load((REPOSITORY / "ci" / "github-actions.yml").read_text())
    tests, report = workflow["jobs"]["test"], workflow["jobs"]["report"]
    assert report["needs"] == "test"
    shards = tests["strategy"]["matrix"]["shard"]
    jobs = []
    for shard in shards:
        facts = {"matrix.shard": str(shard), "strategy.job-total": str(len(shards)), "runner.os": "Linux"}
        env = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(project), **tests["env"]}
        jobs.append(github_job(project, tests["steps"], facts, env, tmp_path / "artifacts"))
    assert [job.failed for job in jobs if job.failed] == [["Run the scenarios"]], "\n".join(job.text for job in jobs)
    passed, failed = sorted(jobs, key=lambda job: len(job.failed))
    assert "::error" not in passed.text
    remark = next(line for line in failed.text.splitlines() if line.startswith("::error"))
    assert remark.startswith("::error file=test_lost.py,line=")
    assert "title=test_fails_where_it_is_told_to%3A 1 of 4 seeds failed::seed 2:" in remark
    assert "100%25 lost" in remark
    assert "--microsim-replay" in remark
    assert "8 passed" in passed.text
    assert "1 failed, 3 passed" in failed.text

    shutil.rmtree(project / "out")
    last = github_job(project, report["steps"], {}, {}, tmp_path / "artifacts")
    assert last.failed == [], last.text
    assert "2 groups, 12 rollouts" in last.text


def test_every_step_of_the_gitlab_pipeline_runs(project: Path) -> None:
    pipeline = yaml.safe_load((REPOSITORY / "ci" / "gitlab-ci.yml").read_text())
    scenarios, report = pipeline["scenarios"], pipeline["report"]
    assert [job["stage"] for job in (scenarios, report)] == pipeline["stages"]
    for path in scenarios["cache"]["key"]["files"]:
        assert (project / path).exists()
    jobs = []
    for number in range(1, scenarios["parallel"] + 1):
        counts = {"CI_NODE_INDEX": str(number), "CI_NODE_TOTAL": str(scenarios["parallel"])}
        job = Job(project, {"GITLAB_CI": "true", **pipeline["variables"], **counts})
        for name in ("before_script", "script"):
            job.run(name, "\n".join(scenarios[name]))
        jobs.append(job)
    assert scenarios["cache"]["when"] == "always"
    assert [job.failed for job in jobs if job.failed] == [["script"]], "\n".join(job.text for job in jobs)
    assert [path for path in scenarios["cache"]["paths"] if not holds_a_snapshot(project / path)] == []
    failed = next(job for job in jobs if job.failed)
    unfolded = failed.text.partition("section_start:")[2].partition("section_end:")[0]
    assert "test_fails_where_it_is_told_to: 1 of 4 seeds failed" in unfolded
    assert "--microsim-replay" in unfolded
    assert len(glob.glob(str(project / scenarios["artifacts"]["reports"]["junit"]))) == 2

    last = Job(project, {"GITLAB_CI": "true", **pipeline["variables"]})
    last.run("script", "\n".join(report["script"]))
    assert last.failed == [], last.text
    assert [path for path in report["artifacts"]["paths"] if not (project / path).exists()] == []


def github_job(
    project: Path, steps: list[dict[str, Any]], facts: dict[str, str], env: dict[str, str], artifacts: Path
) -> Job:
    """Run the steps of one job; those that are somebody's actions are held to what their own pages say of them."""
    job, saved = Job(project, env), []
    for step in steps:
        if job.failed and not step.get("if", "").startswith("always()"):
            continue
        given = {name: _filled(str(value), facts, project) for name, value in step.get("with", {}).items()}
        if "run" in step:
            job.run(step["name"], _filled(step["run"], facts, project))
        elif step["uses"].startswith("actions/upload-artifact@"):
            paths = [project / line for line in given["path"].splitlines()]
            assert all(path.exists() for path in paths), job.text
            for path in paths:
                copied = artifacts / given["name"]
                shutil.copytree(path, copied) if path.is_dir() else shutil.copy(path, artifacts)
        elif step["uses"].startswith("actions/download-artifact@"):
            assert given["merge-multiple"] == "True"
            for each in artifacts.glob(given["pattern"]):
                shutil.copytree(each, project / given["path"], dirs_exist_ok=True)
        elif step["uses"].startswith("actions/cache/restore@"):
            assert given["path"] == env["MICROSIM_CACHE_DIR"]
            assert given["key"].startswith(given["restore-keys"])
            facts = {**facts, f"steps.{step['id']}.outputs.cache-primary-key": given["key"]}
        elif step["uses"].startswith("actions/cache/save@"):
            assert holds_a_snapshot(project / given["path"]), job.text
            saved.append(given["key"])
        else:
            assert step["uses"].split("@")[0] in ("actions/checkout", "actions/setup-python")
    # Where a seed has failed, too.
    assert len(saved) == sum("cache" in step.get("uses", "") for step in steps) // 2
    return job


def holds_a_snapshot(cache: Path) -> bool:
    """Tell whether a cache has what the next pipeline would otherwise wait for."""
    return any(cache.glob("snapshots/*"))


def _filled(text: str, facts: dict[str, str], project: Path) -> str:
    def value(found: re.Match[str]) -> str:
        expression = found.group(1)
        if hashed := re.fullmatch(r"hashFiles\('([^']+)'\)", expression):
            assert list(project.glob(hashed.group(1))), f"{expression} finds no file"
            return "0123abcd"
        return facts[expression]

    return re.sub(r"\$\{\{ (.+?) \}\}", value, text)
