"""Mistakes of probabilities: false claims, wrong choices, wrong proposals of seeds, too little power.

Each simulation draws sweeps whose truth is known; tests/bench/claims.py draws whole sweeps.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import nctdtr

from orchestrator.report.findings.decide import FALSE_SHOWN
from orchestrator.report.statistics.contrasts import MOST_SEEDS, Contrast, critical_t, seeds_to_decide
from orchestrator.report.statistics.families import dunnett
from orchestrator.report.statistics.moderated import moderated
from tests.bench.claims import CELLS, REPORTS, Cell, choices, false_claims

pytestmark = pytest.mark.nightly

SIMULATED = 500


def most(share: float, number: float) -> float:
    """The largest share of a number that a probability may have, with two standard errors."""
    return share + 2 * (share * (1 - share) / max(1, number)) ** 0.5


def name_of(cell: Cell) -> str:
    return f"{cell.name}, {cell.seeds} seeds"


@pytest.mark.parametrize("cell", CELLS, ids=name_of)
def test_reports_on_equals_rarely_claim_a_difference(cell: Cell) -> None:
    found = false_claims(cell)
    print(f"{name_of(cell)}: {found}")
    assert max(found) <= most(FALSE_SHOWN, REPORTS)


@pytest.mark.parametrize("cell", CELLS, ids=name_of)
def test_choices_are_as_often_right_as_they_say(cell: Cell) -> None:
    found = choices(cell)
    print(f"{name_of(cell)}: {found}")
    assert sum(share for share, _ in found) > 0.1
    for (share, wrong), stated in zip(found, (0.05, 0.2), strict=True):
        assert wrong <= most(stated, share * REPORTS)


@pytest.mark.parametrize("seeds", [5, 8])
def test_seeds_that_are_proposed_decide(seeds: int) -> None:
    """Of the proposals for pairs that are undecided, at least three of four come true."""
    rng, level, came_true = np.random.default_rng(2), FALSE_SHOWN / 14, list[bool]()
    for _ in range(SIMULATED):
        values = rng.normal(size=(2, MOST_SEEDS)) + rng.normal(0, 1, size=(2, 1))

        def measured(count: int, values: np.ndarray = values) -> Contrast:
            return Contrast(*moderated([dict(enumerate(side[:count].tolist())) for side in values]))

        contrast = measured(seeds)
        needed = None if contrast.p < level else seeds_to_decide(contrast, level)
        if needed:
            came_true.append(measured(needed).p < level)
    share = sum(came_true) / len(came_true)
    print(f"{seeds} seeds: {len(came_true)} of {SIMULATED} got a proposal, {share:.2f} came true")
    assert len(came_true) > SIMULATED / 10
    assert share >= 0.75 - 2 * (0.75 * 0.25 / len(came_true)) ** 0.5


@pytest.mark.parametrize("seeds", [5, 10])
def test_power_is_that_of_the_textbook(seeds: int) -> None:
    """A difference of two standard deviations in one of 14 comparisons with serial, corrected for all."""
    rng, decided = np.random.default_rng(2), 0
    for _ in range(SIMULATED):
        groups = [dict(enumerate(rng.normal(size=seeds).tolist())) for _ in range(15)]
        groups[1] = {seed: value + 2 for seed, value in groups[1].items()}
        serial, *others = moderated(groups)
        decided += dunnett([Contrast(each, serial) for each in others], FALSE_SHOWN)[0].decided
    shift, dof = 2 / (2 / seeds) ** 0.5, 2 * (seeds - 1)
    textbook = 1 - float(nctdtr(dof, shift, critical_t(FALSE_SHOWN / 14, dof)))
    print(f"{seeds} seeds: power {decided / SIMULATED:.2f}; one t test at 5 % / 14: {textbook:.2f}")
    assert decided / SIMULATED >= textbook
