"""How the configurations of two results directories differ in time and accuracy."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.report.directory_comparison.matches import Match, Matches
from orchestrator.report.findings.decide import Ask, Compared, decide
from orchestrator.report.quantities import Q
from orchestrator.report.statistics.chances import Tolerance


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
    pairs, timed = ([(each.other, each.reference) for each in of] for of in (found, filter(_timed, found)))
    asks = [Ask.of(Q.train_s, timed, of_sweep=True), Ask.of(Q.accuracy, pairs, of_sweep=True)]
    claims = decide(asks, matches.errors, Tolerance())
    return [
        Difference(match, *(claims.between(each.quantity, match.other, match.reference) for each in asks))
        for match in found
    ]


def _timed(match: Match) -> bool:
    """Whether times compare: not, say, if a node was restarted."""
    return all(row.times_compare for row in (*match.reference.ok_rows, *match.other.ok_rows))
