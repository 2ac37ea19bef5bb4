"""Mistakes after a fault: a wrong cause, a late or lost row, other weights on resuming, something left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from random import Random
from signal import SIGKILL
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from orchestrator.errors import InputError
from tests.faults.scene import MOMENT_S, VICTIM, Case, Moment, Scene
from tests.faults.table import CASES
from tests.support.command_line import PROJECT
from tests.support.containers import containers_missing
from tests.support.datasets import mnist_missing
from tests.support.processes import wait_until
from tests.support.ray_cluster import ray_missing, trial_ray
from tests.support.runs import weights_in
from tests.support.slurm_cluster import slurm_missing, trial_cluster

SEEDS = range(int(os.environ.get("FAULT_SEEDS", "1")))  # each draws other moments and victims
END_S = 120.0  # for the healthy run and the report, after the disturbed run has its row
LEFT_S = 30.0  # for what the watchdogs and the reaper end after an orchestrator was killed
# What a runtime needs beside this machine: why it is missing, and what starts it.
NEEDS: dict[str, tuple[Callable[[], str | None], Callable[[], Any]]] = {
    "local": (lambda: None, nullcontext),
    "docker": (containers_missing, nullcontext),
    "slurm": (slurm_missing, trial_cluster),
    "ray": (ray_missing, trial_ray),
}
UNDISTURBED: dict[str, Any] = {}  # weights of undisturbed sweeps on local processes, by sweep file
MARKS = {"docker": pytest.mark.containers}
ROWS = [
    pytest.param(case, runtime, id=f"{runtime}-{case.name}", marks=MARKS.get(runtime, ()))
    for case in CASES
    for runtime in case.runtimes
]


@pytest.fixture(scope="module")
def runtime(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the nodes run. All rows of a runtime share its trial cluster."""
    missing, cluster = NEEDS[request.param]
    if reason := missing():
        pytest.skip(reason)
    with cluster():
        yield request.param


@pytest.fixture
def scene(case: Case, runtime: str, seed: int) -> Iterator[Scene]:
    """A sweep with the case, which leaves nothing when it has ended."""
    if case.fault.needs_root and os.getuid():
        pytest.skip("needs root")
    if case.fault.needs_data and (reason := mnist_missing()):
        pytest.skip(reason)
    if case.fault.alone and "FAULTS_ALONE" not in os.environ:
        pytest.skip("disturbs other users of the Docker engine: set FAULTS_ALONE=1")
    with TemporaryDirectory(prefix="shardyard-faults-", ignore_cleanup_errors=True) as name:
        scene = Scene(case, runtime, Random(f"{case.name} {runtime} {seed}"), Path(name))
        yield scene
        assert clean_up(scene) == []


@pytest.mark.nightly
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("case", "runtime"), ROWS, indirect=["runtime"])
def test_what_follows_a_fault(case: Case, scene: Scene) -> None:
    compared = case.again or case.verdict.status == ("ok",)
    if compared and case.document not in UNDISTURBED:
        with TemporaryDirectory(prefix="shardyard-reference-") as directory:
            reference = Scene(case, "local", Random(0), Path(directory))
            if case.fault.needs_data:
                case.fault.arrange(reference)
            complete(reference)
            UNDISTURBED[case.document] = weights_in(reference.out)
    case.fault.arrange(scene)
    if case.earlier == "finished":
        complete(scene)
    elif case.earlier == "killed":
        scene.start()
        scene.reach(Moment.CHECKPOINT)
        scene.command.send_signal(SIGKILL)
        scene.wait(LEFT_S)
        assert still(scene.place.left) == []
    if case.moment is Moment.BEFORE:
        scene.strike()
    scene.start()
    if case.moment is not Moment.BEFORE:
        scene.reach(case.moment)
        scene.strike()
    wait_until(lambda: is_over(scene), case.verdict.within_s - (time.time() - scene.struck_at))
    judge(scene, scene.wait(END_S))
    if case.again:
        case.fault.repair(scene)
        # The next command removes what is left; nodes and the reaper should have been faster.
        assert still(scene.place.left) == [] or case.fault.leaves
        complete(scene)
    if compared:
        assert weights_in(scene.out) == UNDISTURBED[case.document]


def complete(scene: Scene) -> None:
    """Run the command to its end."""
    scene.start()
    assert scene.wait(2 * MOMENT_S) == 0, scene.output


def is_over(scene: Scene) -> bool:
    """Whether the disturbed run has its row, or the command has ended."""
    with suppress(InputError):
        row = scene.row() if scene.case.verdict.status else None
        return not scene.running or (row is not None and row.started_at > scene.started_at)
    return False


def judge(scene: Scene, code: int) -> None:
    """Compare the rows, the command's output and its exit code with the verdict."""
    verdict, said = scene.case.verdict, scene.output.strip()
    row, following = (scene.row(0), scene.row(1)) if verdict.status else (None, None)
    silent = row is not None and row.status in verdict.silent
    assert code == (0 if silent else verdict.exit_code), scene.output
    if verdict.status:
        assert row, "the run has no row"
        assert row.status in verdict.status, row.cause
        assert following, "the next run has no row"
        assert following.status == "ok", following.cause
        of = following if verdict.of_next else row
        skipped = [
            f"node {event['rank']}: {event['cause']}"
            for event in scene.events()
            if event["kind"] == "checkpoint_skipped" and "some rank" not in event["cause"]
        ]
        said = "; ".join(filter(None, [of.cause, of.nodes_replaced, *of.flags, *skipped]))
    for pattern in () if silent else verdict.said:
        named = re.search(of_victim(scene) if pattern is VICTIM else pattern, said)
        assert named, f"no {pattern} in: {said}"


def of_victim(scene: Scene) -> str:
    """The first node that is named is a victim's; in a single node, the first rank."""
    in_node = scene.run.processes_per_node
    what = "rank" if in_node > 1 and scene.run.nodes == 1 else "nodes?"
    nodes = "|".join(str(rank // in_node) for rank in scene.victims)
    return rf"(?s)\A(?:(?!\b{what} \d).)*\b{what} ({nodes})\b"


def clean_up(scene: Scene) -> list[str]:
    """End and remove everything. Returns what is left nevertheless."""
    ended, fault = not scene.running, scene.case.fault
    scene.end()
    if fault.alone or scene.runtime == "slurm":
        fault.repair(scene)
    if fault.leaves or not ended:
        command = [sys.executable, "-m", "orchestrator", "clean"]
        environment = {**os.environ, "SHARDYARD_RUNTIME": scene.runtime}
        subprocess.run(command, cwd=PROJECT, env=environment, check=False)
    left = still(scene.left)
    if scene.runtime == "ray":  # not earlier: a new cluster has nothing of the sweep
        fault.repair(scene)
    for mounted in (scene.files.checkpoints, scene.out):
        if mounted.is_mount():
            subprocess.run(["umount", "-l", str(mounted)], check=False)
    return left


def still(find: Callable[[], list[str]]) -> list[str]:
    """What is still left after a while."""
    deadline = time.monotonic() + LEFT_S
    while (left := find()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left
