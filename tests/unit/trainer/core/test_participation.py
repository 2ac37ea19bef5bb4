"""Mistakes in random streams and rounds of some ranks: equal streams, rounding, rounds of a schedule."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product
from math import floor
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.training import SMALL
from trainer.core.participation import Participation
from trainer.core.rng import FIXED_SEED, SOURCE_OF, SOURCES, RngFactory
from trainer.spec.run_spec import RunSpec


def drawn(participation: Participation, sizes: list[int], rounds: int) -> list[frozenset[int]]:
    rngs = [RngFactory(0).generator("participation", each) for each in range(rounds)]
    return [participation.draw(each, sizes, rng) for each, rng in enumerate(rngs)]


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


def test_ranks_are_drawn_alike_or_by_size() -> None:
    expected: dict[Any, list[float]] = {"uniform": [0.25] * 4, "size": [0.7, 0.1, 0.1, 0.1]}
    for by, shares in expected.items():
        rounds = drawn(Participation(fraction=0.25, by=by), [70, 10, 10, 10], 1000)
        found = [sum(rank in ranks for ranks in rounds) / 1000 for rank in range(4)]
        assert found == pytest.approx(shares, abs=0.06)


def test_a_schedule_starts_again_after_its_last_round() -> None:
    schedule = Participation(schedule=[[0, 2], [1]])
    assert drawn(schedule, [1, 1, 1], 5) == [{0, 2}, {1}, {0, 2}, {1}, {0, 2}]
    assert (schedule.fewest(3), schedule.most(3)) == (1, 2)


def test_the_least_fraction_of_a_message_is_allowed_and_no_smaller_one() -> None:
    for ranks in (1, 3, 6, 7, 1024):
        least = float(str(Participation(fraction=1e-5).error(ranks)).rpartition(" ")[2])
        assert Participation(fraction=least).error(ranks) is None
        assert Participation(fraction=least - 1e-4).error(ranks)


def run(participation: dict[str, Any], **strategy: Any) -> RunSpec:
    named = {"name": "local_sgd", **strategy, "participation": participation}
    return RunSpec.model_validate({**SMALL, "nodes": 4, "strategy": named})


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
        with pytest.raises(ValidationError, match=named):
            run(participation, **strategy)


def test_a_step_has_the_replicas_of_a_round() -> None:
    spec = run({"fraction": 0.5}, local_steps=1)
    assert (spec.num_replicas, spec.replicas_in_step) == (4, 2)
    with pytest.raises(ValidationError, match="lr_scaling"):  # would be for the batches of all 4
        RunSpec.model_validate({**spec.model_dump(mode="json"), "lr_scaling": "linear"})


# Streams


def draw(seed: int, purpose: str, *index: int) -> list[int]:
    return RngFactory(seed).generator(purpose, *index).integers(0, 2**63, 4).tolist()


def test_equal_names_give_equal_streams_and_others_do_not() -> None:
    indices = [(), (0,), (3,), (0, 0), (3, 0), (0, 3), (1, 1)]
    names = [*product((0, 1), ("order", "partition", "weights"), indices)]
    streams = {tuple(draw(seed, purpose, *index)) for seed, purpose, index in names}
    seeds = {RngFactory(seed).torch_seed(purpose, *index) for seed, purpose, index in names}
    assert len(streams) == len(seeds) == len(names)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert draw(1, "order", 3) == draw(1, "order", 3)


def test_a_seed_varies_only_the_sources_that_are_listed() -> None:
    for vary in (chosen for count in range(4) for chosen in combinations(SOURCES, count)):
        for purpose, source in SOURCE_OF.items():
            found = [RngFactory(seed, vary).torch_seed(purpose, 1) for seed in (5, 6, FIXED_SEED)]
            assert len({*found}) == (3 if source in vary else 1)


def test_streams_do_not_change_between_versions() -> None:
    """With other numbers, results are not comparable with those of earlier versions."""
    assert RngFactory(7).generator("order", 2, 1).permutation(6).tolist() == [3, 1, 4, 2, 5, 0]
    assert RngFactory(7).torch_seed("weights", 0) == 9085787105343426115
