"""The protocol of elastic runs in every order of steps, losses and returns: no deadlock, no disagreement.

`make soak ARGS=views` searches larger settings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.view_model import Setting, search
from trainer.comm import views
from trainer.comm.views import Steps, Survivor
from trainer.core.events import Event
from trainer.core.membership import Membership, MembershipTracker

SMALL = Setting(3, losses=1, returns=1)
RETURNING = Setting(3, lost=True, losses=1, returns=1)
FOUR = Setting(4, lost=True, losses=1, epochs=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "states"),
    [
        (SMALL, 10_000),
        (Setting(3, losses=2), 10_000),
        (Setting(3, losses=2, shifts=True), 10_000),
        (RETURNING, 10_000),
        (FOUR, 10_000),
        (replace(FOUR, shifts=True), 10_000),
    ],
)
def test_every_live_rank_finishes_and_agrees_on_every_result(setting: Setting, states: int) -> None:
    found = search(setting)
    assert found.wrong is None
    assert found.states > states  # the search is not cut short


class CountsEveryChange(MembershipTracker):
    """The number of a group also grows when a rank waits to join it."""

    def _change(self, rank: int, **fields: object) -> None:
        super()._change(rank, **fields)
        self._view = self._generation


class WaitsForLosses(Survivor):
    """A rank that forms a group looks for losses alone, not for another number of the group."""

    def superseded(self, membership: Membership) -> bool:
        return self.lacks_member(membership)


class AdmitsAtOnce(MembershipTracker):
    """A rank joins as soon as one member has consented."""

    def _admit(self) -> None:
        for rank, incarnation in self._in("waiting").items():
            if self._consents.get((rank, incarnation)):
                self._change(rank, state="member", joined=incarnation)


class ForgetsFinished(MembershipTracker):
    """Ranks that have finished stay in the group."""

    def add(self, event: Event) -> bool:
        return event.kind != "done" and super().add(event)


class LooksAtTheGroup(Survivor):
    """Whether a rank has joined is whether it is in the present group, not whether it ever was."""

    def admit(self, rank: int, incarnation: int) -> Steps[bool]:
        yield from super().admit(rank, incarnation)
        return rank in self.group


class OperatesAtOnce(Survivor):
    """A rank operates in a group before the others have agreed on its first operation."""

    def _agree(self) -> Steps[None]:
        steps, outcome = super()._agree(), None
        while True:
            try:
                step: Any = steps.send(outcome)
            except StopIteration:
                return
            outcome = None if isinstance(step, views.Meet) else (yield step)


class KeepsMembers(Survivor):
    """A rank that takes over a result keeps the members that it knew before."""

    def operate(self, one_result: bool) -> Steps[bool]:
        before = self.members
        own = yield from super().operate(one_result)
        if not own:
            self.members = before
        return own


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        # The rule by which a node that returned hung the others: groups named by every change.
        (replace(SMALL, survivor=WaitsForLosses, tracker=CountsEveryChange), "deadlock"),
        (replace(SMALL, tracker=ForgetsFinished), "deadlock"),
        (replace(RETURNING, tracker=AdmitsAtOnce), "exchange"),
        (replace(RETURNING, survivor=LooksAtTheGroup), "exchange"),
        (replace(FOUR, shifts=True, survivor=OperatesAtOnce), "differ"),
        (replace(FOUR, exchanges=2, survivor=KeepsMembers), "differ"),
    ],
)
def test_search_finds_what_is_wrong_with_other_rules(setting: Setting, wrong: str) -> None:
    found = search(setting).wrong
    assert found is not None
    assert wrong in found.splitlines()[0]


@pytest.mark.parametrize(
    ("seen", "known"),
    [
        ([[-1, 3], [-1, 3]], (1, 3)),
        ([[-1, 3], [-1, -1]], None),  # one member does not know it yet
        ([[-1, 3], [-1, 4]], None),  # it was lost and has returned
        ([[0, 3], [-1, 3]], (1, 3)),
        ([[2, 3], [2, 3]], (0, 2)),
    ],
)
def test_a_rank_joins_once_all_members_know_that_it_waits(
    seen: list[list[int]], known: tuple[int, int] | None
) -> None:
    assert views.known_to_all(seen) == known
