"""How the configurations of two results directories differ in time and accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.report.directory_comparison.matches import Match, Matches
from orchestrator.report.findings.claims import Claims
from orchestrator.report.findings.compared import Compared
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.quantity import Quantity


@dataclass(frozen=True)
class Difference:
    """A configuration in two directories, the other on the left. None: a side has no such value."""

    match: Match
    time: Compared | None
    accuracy: Compared | None


def differences_of(matches: Matches) -> list[Difference]:
    """Compare every match.

    All comparisons of a quantity are corrected together, so that at most 5 % of comparisons of directories
    whose runs are equal claim a difference.
    """
    found = matches.found

    def compared(claims: Claims) -> list[dict[int, Compared]]:
        return [_of(found, claims, quantity) for quantity in (Q.train_s, Q.accuracy)]

    claims = Claims(matches.errors)
    compared(claims)
    times, accuracies = compared(claims.decided())
    return [Difference(match, times.get(id(match)), accuracies.get(id(match))) for match in found]


def _of(matches: Sequence[Match], claims: Claims, quantity: Quantity) -> dict[int, Compared]:
    """The comparisons by the id of their match; those without a value are left out."""
    known = [
        match
        for match in matches
        if quantity.sample(match.reference) and quantity.sample(match.other) and _compares(match, quantity)
    ]
    compared = claims.asked_by_sweep(quantity, [(match.other, match.reference) for match in known])
    return {id(match): each for match, each in zip(known, compared, strict=True)}


def _compares(match: Match, quantity: Quantity) -> bool:
    """Whether times compare: not, say, if a node was restarted."""
    groups = (match.reference, match.other)
    return quantity is not Q.train_s or all(row.times_compare for group in groups for row in group.ok_rows)
