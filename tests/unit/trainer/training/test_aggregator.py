"""Mistakes in aggregation over ranks: who counts, what attackers send and know, bits and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.virtual_training import VirtualTraining, train_virtually
from tests.unit.threads import together
from trainer.aggregation.mean import MeanAggregation
from trainer.comm.memory import MemoryCommunicator
from trainer.core.rng import RngFactory
from trainer.spec.registries import AGGREGATIONS
from trainer.spec.run_spec import RunSpec
from trainer.training.aggregator import Aggregator

N = 31  # weights of a rank: no multiple of the ranks
RANKS = 7


def spec(rule: Any, attack: Any = None, nodes: Sequence[int] = (5, 6)) -> RunSpec:
    byzantine = None if attack is None else {"nodes": [*nodes], "attack": attack}
    strategy = {"name": "local_sgd", "aggregation": rule}
    run = {"strategy": strategy, "nodes": RANKS, "transport": "memory", "byzantine": byzantine}
    return RunSpec.model_validate(run)


def own_weights(rank: int) -> Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(rank))


def aggregator(comm: MemoryCommunicator, run: RunSpec) -> Aggregator:
    return Aggregator(comm, run, RngFactory(0), 10, comm.rank)


def aggregated(
    run: RunSpec, weights: Sequence[int], idle: Sequence[int] = ()
) -> list[tuple[Tensor, Aggregator, float]]:
    """For each rank its aggregated weights, its aggregator and the bytes that it sent.

    idle: ranks that have a weight, and have not trained.
    """
    rule = run.aggregation or MeanAggregation()

    def body(comm: MemoryCommunicator) -> tuple[Tensor, Aggregator, float]:
        own, weight = aggregator(comm, run), weights[comm.rank]
        trained = weight > 0 and comm.rank not in idle
        return own.weights(own_weights(comm.rank), weight, trained, 0, rule), own, comm.bytes_sent

    return together(RANKS, body)


@pytest.mark.parametrize("name", AGGREGATIONS.entries)
def test_all_ranks_get_the_same_bits_of_what_whole_vectors_give(name: str) -> None:
    run, weights = spec(name), [1 + rank % 3 for rank in range(RANKS)]
    (first, _, _), *others = aggregated(run, weights)
    assert all(torch.equal(first, found) for found, _, _ in others)
    rows = torch.stack([own_weights(rank) for rank in range(RANKS)])
    expected = AGGREGATIONS.parse(name).combine(rows, torch.tensor(weights).float())
    torch.testing.assert_close(first, expected, rtol=1e-5, atol=1e-6)


class RingCommunicator(MemoryCommunicator):
    """Each part of a buffer is summed from another rank on, as in a ring (and so over gloo)."""

    def _all_reduce(self, buffer: Tensor) -> None:
        brought = [*self._all_gather(buffer)]
        for first, part in enumerate(buffer.tensor_split(self.size)):
            start = part.storage_offset() - buffer.storage_offset()
            in_turn = [*brought[first:], *brought[:first]]
            part.copy_(sum(each[start : start + len(part)] for each in in_turn))


def test_vectors_at_equal_distances_tie_in_any_transport() -> None:
    """Ranks 1 … 6 are as far from rank 0 as from each other: all scores are equal, and rank 0 is first."""
    lengths = torch.rand(RANKS, generator=torch.Generator().manual_seed(8))  # in each slice

    def body(memory: MemoryCommunicator) -> Tensor:
        comm = RingCommunicator(memory.rank, memory.size, memory.clock, memory._group)
        row = torch.zeros(RANKS, RANKS)  # in each slice one number for each rank
        row[:, comm.rank] = lengths
        rule = AGGREGATIONS.parse("krum")
        return aggregator(comm, spec("krum")).weights(row.view(-1), 1, True, 0, rule)

    for found in together(RANKS, body):
        assert torch.equal(found.view(RANKS, RANKS)[:, 0], lengths)


def test_bytes_are_those_of_an_all_reduce_whatever_attackers_learn() -> None:
    def sent(rule: str, attack: Any = None) -> list[float]:
        return [each for *_, each in aggregated(spec(rule, attack), [1] * RANKS)]

    plain, padding, distances = sent("mean")[0], 8 * RANKS, 8 * RANKS**2
    for name in ("median", "bulyan"):
        most = plain + 2 * padding + (distances if name == "bulyan" else 0)
        assert plain <= min(sent(name)) <= max(sent(name)) <= most
    assert sent("median", {"name": "little_is_enough", "z": 2.0}) == sent("median")


@pytest.mark.parametrize("name", ["median", "krum", "geometric_median"])
def test_only_ranks_that_have_trained_count(name: str) -> None:
    """Without enough of them, the weights of a rank that has not trained stay, from the last average."""
    least = AGGREGATIONS.parse(name).least
    for counting in range(1, RANKS):
        weights = [2, 1, 3, 1, 1, 2, 1][:counting] + [0] * (RANKS - counting - 1) + [5]
        found, own, _ = aggregated(spec(name), weights, idle=[RANKS - 1])[0]
        rows = torch.stack([own_weights(rank) for rank in range(counting)])
        expected = own_weights(counting)
        if counting >= least:
            expected = AGGREGATIONS.parse(name).combine(rows, torch.tensor(weights[:counting]).float())
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert own.without_effect == (counting < least)


# What Byzantine ranks send


class Started:
    """A replica at the start of a round."""

    def weights(self) -> Tensor:
        return torch.ones(N)


@pytest.mark.parametrize(
    ("attack", "weights", "sent"),
    [
        ({"name": "sign_flip", "scale": 3.0}, [1] * 7, lambda _, own: -3 * own),
        ({"name": "noise", "std": 100.0}, [1] * 5 + [0, 0], lambda _, own: own),  # without samples
        (
            {"name": "little_is_enough", "z": 2.0},  # knows the honest ranks with samples
            [1, 1, 1, 1, 0, 1, 1],
            lambda honest, _: honest.mean(dim=0) - 2 * honest.std(dim=0, unbiased=False),
        ),
    ],
    ids=["sign_flip", "idle", "little_is_enough"],
)
def test_an_attack_changes_what_a_rank_has_learnt_since_the_start_of_the_round(
    attack: dict[str, Any], weights: list[int], sent: Any
) -> None:
    run = spec("mean", attack)

    def body(comm: MemoryCommunicator) -> Tensor:
        own = aggregator(comm, run)
        own.begin_round(Started())  # type: ignore[arg-type]
        weight = weights[comm.rank]
        return own.weights(1 + own_weights(comm.rank), weight, weight > 0, 0, MeanAggregation())

    learnt = [own_weights(rank) for rank in range(RANKS)]
    honest = torch.stack([learnt[rank] for rank in range(5) if weights[rank]])
    changes = torch.stack([*learnt[:5], *(sent(honest, learnt[rank]) for rank in (5, 6))])
    share = torch.tensor(weights) / sum(weights)
    for found in together(RANKS, body):
        torch.testing.assert_close(found, 1 + share @ changes, rtol=1e-5, atol=1e-5)


def test_noise_differs_between_steps_and_ranks() -> None:
    def body(comm: MemoryCommunicator) -> list[Tensor]:
        own = aggregator(comm, spec("mean", "noise"))
        return [own.gradient(torch.zeros(N), 1, step) for step in (1, 2, 1)]

    honest, *_, fifth, sixth = together(RANKS, body)
    assert not any(vector.any() for vector in honest)
    assert torch.equal(fifth[0], fifth[2])
    assert not torch.equal(fifth[0], fifth[1])
    assert not torch.equal(fifth[0], sixth[0])


# Trainings

DIGITS = {
    "dataset": "digits",
    "model": {"name": "mlp", "hidden": [32]},
    "batch_size": 16,
    "lr": 0.1,
    "epochs": 2,
    "transport": "memory",
    "save_weights": True,
}
HARD = {"name": "sign_flip", "scale": 10.0}


def trained(strategy: Any, nodes: int, **fields: Any) -> VirtualTraining:
    run = {**DIGITS, "strategy": strategy, "nodes": nodes, **fields}
    return train_virtually(RunSpec.model_validate(run))


def accuracy(training: VirtualTraining) -> float:
    assert len({result.weights_digest for result in training.results}) == 1
    return training.results[0].accuracy or 0.0


@pytest.mark.parametrize("strategy", ["local_sgd", "parameter_server", "fedopt", "one_shot", "all_gather"])
def test_every_strategy_is_attacked_and_withstands(strategy: str) -> None:
    own = {"server": "momentum", "beta1": 0.0} if strategy == "fedopt" else {}
    fields = {"byzantine": {"nodes": [-1], "attack": {**HARD, "scale": 4.2}}, "epochs": 4}
    nodes = 6 if strategy == "parameter_server" else 5
    mean, median = (
        accuracy(trained({"name": strategy, "aggregation": rule, **own}, nodes, **fields))
        for rule in ("mean", "median")
    )
    assert mean < 0.3
    assert median > 0.5


def test_the_evaluated_average_is_that_of_the_rule() -> None:
    """After the only epoch and before the only average, and after the average."""
    fields: dict[str, Any] = {"epochs": 1, "byzantine": {"nodes": [0], "attack": HARD}}
    local = {"name": "local_sgd", "local_steps": None, "aggregation": "median"}
    found = trained(local, 5, **fields)
    (epoch,) = [event for event in found.events[0] if event.kind == "epoch"]
    one_shot = trained({"name": "one_shot", "weighting": "size", "aggregation": "median"}, 5, **fields)
    assert epoch.fields["accuracy"] == accuracy(one_shot)


def test_flipped_labels_are_trained_on() -> None:
    attack = {"nodes": [1], "attack": "label_flip"}
    honest, flipped = (trained("one_shot", 2, byzantine=each).results for each in (None, attack))
    assert (honest[1].local_accuracy or 0) > 0.5
    assert (flipped[1].local_accuracy or 0) < 0.2
    assert flipped[0].local_accuracy == honest[0].local_accuracy


@pytest.mark.parametrize("strategy", ["local_sgd", "all_gather", "parameter_server"])
def test_aggregations_of_too_few_vectors_are_counted(strategy: str) -> None:
    """With parts of different size, the last steps of an epoch have too few ranks for Krum."""
    nodes = 6 if strategy == "parameter_server" else 5
    fields = {"partitioner": "quantity", "dataset": {"name": "synthetic", "samples": 600}}
    for rule, without_effect in (("krum", True), ("median", False)):
        found = trained({"name": strategy, "aggregation": rule}, nodes, **fields)
        assert accuracy(found) > 0
        assert (found.results[0].aggregations_without_effect is not None) is without_effect
