"""Membership: which ranks are alive, from their events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainer.core.events import Event
from trainer.core.membership import Member, Membership, MembershipTracker


def event(kind: str, rank: int, **fields: Any) -> Event:
    return Event(0.0, "run", rank, "", kind, fields)


def tracker(ranks: int = 3, servers: int = 0, **return_after: float) -> MembershipTracker:
    """A tracker of ranks that all train."""
    addresses = {rank: f"10.0.0.{rank}" for rank in range(ranks)}
    after = {int(fault.removeprefix("fault")): seconds for fault, seconds in return_after.items()}
    tracked = MembershipTracker(addresses, range(servers), after)
    for rank in range(ranks):
        tracked.add(event("start", rank, pid=rank + 1))
        tracked.add(event("train_start", rank, parameters=1))
    return tracked


def killed(rank: int) -> Event:
    return event("died", rank, cause="killed by SIGKILL")


def consent(rank: int, returned: int, incarnation: int) -> Event:
    return event("consent", rank, returned=returned, incarnation=incarnation)


def test_all_ranks_are_members_at_first() -> None:
    current = tracker().current
    assert (current.generation, current.view) == (0, 0)
    assert current.incarnations("member") == {0: 0, 1: 0, 2: 0}
    assert current.address_of(2) == "10.0.0.2"


def test_rank_that_dies_while_it_trains_is_lost() -> None:
    tracked = tracker()
    assert tracked.add(killed(1))
    assert tracked.current.incarnations("member") == {0: 0, 2: 0}
    assert tracked.current.generation == 1
    assert tracked.absent == {1}
    assert not tracked.add(killed(1))  # reported twice


def test_rank_that_returns_has_another_incarnation() -> None:
    tracked = tracker(fault0=2.5)
    tracked.add(event("fault", 1, fault=0, action="kill", epoch=1, step=3, second=0.1))
    tracked.add(killed(1))
    assert tracked.returns_after(1) == 2.5
    assert tracked.returns_after(1) is None  # asked once
    assert not tracked.add(event("start", 1, pid=9, incarnation=1))  # it is not ready to join
    assert tracked.absent == {1}
    assert tracked.add(event("waiting", 1, incarnation=1))
    assert tracked.current.incarnations("member") == {0: 0, 2: 0}
    assert tracked.current.waits(1, 1)
    assert (tracked.current.generation, tracked.current.view) == (2, 1)


def test_rank_joins_when_all_members_have_consented() -> None:
    tracked = tracker(4)
    tracked.add(killed(1))
    assert not tracked.add(consent(0, 1, 1))  # it does not wait yet
    tracked.add(event("waiting", 1, incarnation=1))
    for consents in (consent(0, 1, 1), consent(2, 1, 2), consent(2, 1, 1)):
        assert not tracked.add(consents)
    assert tracked.add(consent(3, 1, 1))
    assert tracked.current.incarnations("member") == {0: 0, 1: 1, 2: 0, 3: 0}
    assert tracked.current.view == 2
    assert tracked.current.has_joined(1, 1)
    tracked.add(killed(1))
    assert tracked.current.has_joined(1, 1)  # those who look late know that it had joined


def test_rank_joins_without_the_consent_of_a_member_that_is_lost() -> None:
    tracked = tracker(4)
    tracked.add(killed(1))
    tracked.add(event("waiting", 1, incarnation=1))
    for rank in (0, 2):
        assert not tracked.add(consent(rank, 1, 1))
    assert tracked.add(killed(3))
    assert tracked.current.incarnations("member") == {0: 0, 1: 1, 2: 0}


def test_rank_that_has_finished_is_alive_but_no_member() -> None:
    tracked = tracker()
    assert tracked.add(event("done", 1))
    assert tracked.current.incarnations("member") == {0: 0, 2: 0}
    assert tracked.current.incarnations("finished") == {1: 0}
    assert tracked.current.view == 1
    assert not tracked.add(event("done", 1))


def test_rank_that_returns_may_be_lost_before_it_joins() -> None:
    tracked = tracker()
    tracked.add(killed(1))
    tracked.add(event("waiting", 1, incarnation=1))
    assert tracked.add(killed(1))
    assert tracked.absent == {1}
    assert tracked.lost == {1: 2}


def test_repeated_fault_does_not_start_a_rank_again() -> None:
    tracked = tracker(fault0=2.5)
    tracked.add(event("fault", 1, fault=0, action="kill", epoch=1, step=3, second=0.1, earlier=True))
    assert tracked.returns_after(1) is None


@pytest.mark.parametrize(
    ("before", "rank", "survives"),
    [
        ([], 1, True),
        ([], 0, False),  # the server
        ([killed(1), killed(2)], 3, False),  # the last worker
        ([killed(1)], 2, True),
        ([event("done", 1)], 1, False),  # it trains no more
        ([event("failed", 2, cause="x"), event("failed", 3, cause="x")], 1, False),  # none is left
    ],
)
def test_run_survives_unless_a_server_or_the_last_worker_dies(
    before: list[Event], rank: int, survives: bool
) -> None:
    tracked = tracker(4, servers=1)
    for each in before:
        tracked.add(each)
    assert tracked.survives(rank) == survives
    assert tracked.add(killed(rank)) == survives


def test_rank_that_dies_before_it_trains_ends_the_run() -> None:
    assert not MembershipTracker({0: "", 1: ""}, range(0), {}).survives(1)


def test_run_is_over_without_a_rank_that_waits_to_join() -> None:
    tracked = tracker()
    tracked.add(killed(1))
    tracked.add(event("waiting", 1, incarnation=1))
    assert not tracked.over
    for rank in (0, 2):
        tracked.add(event("done", rank))
    assert tracked.over
    assert tracked.without_work == {1}


def test_file_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "membership.json"
    written = Membership(
        generation=3, view=2, ranks=[Member(rank=2, incarnation=1, state="waiting", address="10.0.0.2")]
    )
    written.write(path)
    assert Membership.read(path) == written
    assert [*tmp_path.iterdir()] == [path]
    path.write_text('{"generation": 3}')
    with pytest.raises(ValueError, match="view"):
        Membership.read(path)
