"""Mistakes in the protocol of elastic runs: deadlocks and disagreement in any order of losses and returns.

`make soak` searches larger settings.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.view_model import Setting, search
from trainer.comm import views
from trainer.comm.views import Survivor
from trainer.core.events import Event
from trainer.core.membership import Membership, MembershipTracker

SMALL = Setting(3, losses=1, returns=1)
FOUR = Setting(4, lost=True, losses=1, epochs=1)


@pytest.mark.slow
@pytest.mark.parametrize("setting", [SMALL, replace(FOUR, shifts=True)], ids=["returns", "shifts"])
def test_every_live_rank_finishes_and_agrees_on_every_result(setting: Setting) -> None:
    found = search(setting)
    assert found.wrong is None
    assert found.states > 10_000  # the search is not cut short


class CountsEveryChange(MembershipTracker):
    """The number of a group also grows when a rank waits to join it."""

    def _change(self, rank: int, **fields: object) -> None:
        super()._change(rank, **fields)
        self._view = self._generation


class WaitsForLosses(Survivor):
    """A rank that forms a group looks for losses alone, not for another number of the group."""

    def superseded(self, membership: Membership) -> bool:
        return self.lacks_member(membership)


@pytest.mark.slow
def test_the_search_finds_the_rule_by_which_a_node_that_returned_hung_the_others() -> None:
    """Groups named by every change."""
    found = search(replace(SMALL, survivor=WaitsForLosses, tracker=CountsEveryChange)).wrong
    assert found is not None
    assert "deadlock" in found.splitlines()[0]


def test_a_rank_joins_once_all_members_know_that_it_waits() -> None:
    assert views.known_to_all([[-1, 3], [-1, 3]]) == (1, 3)
    assert views.known_to_all([[-1, 3], [-1, -1]]) is None  # one member does not know it yet
    assert views.known_to_all([[-1, 3], [-1, 4]]) is None  # it was lost and has returned
    assert views.known_to_all([[0, 3], [-1, 3]]) == (1, 3)
    assert views.known_to_all([[2, 3], [2, 3]]) == (0, 2)


def test_a_member_that_has_finished_is_not_lost() -> None:
    for kind, lost in (("done", False), ("died", True)):
        tracker = MembershipTracker({0: "", 1: ""}, range(0), {})
        for rank in (0, 1):
            tracker.add(Event(0.0, "", rank, "", "train_start", {}))
        tracker.add(Event(0.0, "", 1, "", kind, {"cause": "killed"}))
        assert Survivor(0, 0, 2).lacks_member(tracker.current) == lost
