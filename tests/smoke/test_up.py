"""Mistakes of `docker compose up` without settings, with two nodes in every topology.

All tests of a topology look at one start. Nightly, the stopped containers start again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.execution.run_result import certify
from orchestrator.results.records import ranks_of
from orchestrator.runtimes.docker.compose import COMPOSE
from tests.smoke.conftest import Stack
from tests.support.command_line import Done
from tests.support.containers import docker
from tests.support.processes import wait_until
from trainer.core.events import Event

Make = Callable[..., Stack]
WORLD_SIZES = {"ddp": 2, "mpi": 2, "single": 2, "rpc": 3}  # at --scale node=2
OWNER = (4321, 8765)  # UID and GID of the spec file


@dataclass
class Started:
    """A stack that has trained, and stopped."""

    stack: Stack
    up: Done
    spec: dict[str, Any]
    events: list[Event]
    containers: list[dict[str, Any]]
    network: dict[str, Any]

    @property
    def topology(self) -> str:
        return self.stack.topology

    @property
    def results(self) -> Path:
        return self.stack.results

    def assert_summary(self, up: Done) -> None:
        """A start has ended with exit code 0, and the summary is the last output of the containers."""
        assert up.returncode == 0, up.stdout
        lines = [line for line in up.stdout.splitlines() if "|" in line]
        size = WORLD_SIZES[self.topology]
        assert re.search(rf"coordinator-1 +\| ok: .*world size {size}\b", up.stdout), up.stdout
        assert re.search(r"coordinator-1 +\|   results: ", lines[-1]), lines[-5:]
        assert "Connection refused" not in up.stdout


@pytest.fixture(scope="module", params=WORLD_SIZES)
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    topology: str = request.param
    directory = tmp_path_factory.mktemp(topology)
    (results := directory / "results").mkdir()
    spec = directory / "spec.json"
    shutil.copy(COMPOSE / "specs" / f"{topology}.json", spec)
    fields = json.loads(spec.read_text())
    if os.getuid() == 0:
        os.chown(spec, *OWNER)
    stack = Stack(topology, f"smoke-{topology}-{os.getpid()}", results, {"SHARDYARD_SPEC": str(spec)})
    try:
        up = stack.up(2)
        assert up.returncode == 0, up.stdout
        yield Started(stack, up, fields, stack.events(), stack.inspect(), stack.inspect_network())
    finally:
        stack.down()


def test_training(started: Started) -> None:
    """The loss falls, the accuracy is that of a trained model, and the certificate is verified."""
    epochs = started.spec["epochs"]
    ranks = ranks_of(started.events)
    assert [rank.rank for rank in ranks] == list(range(WORLD_SIZES[started.topology]))
    points = [event for event in started.events if (event.kind, event.rank) == ("epoch", ranks[0].rank)]
    losses = [point.fields["test_loss"] for point in points]
    assert len(losses) == epochs
    assert losses[-1] < losses[0] / 2
    assert (ranks[0].accuracy or 0) > 0.9
    if started.topology == "rpc":
        assert [(rank.blocks or [])[0] for rank in ranks[1:]] == ["conv1", "flatten"]
    else:
        assert len({rank.weights_digest for rank in ranks}) == 1
    certificate = certify(started.events)
    assert certificate is not None
    assert certificate.verified
    assert [(split.coverage, split.overlap) for split in certificate.splits] == [(1.0, 0.0)] * epochs


def test_summary(started: Started) -> None:
    started.assert_summary(started.up)


@pytest.mark.nightly
def test_stopped_containers_start_again(started: Started) -> None:
    before = [*started.results.iterdir()]
    spec = Path(started.stack.settings["SHARDYARD_SPEC"])
    spec.write_text(json.dumps({**started.spec, "epochs": 1}))
    started.assert_summary(started.stack.up(2))
    assert len([*started.results.iterdir()]) == len(before) + 1


def test_results_belong_to_the_owner_of_the_spec(started: Started) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can change the owner of a file")
    files = [started.results, *started.results.rglob("*")]
    assert len(files) > 5
    assert {(path.stat().st_uid, path.stat().st_gid) for path in files} == {OWNER}


@pytest.mark.parametrize(("topology", "transport"), [("ddp", "gloo"), ("mpi", "mpi")])
def test_killed_node_ends_the_stack(stack: Make, tmp_path: Path, topology: str, transport: str) -> None:
    """The exit code is not 0, and the summary names the node."""
    strategy: dict[str, Any] = {"name": "fault_injection", "fault": "stall", "rank": 0}
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"strategy": strategy, "transport": transport}))
    cluster = stack(topology, SHARDYARD_SPEC=str(spec))
    up = cluster.start(2)
    wait_until(lambda: list(cluster.results.glob("*/rank-0.jsonl")))
    docker("kill", f"{cluster.project}-node-1")
    output, _ = up.communicate(timeout=60)
    assert up.returncode != 0
    assert re.search(r"coordinator-1 +\| FAILED: ", output), output
    assert re.search(r"coordinator-1 +\|   node-1: .*killed", output), output
