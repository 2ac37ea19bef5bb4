"""Play a case: run the command, let the fault strike, and judge what follows."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from orchestrator.errors import InputError
from orchestrator.results.records import RunResult
from tests.faults.case import DOCKER, RAY, SLURM, SWARM, Case, Earlier, Moment, Then, Verdict
from tests.faults.scene import END_S, MOMENT_S, Scene, SceneError, clean
from tests.support.containers import containers_missing
from tests.support.datasets import mnist_missing
from tests.support.places import docker
from tests.support.ray_cluster import ray_missing
from tests.support.runs import weights_in
from tests.support.slurm_cluster import slurm_missing
from tests.support.swarm_cluster import swarm_missing

HANG_S = 10.0  # beyond the deadline, after which a row counts as hanging
LEFT_S = 30.0  # for what the watchdogs and the reaper end after an orchestrator was killed
MISSING: dict[str, Callable[[], str | None]] = {
    DOCKER: containers_missing,
    SLURM: slurm_missing,
    SWARM: swarm_missing,
    RAY: ray_missing,
}
Weights = dict[str, list[str | None]]


@dataclass(frozen=True)
class Played:
    """One case on one runtime with one seed.

    Attributes:
        seconds: from the fault to the row, or to the end of the command; None if the case came to neither.
        said: the cause, flags or message.
        wrong: what does not hold.
    """

    case: str
    runtime: str
    seconds: float | None
    said: str
    wrong: list[str]


class References:
    """Weights of undisturbed sweeps, one sweep per file, on local processes."""

    def __init__(self) -> None:
        self._weights: dict[str, Weights] = {}

    def of(self, case: Case) -> Weights:
        """The weights of an undisturbed sweep of the case."""
        name = Scene.document(case)
        if name not in self._weights:
            with TemporaryDirectory(prefix="shardyard-reference-") as directory:
                scene = Scene(case, "local", Random(0), Path(directory))
                if case.fault.needs_data:
                    case.fault.arrange(scene)
                scene.start()
                if code := scene.wait(2 * MOMENT_S):
                    raise SceneError(f"the undisturbed sweep ended with exit code {code}: {scene.output}")
                self._weights[name] = weights_in(scene.out)
        return self._weights[name]


def missing(case: Case, runtime: str) -> str | None:
    """Why a case cannot be played here, or None."""
    if case.fault.needs_root and os.getuid():
        return "needs root"
    if case.fault.needs_data and (absent := mnist_missing()):
        return absent
    return MISSING[runtime]() if runtime in MISSING else None


def play(case: Case, runtime: str, seed: int, references: References, keep: Path | None = None) -> Played:
    """Play a case once. keep: where to copy its files to if it fails."""
    with TemporaryDirectory(prefix="shardyard-faults-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        directory.chmod(0o755)  # containers read the data directory
        scene = Scene(case, runtime, Random(f"{case.name} {runtime} {seed}"), directory)
        wrong: list[str] = []
        try:
            wrong = _play(scene, references)
        except (SceneError, InputError) as error:
            wrong = [str(error)]
        finally:
            if wrong and keep:
                shutil.copytree(directory, keep / f"{case.name}-{runtime}-{seed}", dirs_exist_ok=True)
            wrong += _end(scene)
    took = scene.ended_at - scene.struck_at if scene.struck_at and scene.ended_at else None
    return Played(case.name, runtime, took, scene.said, wrong)


def _play(scene: Scene, references: References) -> list[str]:
    """Returns what does not hold."""
    case, verdict = scene.case, scene.case.verdict
    expected = references.of(case) if case.again or verdict.then is Then.OK else None
    case.fault.arrange(scene)
    if case.earlier is not Earlier.NOTHING:
        _earlier(scene)
    if case.moment is Moment.BEFORE:
        scene.strike()
    scene.start()
    if case.moment is not Moment.BEFORE:
        scene.reach(case.moment)
        scene.strike()
    wrong = _await(scene)
    code = scene.wait(END_S)
    wrong += judge(scene, scene.row() if verdict.then is not Then.STOPS else None, code)
    if case.again:
        case.fault.repair(scene)
        # The next command removes what is left; nodes and the reaper should have been faster.
        left = _left(scene.place.left)
        wrong += [] if case.fault.leaves else [f"{each} is left before the same command" for each in left]
        scene.start()
        if code := scene.wait(2 * MOMENT_S):
            wrong.append(f"the same command ended with exit code {code}: {scene.output[-400:]}")
        wrong += _traceback(scene)
    if expected is not None and (found := weights_in(scene.out)) != expected:
        wrong.append(f"weights differ from those of an undisturbed sweep: {found}, not {expected}")
    return wrong


def _earlier(scene: Scene) -> None:
    """Run the command before the one that is judged."""
    scene.start()
    if scene.case.earlier is Earlier.FINISHED:
        if code := scene.wait(2 * MOMENT_S):
            raise SceneError(f"the first command ended with exit code {code}")
        return
    scene.reach(Moment.CHECKPOINT)
    scene.orchestrator.send_signal(signal.SIGKILL)
    scene.wait(HANG_S)
    if left := _left(scene.place.left):
        raise SceneError(f"left by the first command: {left}")


def _await(scene: Scene) -> list[str]:
    """Wait for the row of the disturbed run, or for the end of the command where the sweep stops."""
    within_s, stops = scene.case.verdict.within_s, scene.case.verdict.then is Then.STOPS

    def over() -> bool:
        if not scene.running:
            return True
        with suppress(InputError):
            return not stops and (row := scene.row()) is not None and row.started_at > scene.started_at
        return False

    if not _until(over, within_s + HANG_S):
        raise SceneError(f"hangs: no end {within_s + HANG_S:.0f} s after the fault")
    scene.ended_at = time.time()
    took = scene.ended_at - scene.struck_at
    return [] if took <= within_s else [f"took {took:.1f} s, not {within_s:g} s"]


def judge(scene: Scene, row: RunResult | None, code: int) -> list[str]:
    """What in the row and the command's output differs from the verdict."""
    verdict, wrong = scene.case.verdict, _traceback(scene)
    silent = row is not None and row.status in verdict.silent
    if code != (0 if silent else verdict.exit_code):
        wrong.append(f"exit code {code}, not {verdict.exit_code}: {scene.output[-400:]}")
    if verdict.then is Then.STOPS:
        scene.said = scene.output.strip()
    elif row is None:
        return [*wrong, "the run has no row"]
    else:
        if row.status not in verdict.status:
            wrong.append(f"{row.status}, not {' or '.join(verdict.status)}")
        other = scene.row(scene.runs[1].key)
        if other is None or other.status != "ok":
            wrong.append(f"the next run is not ok: {other.cause if other else 'it has no row'}")
        scene.said = _said(scene, other if verdict.of_next and other else row)
    return wrong if silent else wrong + _unnamed(scene, verdict)


