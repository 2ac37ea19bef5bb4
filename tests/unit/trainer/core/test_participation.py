"""Mistakes in rounds of some ranks: how many after rounding, who is drawn, which round of a schedule."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.training import SMALL
from trainer.core.participation import Participation
from trainer.core.rng import RngFactory
from trainer.spec.run_spec import RunSpec


def drawn(participation: Participation, sizes: list[int], rounds: int) -> list[frozenset[int]]:
    rngs = RngFactory(0)
    return [
        participation.draw(each, sizes, rngs.generator("participation", each)) for each in range(rounds)
    ]


@example(mille=145, ranks=100)  # 14.5, but as floats a little less
@given(mille=st.integers(1, 1000), ranks=st.integers(1, 300))
def test_a_round_has_the_fraction_of_the_ranks_and_half_a_rank_more(mille: int, ranks: int) -> None:
    participation = Participation(fraction=mille / 1000)
    count = floor(Fraction(mille, 1000) * ranks + Fraction(1, 2))
    assert participation.fewest(ranks) == participation.most(ranks) == count
    assert bool(participation.error(ranks)) == (count == 0)
    (present,) = drawn(participation, [5] * ranks, 1)
    assert len(present) == count
    assert present <= {*range(ranks)}


@pytest.mark.parametrize(("by", "expected"), [("uniform", [0.25] * 4), ("size", [0.7, 0.1, 0.1, 0.1])])
def test_ranks_are_drawn_alike_or_by_size(by: Any, expected: list[float]) -> None:
    rounds = drawn(Participation(fraction=0.25, by=by), [70, 10, 10, 10], 2000)
    counts = Counter(rank for ranks in rounds for rank in ranks)
    np.testing.assert_allclose([counts[rank] / 2000 for rank in range(4)], expected, atol=0.04)


def test_a_schedule_starts_again_after_its_last_round() -> None:
    schedule = Participation(schedule=[[0, 2], [1]])
    assert drawn(schedule, [1, 1, 1], 5) == [{0, 2}, {1}, {0, 2}, {1}, {0, 2}]
    assert (schedule.fewest(3), schedule.most(3)) == (1, 2)


@pytest.mark.parametrize("ranks", [1, 3, 6, 7, 1024])
def test_the_least_fraction_of_a_message_is_allowed_and_no_smaller_one(ranks: int) -> None:
    message = Participation(fraction=1e-5).error(ranks)
    assert message is not None
    least = float(message.rpartition(" ")[2])
    assert Participation(fraction=least).error(ranks) is None
    assert Participation(fraction=least - 1e-4).error(ranks)


def run(participation: dict[str, Any], **strategy: Any) -> RunSpec:
    fields = {
        **SMALL,
        "nodes": 4,
        "strategy": {"name": "local_sgd", **strategy, "participation": participation},
    }
    return RunSpec.model_validate(fields)


def test_participation_that_cannot_be_is_named() -> None:
    half = {"fraction": 0.5}
    cases: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
        ({"fraction": 0.1}, "0.125", {}),
        ({"schedule": [[0], []]}, "round 1", {}),
        ({"schedule": [[0, 4]]}, "0 to 3", {}),
        ({"schedule": [[0], [-1]]}, "rank -1", {}),
        ({"schedule": [[1, 1]]}, "round 0", {}),
        ({}, "fraction", {}),
        ({**half, "schedule": [[0]]}, "schedule", {}),
        ({"schedule": [[0]], "by": "size"}, "by", {}),
        (half, "optimizer_state", {"optimizer_state": "average"}),  # of nodes that have never stepped
        (half, "graph", {"name": "gossip", "graph": "exponential"}),  # whose W would not keep the mean
    ]
    for participation, named, strategy in cases:
        with pytest.raises(ValidationError) as raised:
            run(participation, **strategy)
        assert named in str(raised.value)


def test_a_step_has_the_replicas_of_a_round() -> None:
    spec = run({"fraction": 0.5}, local_steps=1)
    assert (spec.num_replicas, spec.replicas_in_step) == (4, 2)
    with pytest.raises(ValidationError, match="lr_scaling"):  # would be for the batches of all 4
        RunSpec.model_validate({**spec.model_dump(mode="json"), "lr_scaling": "linear"})
