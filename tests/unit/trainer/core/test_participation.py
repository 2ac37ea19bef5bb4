"""Participation: how many ranks a round has, how they are drawn, and what cannot be asked for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.unit.training import SMALL
from trainer.core.participation import Participation
from trainer.core.rng import RngFactory
from trainer.spec.run_spec import RunSpec

ROUNDS = 4000


def drawn(participation: Participation, sizes: list[int], rounds: int = ROUNDS) -> list[frozenset[int]]:
    rngs = RngFactory(0)
    return [
        participation.draw(number, sizes, rngs.generator("participation", number))
        for number in range(rounds)
    ]


def shares(rounds: list[frozenset[int]], size: int) -> list[float]:
    counts = Counter(rank for ranks in rounds for rank in ranks)
    return [counts[rank] / len(rounds) for rank in range(size)]


@pytest.mark.parametrize(
    ("fraction", "size", "count"),
    [(0.5, 4, 2), (0.1, 100, 10), (0.125, 4, 1), (1, 3, 3), (0.145, 100, 15), (0.0575, 200, 12)],
)
def test_a_round_has_the_fraction_of_the_ranks(fraction: float, size: int, count: int) -> None:
    rounds = drawn(Participation(fraction=fraction), [5] * size, 20)
    assert {len(ranks) for ranks in rounds} == {count}
    assert len({*rounds}) > 1 or count == size


def test_uniform_rounds_ignore_sizes() -> None:
    rounds = drawn(Participation(fraction=0.25), [97, 1, 1, 1])
    np.testing.assert_allclose(shares(rounds, 4), 0.25, atol=0.03)


def test_rounds_by_size_follow_sizes() -> None:
    rounds = drawn(Participation(fraction=0.25, by="size"), [70, 10, 10, 10])
    np.testing.assert_allclose(shares(rounds, 4), [0.7, 0.1, 0.1, 0.1], atol=0.03)


def test_a_schedule_starts_again_after_its_last_round() -> None:
    rounds = drawn(Participation(schedule=[[0, 2], [1]]), [1, 1, 1], 5)
    assert rounds == [{0, 2}, {1}, {0, 2}, {1}, {0, 2}]


@pytest.mark.parametrize(
    ("participation", "named"),
    [
        ({"fraction": 0.1}, "0.125"),  # of 4
        ({"schedule": [[0], []]}, "round 1"),
        ({"schedule": [[0, 4]]}, "0 to 3"),
        ({"schedule": [[1, 1]]}, "round 0"),
        ({}, "fraction"),
        ({"fraction": 0.5, "schedule": [[0]]}, "schedule"),
        ({"schedule": [[0]], "by": "size"}, "by"),
    ],
)
def test_participation_that_cannot_be(participation: dict[str, Any], named: str) -> None:
    run = {**SMALL, "nodes": 4, "strategy": {"name": "local_sgd", "participation": participation}}
    with pytest.raises(ValidationError) as raised:
        RunSpec.model_validate(run)
    assert named in str(raised.value)


def test_a_step_has_the_replicas_of_a_round() -> None:
    strategy = {"name": "local_sgd", "local_steps": 1, "participation": {"fraction": 0.5}}
    run = {**SMALL, "nodes": 4, "strategy": strategy}
    spec = RunSpec.model_validate(run)
    assert (spec.num_replicas, spec.replicas_in_step) == (4, 2)
    with pytest.raises(ValidationError, match="lr_scaling"):  # would be for the batches of all 4
        RunSpec.model_validate({**run, "lr_scaling": "linear"})


@pytest.mark.parametrize("ranks", [3, 6, 7, 1024])
def test_the_least_fraction_of_a_message_is_allowed(ranks: int) -> None:
    message = Participation(fraction=1e-4).error(ranks)
    assert message is not None
    least = float(message.rpartition(" ")[2])
    assert Participation(fraction=least).error(ranks) is None


@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "local_sgd", "optimizer_state": "average"},  # of nodes that have never stepped
        {"name": "gossip", "graph": "exponential"},  # whose W would not keep the mean
    ],
)
def test_strategies_that_need_every_node(strategy: dict[str, Any]) -> None:
    run = {**SMALL, "nodes": 4}
    RunSpec.model_validate({**run, "strategy": strategy})
    with pytest.raises(ValidationError):
        RunSpec.model_validate({**run, "strategy": {**strategy, "participation": {"fraction": 0.5}}})
