"""Mistakes of runs that continue when a node is lost: who is left and returns, on what they trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.results.records import RunResult
from tests.support.nightly import nightly
from tests.support.runs import SMALL

Execute = Callable[..., RunResult]
EPOCHS = 6
# Each averages in its own way.
OTHERS = ["diloco", *nightly("local_sgd", "gossip")]
SAMPLES = 1437  # in the training split of digits
KILL = {"kill": {"node": 2}, "at": {"epoch": 3}}
RETURN = {"kill": {"node": 0, "return_after": 0.1}, "at": {"step": 13}}  # in epoch 2


def run(execute: Execute, **fields: Any) -> RunResult:
    """Execute a run of four nodes that must end ok and leave nothing."""
    common = {"dataset": "digits", "nodes": 4, "epochs": EPOCHS, "transport": "gloo", "on_loss": "continue"}
    result = execute(**common | fields)
    assert result.status == "ok", result.cause
    assert result.certificate is not None
    assert result.certificate.verified
    return result


def parts(result: RunResult) -> dict[int, set[int]]:
    """The epochs that each rank has certified."""
    found: dict[int, set[int]] = {}
    for part in result.certificate.parts if result.certificate else ():
        found.setdefault(part.rank, set()).add(part.epoch)
    return found


@pytest.mark.parametrize("strategy", OTHERS)
def test_the_others_continue_without_a_killed_node(execute: Execute, strategy: str) -> None:
    result = run(execute, strategy=strategy, faults=[KILL])
    assert [rank.rank for rank in result.ranks] == [0, 1, 3]
    assert result.replicas_equal
    assert {part: len(epochs) for part, epochs in parts(result).items()} == {
        **dict.fromkeys((0, 1, 3), EPOCHS),
        2: 2,
    }
    lost = SAMPLES * EPOCHS - sum(p.samples for p in result.certificate.parts)  # type: ignore[union-attr]
    assert result.samples_lost == lost
    assert lost // (EPOCHS - 2) == SAMPLES // 4
    assert (result.accuracy or 0) > 0.7
    assert all(rank.wait_s_by_rank is None for rank in result.ranks)


@pytest.mark.parametrize("strategy", OTHERS)
def test_averages_without_a_killed_node_weight_unequal_parts(execute: Execute, strategy: str) -> None:
    """The lost node has twice as many samples as any other, so later none of the others has any left."""
    skewed = {"partitioner": {"name": "dirichlet", "alpha": 0.3}, "seed": 4}
    result = run(execute, strategy=strategy, faults=[KILL], **skewed)
    assert [rank.rank for rank in result.ranks] == [0, 1, 3]
    assert result.replicas_equal
    planned = {part.rank: part.samples for part in result.certificate.parts}  # type: ignore[union-attr]
    assert planned[2] >= 2 * max(planned[rank] for rank in (0, 1, 3))
    assert {rank.steps for rank in result.ranks} == {EPOCHS * -(-planned[2] // 32)}


@pytest.mark.parametrize("strategy", OTHERS)
def test_node_that_returns_takes_over_the_weights(execute: Execute, strategy: str) -> None:
    """It is node 0, which has served the rendezvous, and the first to report results."""
    result = run(execute, strategy=strategy, epochs=60, lr=0.02, faults=[RETURN])
    assert [rank.rank for rank in result.ranks] == [0, 1, 2, 3]
    assert result.replicas_equal
    certified = parts(result)
    first = min(certified[0] - {1})
    assert certified[0] == {1, *range(first, 61)}
    assert certified[1] == {*range(1, 61)}
    planned = next(part.samples for part in result.certificate.parts if part.rank == 0)  # type: ignore[union-attr]
    assert result.samples_lost == planned * (first - 2)


@pytest.mark.parametrize("max_staleness", [None, 0])
def test_asynchronous_server_drops_lost_workers(execute: Execute, max_staleness: int | None) -> None:
    faults = [{"kill": {"node": 1}, "at": {"step": 8}}, {"kill": {"node": 3}, "at": {"epoch": 4}}]
    strategy = {"name": "async_parameter_server", "max_staleness": max_staleness}
    result = run(execute, strategy=strategy, transport="rpc", faults=faults)
    assert [rank.rank for rank in result.ranks] == [0, 2]
    server, worker = result.ranks
    assert worker.steps == 15 * EPOCHS
    assert server.steps >= worker.steps + 15 * 3 + 7  # those of the lost workers that were applied
    assert parts(result) == {2: {*range(1, EPOCHS + 1)}, 3: {1, 2, 3}}


def test_run_ends_when_its_server_is_killed(execute: Execute) -> None:
    server = {"strategy": "async_parameter_server", "transport": "rpc", "nodes": 3}
    faults = [{"kill": {"node": 0}, "at": {"step": 20}}]
    result = execute(**server, epochs=EPOCHS, on_loss="continue", faults=faults)
    assert result.status == "failed"
    assert "node 0" in str(result.cause)
    assert "SIGKILL" in str(result.cause)


@pytest.mark.nightly
def test_nodes_that_have_returned_certify_the_epochs_that_they_missed(execute: Execute) -> None:
    """No node was there all the time. The pause lets the lost node return before the next epoch."""

    def returns(node: int, epoch: int) -> list[dict[str, object]]:
        kill = {"kill": {"node": node, "return_after": 0.1}, "at": {"epoch": epoch}}
        return [kill, {"pause": {"node": 1 - node, "seconds": 3}, "at": {"epoch": epoch}}]

    reshuffled = {"name": "random_partition", "reshuffle": True}
    fields = {"strategy": "local_sgd", "nodes": 2, "epochs": 5, "partitioner": reshuffled}
    result = run(execute, **fields, dataset=SMALL["dataset"], faults=[*returns(0, 2), *returns(1, 4)])
    assert result.certificate is not None
    assert [split.epoch for split in result.certificate.splits] == [1, 2, 3, 4, 5]
    trained = {(part.epoch, part.rank) for part in result.certificate.parts}
    assert trained == {(epoch, rank) for epoch in range(1, 6) for rank in (0, 1)} - {(2, 0), (4, 1)}
    assert result.certificate.samples_lost == 240
