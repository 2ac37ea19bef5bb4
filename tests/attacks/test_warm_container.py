"""Attacks on the next run of a warm container by what a run leaves in processes, IPC and files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.execution.clusters import Clusters
from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.identity import identity
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes.docker.reaper import LABEL
from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.sweeps.load import load_sweep
from tests.smoke.confinement import assert_node_confined
from tests.support.containers import containers_missing, leftovers
from tests.support.nightly import nightly
from tests.support.places import docker
from tests.support.runs import RecordingDisplay
from trainer.spec.run_spec import RunSpec

pytestmark = pytest.mark.containers
REMOVED = ["objects", "files", "escaped", "stopped", "headless", "clients", "data", "connections"]
REPLACED = ["limits", "priority", "cores", "oom_score", "streams", "deep_directory", "unreadable_directory"]
ATTACKS = [*REMOVED, "forks", *REPLACED]  # a process that forks may escape
CODE = Path(__file__).with_name("remains.py")


@dataclass(frozen=True)
class WarmSet:
    """Warm containers that take one run after the other."""

    runner: SweepRunner
    runs: Mapping[tuple[str, int], RunSpec]  # by what they do, and seed

    def after(self, kind: str) -> RunResult:
        """The run that follows one that leaves this behind."""
        seed = ATTACKS.index(kind)
        attack = self.runner.run(self.runs[kind, seed])
        assert (attack.status, attack.cause, attack.warm) == ("ok", None, True)
        return self.runner.run(self.runs["look", seed])


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmSet]:
    if missing := containers_missing():
        pytest.skip(missing)
    directory = tmp_path_factory.mktemp("warm")
    base = {"transport": "gloo", "nodes": 2, "timeout_s": 120, "memory_mb": 1024}
    blocks = [
        {"base": {**base, "seed": seed, "strategy": {"name": f"{CODE}:Remains", "kind": each}}}
        for seed, kind in enumerate(ATTACKS)
        for each in (kind, "look")
    ]
    file = directory / "s.yml"
    file.write_text(json.dumps({"name": "s", "blocks": blocks}))
    sweep, clusters = load_sweep(file), Clusters(DockerRuntime())
    runner = SweepRunner(clusters, "docker", SweepPaths(directory / "out"), directory, RecordingDisplay())
    runner.prepare(sweep)
    runs = {(str(run.strategy.form().get("kind", "look")), run.seed): run for run in sweep.runs}
    try:
        yield WarmSet(runner, runs)
    finally:
        clusters.close()
    assert leftovers(f"{LABEL}={identity()}") == []


@pytest.mark.parametrize("kind", [*REMOVED, REPLACED[0], *nightly("forks", *REPLACED[1:])])
def test_what_a_run_leaves_is_removed_or_replaces_the_containers(warm: WarmSet, kind: str) -> None:
    row = warm.after(kind)
    assert (row.status, row.cause) == ("ok", None)
    if kind in REMOVED:
        assert row.nodes_replaced is None
    if kind in REPLACED:
        assert "node 1 could not be cleaned" in str(row.nodes_replaced)


def test_containers_are_confined_after_the_attacks(warm: WarmSet) -> None:
    warm.after("escaped")
    nodes = docker("ps", "-q", "--filter", f"label={LABEL}={identity()}", "--filter", "name=-node-").split()
    assert len(nodes) == 2
    for node in nodes:
        assert assert_node_confined(node) >= 25
