"""Real training on every strategy and transport: what the row says is what happened."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from orchestrator.results.records import RunResult
from trainer.spec.registries import COMPRESSIONS, STRATEGIES, TRANSPORTS

Execute = Callable[..., RunResult]

ROWS = [
    pytest.param(name, transport, nodes, marks=[pytest.mark.gpu(nodes)] if transport == "nccl" else [])
    for name in STRATEGIES.entries
    if (strategy := STRATEGIES.load(name)).trains
    for transport in strategy.transports
    for nodes in (1, 4 if name == "hybrid" else 3)  # it takes whole pipelines
    if strategy.min_nodes <= nodes <= (strategy.max_nodes or nodes)
]


@pytest.mark.parametrize(("strategy", "transport", "nodes"), ROWS)
def test_every_strategy_on_every_transport(
    execute: Execute, strategy: str, transport: str, nodes: int
) -> None:
    result = execute(strategy=strategy, transport=transport, nodes=nodes, epochs=5)
    assert (result.status, result.cause) == ("ok", None)
    assert [rank.rank for rank in result.ranks] == list(range(nodes))
    assert sum(rank.samples for rank in result.ranks) == 240 * 5

    # Training goes somewhere: well above the 10 % of a guess, and the loss fell on every rank.
    assert result.accuracy is not None
    assert result.accuracy > 0.4
    for rank in range(nodes):
        own = [point for point in result.epochs if point.rank == rank]
        assert [point.epoch for point in own] == [1, 2, 3, 4, 5]
        assert own[-1].test_loss < own[0].test_loss

    # The clock accounts for every second of training, and only for those.
    for account in result.ranks:
        assert account.train_s == pytest.approx(
            sum(account.seconds.values()) - account.seconds["evaluate"], abs=1e-4
        )
        assert account.seconds["compute"] > 0
    assert result.startup_s is not None
    assert result.teardown_s is not None
    assert result.wall_s > result.startup_s > 0
    assert result.teardown_s > 0

    assert result.certificate is not None
    assert result.certificate.verified
    assert [split.coverage for split in result.certificate.splits] == [1.0] * 5
    assert [split.overlap for split in result.certificate.splits] == [0.0] * 5
    assert result.replicas_equal, "after the last exchange all replicas are the same"


def test_bytes_sent_follow_from_the_algorithm(execute: Execute) -> None:
    once = execute(strategy="one_shot", transport="gloo", nodes=2)
    weights = once.ranks[0].parameters * 4
    # Rank 0 broadcasts its start to the other node; then one all-reduce: 2 (P - 1) / P of the weights.
    assert [rank.bytes_sent for rank in once.ranks] == [2 * weights, weights]

    each = execute(strategy="all_reduce", transport="mpi", nodes=2)
    ddp = execute(strategy="ddp", nodes=2)
    for result in (each, ddp):
        assert [rank.bytes_sent for rank in result.ranks] == [rank.steps * weights for rank in result.ranks]


@pytest.mark.parametrize("compression", [name for name in COMPRESSIONS.entries if name != "none"])
def test_compressed_gradients_train_with_fewer_bytes(execute: Execute, compression: str) -> None:
    strategy = {"name": "all_reduce", "compression": compression}
    result = execute(strategy=strategy, transport="gloo", nodes=2, epochs=5)
    assert (result.status, result.cause) == ("ok", None)
    assert result.replicas_equal
    assert result.accuracy is not None
    assert result.accuracy > 0.4
    for rank in result.ranks:
        assert 0 < rank.bytes_sent < 0.51 * rank.steps * rank.parameters * 4


@pytest.mark.parametrize("compression", ["fp16", "power_sgd"])
def test_ddp_compresses_with_torchs_hooks(execute: Execute, compression: str) -> None:
    # 3.6 MB of gradient, which DDP cuts into buckets: torch's PowerSGD can have but one over gloo.
    hidden = [512, 512, 128]
    strategy = {"name": "ddp", "compression": compression}
    result = execute(strategy=strategy, nodes=2, epochs=3, model={"name": "mlp", "hidden": hidden})
    assert (result.status, result.cause) == ("ok", None)
    assert result.replicas_equal
    assert result.accuracy is not None
    assert result.accuracy > 0.4
    widths = [28 * 28, *hidden, 10]
    low_rank = sum(widths[1:]) + 2 * sum(a + b for a, b in pairwise(widths))
    for rank in result.ranks:
        dense, compressed = 4 * rank.parameters, 2 * rank.parameters
        if compression == "power_sgd":  # the first two steps are not compressed
            dense, compressed = 2 * dense, 4 * low_rank
            assert rank.bytes_sent == dense + (rank.steps - 2) * compressed
        else:
            assert rank.bytes_sent == rank.steps * compressed


def test_one_shot_reports_each_nodes_own_model(execute: Execute) -> None:
    apart = {"name": "one_shot", "init": "independent"}
    result = execute(strategy=apart, transport="memory", nodes=3, epochs=1)
    assert len(result.local_accuracies) == 3
    assert len(set(result.local_accuracies)) > 1
    last = [point.accuracy for point in result.epochs if point.epoch == 1]
    assert result.local_accuracies == last


def test_sampling_misses_samples_and_the_certificate_says_so(execute: Execute) -> None:
    result = execute(
        strategy="one_shot",
        transport="memory",
        nodes=2,
        partitioner={"name": "random_sampling", "reshuffle": True},
        epochs=4,
    )
    assert result.certificate is not None
    assert result.certificate.verified
    first, *_, last = result.certificate.splits
    assert 0.6 < first.coverage < 0.9
    assert first.overlap == pytest.approx(1 - first.coverage)  # two nodes that draw half each
    assert last.coverage_so_far > 0.95, "redrawn every epoch, the whole set is seen in time"
    assert {part.samples for part in result.certificate.parts} == {120}


def test_a_diverging_run_says_so(execute: Execute) -> None:
    result = execute(strategy="serial", lr=100.0, epochs=50, optimizer="momentum")
    assert result.status == "failed"
    assert "a smaller lr may help" in str(result.cause)


def test_transports_of_the_registry_are_all_trained_on() -> None:
    assert {row.values[1] for row in ROWS} == set(TRANSPORTS.entries)
