"""Mistakes in the clusters of a sweep: which runs share one, its size, when it is deleted or replaced."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from orchestrator.execution.clusters import Clusters, warm_groups
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.launch_plan import ClusterPlan, LaunchPlan
from tests.unit.orchestrator.execution.test_sweep_runner import FakeCluster, FakeRuntime
from trainer.spec.run_spec import RunSpec

LIMIT = 8


class WarmRuntime(FakeRuntime):
    """A runtime whose runs share clusters, one kind for each memory; runs that may restart do not."""

    max_warm_nodes = LIMIT

    closed = 0

    def kind(self, spec: RunSpec) -> Hashable | None:
        return None if spec.restarts else spec.memory_mb

    def plan(
        self, spec: RunSpec, paths: RunPaths, data_dir: Path, peers: Sequence[RunSpec] = ()
    ) -> LaunchPlan:
        kind, size = self.kind(spec), max(self.size(each) for each in (spec, *peers))
        return LaunchPlan(
            spec, paths, data_dir, ClusterPlan(size, kind is not None, request={"kind": kind})
        )

    def close(self) -> None:
        self.closed += 1


class Pool(Clusters):
    def __init__(self) -> None:
        self.nodes = WarmRuntime()
        super().__init__(self.nodes)

    def use(self, nodes: int = 2, errors: Sequence[BaseException] = (), **fields: Any) -> FakeCluster:
        """The cluster of a run that has ended. errors: of the next deletions."""
        with self.lease_for(nodes, **fields) as lease:
            self.replaced = lease.replaced
            lease.cluster.errors += errors
            return lease.cluster

    def lease_for(self, nodes: int = 2, **fields: Any) -> Any:
        return self.lease(self.plan(run(nodes, **fields), RunPaths(Path("/x")), Path("/data")))


def run(nodes: int = 2, **fields: Any) -> RunSpec:
    strategy = {"strategy": "ddp" if fields.get("restarts") else "all_reduce", "transport": "gloo"}
    return RunSpec.model_validate({**strategy, "nodes": nodes, **fields})


@pytest.fixture
def pool() -> Pool:
    return Pool()


def deletions(*clusters: FakeCluster) -> list[int]:
    return [each.deleted for each in clusters]


def test_runs_of_one_kind_share_a_cluster_and_others_are_deleted_after_their_run(pool: Pool) -> None:
    first = pool.use(seed=1)
    assert pool.use(seed=2) is first
    assert pool.use(memory_mb=512) is not first
    cold = [pool.use(restarts=1, seed=seed) for seed in (1, 2)]
    assert cold[0] is not cold[1]
    assert deletions(first, *cold) == [0, 1, 1]


def test_a_cluster_is_large_enough_for_all_expected_runs(pool: Pool) -> None:
    pool.expect([run(2), run(5), run(3), run(7, memory_mb=512), run(8, restarts=1)])
    assert [pool.use(nodes).plan.cluster.size for nodes in (2, 5)] == [5, 5]
    assert pool.use(3, restarts=1).plan.cluster.size == 3
    assert len(pool.nodes.created) == 2


def test_the_cluster_of_a_run_that_ends_in_an_error_is_deleted(pool: Pool) -> None:
    for fields in ({}, {"restarts": 1}):
        with pytest.raises(KeyboardInterrupt), pool.lease_for(**fields):
            raise KeyboardInterrupt
        nodes = pool.nodes.created[-1]
        assert nodes.deleted == 1
        assert pool.use(**fields) is not nodes


def test_a_cluster_that_takes_no_more_runs_is_replaced(pool: Pool) -> None:
    for failure in ("node 1 was killed by SIGKILL", None):
        first = pool.use()
        assert pool.replaced is None
        first.usable, first.failure = False, failure
        assert pool.use(seed=1) is not first
        assert (first.deleted, pool.replaced) == (1, failure)


def test_the_clusters_used_longest_ago_make_room(pool: Pool) -> None:
    one = pool.use(LIMIT // 2)
    two = pool.use(LIMIT // 2, memory_mb=512)
    assert pool.use(LIMIT // 2, seed=2) is one
    three = pool.use(1, memory_mb=1024)
    assert deletions(one, two, three) == [0, 1, 0]
    cold = pool.use(LIMIT, restarts=1)
    assert deletions(one, three, cold) == [0, 0, 1]
    large = pool.use(LIMIT + 1, memory_mb=4096)
    assert deletions(one, three, large) == [1, 1, 0]


@pytest.mark.parametrize("error", [None, KeyboardInterrupt(), OSError("refused")], ids=repr)
def test_closing_deletes_all_even_after_an_exception(pool: Pool, error: BaseException | None) -> None:
    kept = [pool.use(), pool.use(memory_mb=512)]
    kept[1].errors = [error] if error else []
    with pytest.raises(type(error)) if error else nullcontext(), pool:
        pass
    assert deletions(*kept) == [1, 1]
    assert pool.nodes.closed == 1


def test_a_deletion_that_was_interrupted_after_a_run_is_repeated(pool: Pool) -> None:
    with pytest.raises(KeyboardInterrupt):
        pool.use(restarts=1, errors=[KeyboardInterrupt()])
    (nodes,) = pool.nodes.created
    assert nodes.deleted == 0
    pool.close()
    assert nodes.deleted == 1


def test_runs_whose_clusters_fit_together_are_a_group(pool: Pool) -> None:
    for largest, groups in (
        (LIMIT // 2, [["small", "large", "cold"]]),  # all fit
        (LIMIT // 2 + 1, [["small", "cold"], ["large"]]),
        (LIMIT + 1, [["small"], ["large"], ["cold"]]),
    ):
        named = {
            "small": [run(nodes, seed=seed, memory_mb=512) for nodes in (2, largest) for seed in (0, 1)],
            "large": [run(nodes) for nodes in (1, largest)],
            "cold": [run(3, restarts=1)],
        }
        found = warm_groups(pool.nodes, [each for runs in named.values() for each in runs])
        assert found == [[run for name in group for run in named[name]] for group in groups]
