"""Mistakes in who is alive: a rank lost twice, a return without consent, a run without its server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.conftest import event
from trainer.core.events import Event
from trainer.core.membership import Membership, MembershipTracker


def tracker(
    ranks: int = 3, servers: int = 0, return_after: dict[int, float] | None = None
) -> MembershipTracker:
    """A tracker of ranks that all train."""
    addresses = {rank: f"10.0.0.{rank}" for rank in range(ranks)}
    tracked = MembershipTracker(addresses, range(servers), return_after or {})
    for rank in range(ranks):
        tracked.add(event("start", rank, pid=rank + 1))
        tracked.add(event("train_start", rank, parameters=1))
    return tracked


def killed(rank: int) -> Event:
    return event("died", rank, cause="killed by SIGKILL")


def waiting(rank: int, incarnation: int = 1) -> Event:
    return event("waiting", rank, incarnation=incarnation)


def consent(rank: int, returned: int, incarnation: int = 1) -> Event:
    return event("consent", rank, returned=returned, incarnation=incarnation)


def states(tracked: MembershipTracker) -> list[str]:
    return [each.state for each in tracked.current.ranks]


def test_a_rank_is_lost_returns_and_joins_when_all_members_consent() -> None:
    tracked = tracker(4)
    steps: list[tuple[Event, bool, str]] = [
        (killed(1), True, "lost"),
        (killed(1), False, "lost"),  # reported twice
        (consent(0, 1), False, "lost"),  # it does not wait yet
        (event("start", 1, pid=9, incarnation=1), False, "lost"),  # it is not ready to join
        (waiting(1, 2), False, "lost"),  # of no incarnation that there is
        (waiting(1), True, "waiting"),
        (consent(0, 1), False, "waiting"),
        (consent(2, 1, 2), False, "waiting"),
        (consent(2, 1), False, "waiting"),
        (killed(3), True, "member"),  # a member that is lost need not consent
        (killed(1), True, "lost"),
    ]
    views = []
    for step, changes, state in steps:
        assert tracked.add(step) is changes
        assert states(tracked)[1] == state
        current = tracked.current
        assert current.waits(1, 1) == (state == "waiting")
        views.append((current.generation, current.view))
    assert views == [(1, 1)] * 5 + [(2, 1)] * 4 + [(4, 3), (5, 4)]
    assert (tracked.lost, current.incarnations("member")) == ({1: 2, 3: 1}, {0: 0, 2: 0})
    assert current.has_joined(1, 1)  # those who look late know that it had joined
    assert not current.has_joined(1, 2)
    assert current.address_of(2) == "10.0.0.2"


def test_only_a_fault_that_has_just_fired_starts_a_rank_again_and_once() -> None:
    tracked = tracker(return_after={0: 2.5})
    fault = {"action": "kill", "epoch": 1, "step": 3, "second": 0.1}
    tracked.add(event("fault", 1, fault=0, **fault, earlier=True))
    tracked.add(event("fault", 2, fault=1, **fault))
    assert [tracked.returns_after(rank) for rank in (1, 2)] == [None, None]
    tracked.add(event("fault", 1, fault=0, **fault))
    assert [tracked.returns_after(1) for _ in range(2)] == [2.5, None]


def test_a_rank_that_waits_may_be_lost_again_and_holds_no_run_up() -> None:
    tracked = tracker()
    for each in (killed(1), waiting(1), killed(1)):
        assert tracked.add(each)
    assert (tracked.absent, tracked.lost, tracked.current.view) == ({1}, {1: 2}, 1)
    tracked.add(waiting(1, 2))
    assert (tracked.over, tracked.without_work) == (False, {1})
    assert [tracked.add(event("done", 0)) for _ in range(2)] == [True, False]
    assert (states(tracked)[0], tracked.current.view, tracked.over) == ("finished", 2, False)
    tracked.add(event("done", 2))
    assert (tracked.over, tracked.without_work) == (True, {1})


def test_a_run_survives_while_there_are_its_server_and_a_worker() -> None:
    cases: list[tuple[list[Event], int, bool]] = [
        ([], 1, True),
        ([], 0, False),  # the server
        ([killed(1)], 2, True),
        ([killed(1)], 1, False),  # it is lost already
        ([killed(1), waiting(1)], 1, True),
        ([killed(1), killed(2)], 3, False),  # the last worker
        ([event("done", 1)], 1, False),  # it trains no more
        ([event("failed", 2, cause="x"), event("terminated", 3, cause="x")], 1, False),  # none is left
    ]
    for before, rank, survives in cases:
        tracked = tracker(4, servers=1)
        for each in before:
            tracked.add(each)
        assert tracked.survives(rank) == tracked.add(killed(rank)) == survives, before
    assert not MembershipTracker({0: "", 1: ""}, range(0), {}).survives(1)  # it has not trained yet


def test_a_file_is_read_as_written_and_replaced_at_once(tmp_path: Path) -> None:
    path, written = tmp_path / "membership.json", tracker().current
    path.write_text("old")
    with open(path) as seen_by_a_reader:
        written.write(path)
        assert seen_by_a_reader.read() == "old"
    assert Membership.read(path) == written
    assert [*tmp_path.iterdir()] == [path]
    path.write_text('{"generation": 3}')
    with pytest.raises(ValueError, match="view"):
        Membership.read(path)