def _said(scene: Scene, row: RunResult) -> str:
    """The cause and flags of a row, and why checkpoints of the disturbed run were skipped."""
    skipped = [
        f"node {event['rank']}: {event['cause']}"
        for event in scene.events()
        if event["kind"] == "checkpoint_skipped" and "some rank" not in event["cause"]
    ]
    return "; ".join(filter(None, [row.cause, row.nodes_replaced, *row.flags, *skipped]))


def _unnamed(scene: Scene, verdict: Verdict) -> list[str]:
    """Which facts of the verdict are not stated."""
    wrong = []
    if verdict.named and verdict.named.pattern:
        if not re.search(verdict.named.pattern, scene.said):
            wrong.append(f"does not name {verdict.named.words}")
    elif verdict.named:
        in_node = scene.run.processes_per_node
        what = "rank" if in_node > 1 and scene.run.nodes == 1 else "nodes?"
        first = re.search(rf"\b{what} (\d+)", scene.said)
        nodes = {str(rank // in_node) for rank in scene.victims}
        if not first or first[1] not in nodes:
            wrong.append(f"names {first[0] if first else 'no node'}, not node {' or '.join(nodes)}")
    if verdict.cause and not re.search(verdict.cause.pattern, scene.said):
        wrong.append(f"does not say: {verdict.cause.words}")
    return wrong


def _traceback(scene: Scene) -> list[str]:
    _, found, trace = scene.output.partition("Traceback")
    return [f"there is a traceback: {trace[:1500]}"] if found else []


def _end(scene: Scene) -> list[str]:
    """End and remove everything. Returns what was left although the command had ended.

    What a dead engine leaves is removed by the next command.
    """
    ended, fault = not scene.running, scene.case.fault
    scene.end()
    if fault.alone or scene.runtime in (SLURM, SWARM):
        fault.repair(scene)
    if fault.leaves:
        clean(scene.runtime)
    left = _left(scene.left) if ended else []
    if left or not ended:
        clean(scene.runtime)
        for each in scene.left():
            kind, _, name = each.partition(" ")
            if kind == "process":
                with suppress(ProcessLookupError):
                    os.kill(int(name), signal.SIGKILL)
            elif kind == "container":
                docker("rm", "-f", name)
            elif kind == "job":
                subprocess.run(["scancel", name], check=False)
    if scene.runtime == RAY:  # not earlier: a new cluster has nothing of the sweep
        fault.repair(scene)
    for mounted in (scene.checkpoints, scene.out):
        if mounted.is_mount():
            subprocess.run(["umount", "-l", str(mounted)], check=False)
    return [f"{each} is left" for each in left]


def _left(find: Callable[[], list[str]]) -> list[str]:
    """What is still left after a while."""
    return [] if _until(lambda: not find(), LEFT_S) else find()


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll until the condition holds; returns whether it does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
