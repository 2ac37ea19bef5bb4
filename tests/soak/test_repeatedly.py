"""Mistakes that many repetitions show: starts that fail, nodes that grow, samples lost in rare orders."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.smoke.conftest import Stack
from tests.support.containers import containers_missing
from tests.support.processes import node_processes
from tests.support.runs import SMALL, RecordingDisplay, data_directory, execute
from tests.unit.view_model import Setting, search
from trainer.core.rng import RngFactory
from trainer.spec.run_spec import RunSpec
from trainer.training.partition import partition

TIMES = int(os.environ.get("SOAK_TIMES", "20"))
INJECTED = {"name": "fault_injection", "rank": 1, "work_s": 0.3}
# On warm nodes, which are those of the first run.
RUNS: list[tuple[dict[str, Any], str]] = [
    ({"strategy": "all_reduce", "transport": "gloo"}, "ok"),
    ({"strategy": "all_reduce", "transport": "rpc"}, "ok"),
    ({"strategy": {**INJECTED, "fault": "flood"}, "transport": "gloo"}, "ok"),
    ({"strategy": {**INJECTED, "fault": "crash"}, "transport": "rpc"}, "failed"),
    ({"strategy": {**INJECTED, "fault": "kill"}, "transport": "mpi"}, "failed"),
]
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(0)]


@pytest.mark.containers
@pytest.mark.parametrize("topology", ["ddp", "mpi", "rpc", "single"])
def test_a_topology_starts_with_new_containers_and_with_stopped_ones(topology: str, tmp_path: Path) -> None:
    if missing := containers_missing():
        pytest.skip(missing)
    size = 4 + (topology == "rpc")  # its master is a rank, too
    for number in range(TIMES):
        (results := tmp_path / str(number)).mkdir()
        stack = Stack(topology, f"soak-{topology}-{os.getpid()}", results, {"SHARDYARD_CPUS": "0.4"})
        try:
            for up in (stack.up(4), stack.up(4)):
                assert up.returncode == 0, up.stdout
                assert re.search(rf"(?m)^\S*coordinator-1\s+\| ok: .*\bworld size {size}\b", up.stdout)
                assert len(re.findall(r"\| up, process", up.stdout)) == size, up.stdout
                assert "Connection refused" not in up.stdout
        finally:
            stack.down()


def test_warm_nodes_do_not_grow(tmp_path: Path) -> None:
    """The first round starts the nodes, and fills their caches."""
    shared_memory, sizes = {*Path("/dev/shm").iterdir()}, []
    for number in range(TIMES + 1):
        for fields, status in RUNS:
            result = execute(
                RunSpec.model_validate({**SMALL, **fields, "nodes": 3}), tmp_path / str(number)
            )
            assert result.status == status, result.cause
        children = psutil.Process().children(recursive=True)
        nodes = [each for each in children if "trainer.warm" in each.cmdline()]
        memory, descriptors = (
            sum(each.memory_info().rss for each in nodes),
            sum(e.num_fds() for e in nodes),
        )
        sizes.append((memory, descriptors))
    assert nodes
    assert sizes[-1][0] < 1.05 * sizes[1][0], sizes
    assert sizes[-1][1] <= sizes[1][1], sizes
    assert {*Path("/dev/shm").iterdir()} <= shared_memory


def run_with_losses(seed: int) -> RunSpec:
    """A run with up to three losses. One node is never lost: it keeps the weights."""
    draws = random.Random(seed)
    nodes = draws.choice([3, 4])
    others, faults = draws.sample(range(nodes), nodes - 1), []
    for _ in range(draws.randint(1, 3)):
        # Not before the first step: only node 0 has the first weights, and the run ends with it.
        at = draws.choice([{"step": draws.randint(1, 100)}, {"second": draws.uniform(0.1, 2)}])
        returns = {"return_after": draws.uniform(0.05, 1)} if draws.random() < 0.75 else {}
        faults.append({"kill": {"node": draws.choice(others), **returns}, "at": at})
    fields = {"transport": "gloo", "dataset": "digits", "model": "mlp", "epochs": 12, "timeout_s": 60}
    fields["strategy"] = draws.choice(["local_sgd", "diloco", "gossip"])
    fields["partitioner"] = draws.choice(
        ["random_partition", "quantity", {"name": "dirichlet", "alpha": 0.3}]
    )
    return RunSpec(**fields, on_loss="continue", nodes=nodes, seed=seed, faults=faults)


@pytest.mark.parametrize("seed", range(TIMES))
def test_a_run_that_continues_counts_the_samples_that_it_lost(seed: int, tmp_path: Path) -> None:
    """Those of the partitions of nodes and epochs without a record."""
    run, display = run_with_losses(seed), RecordingDisplay()
    result = execute(run, tmp_path, display=display)
    assert (result.status, result.replicas_equal) == ("ok", True), result.cause
    trained = {(event.fields["epoch"], event.rank) for event in display.seen if event.kind == "partition"}
    labels, rngs = run.dataset.load(data_directory()).train.labels, RngFactory(run.seed, run.vary)
    assert result.samples_lost == sum(
        len(part)
        for epoch in range(1, run.epochs + 1)
        for rank, part in enumerate(partition(run, rngs, labels, run.num_replicas, epoch))
        if (epoch, rank) not in trained
    )
    assert node_processes(tmp_path) == []


def test_ranks_agree_in_settings_too_large_for_every_change() -> None:
    for setting in (
        Setting(3, losses=2, returns=2),
        Setting(3, losses=2, returns=1, shifts=True),
        Setting(3, losses=1, returns=1, delayed=True),
        Setting(4, losses=2, epochs=1, shifts=True),
        Setting(4, losses=2, returns=2),
    ):
        assert search(setting, most=2_000_000).wrong is None, setting
