"""How the ranks of an elastic run agree on their group and on the result of every operation. No I/O.

Every rank performs the same operations in the same order, so an operation has a number. `core.membership`
numbers the groups: a view is a group and its number. When a rank is lost, operations that need it fail on
some ranks and may have been completed by others. The survivors then enter the newest view:

    1. They form its group. A rank that finds a newer view meanwhile enters that one instead.
    2. They compare how many operations each has completed. The newest operation that any rank has begun is
       the first one of the view.
    3. Ranks that are behind take over the result of the last operation before that one.
    4. At a barrier each lets the others know that it has done so. No rank operates in the view before.

So every operation has one result for all survivors, as in virtual synchrony (Birman and Joseph 1987), and
every rank knows which group produced it. A rank that was started again joins between two epochs: each
member consents once it knows that the rank waits, which all know from the result of one operation. The view
with the rank in it is made when all members have consented. So no member of it is behind.

`Survivor` is one rank's part. Its methods are generators of steps; whoever runs them carries out each step
and sends its outcome back. `ElasticCommunicator` does so over a transport, and the tests of the view
protocol in a model that tries every order of steps, losses and returns (`test_elastic.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from trainer.comm.errors import CommunicationError
from trainer.core.membership import Membership


class Broken(Exception):
    """A step that needs the other ranks has failed. The message says why."""


@dataclass(frozen=True)
class Operate:
    """Run the present operation in the present group. Raises Broken."""


@dataclass(frozen=True)
class Leave:
    """Leave the present group, so that the others' steps in it fail, too."""


@dataclass(frozen=True)
class Await:
    """Wait for a membership that is `ready`, and send it. late: what is wrong if it takes too long."""

    ready: Callable[[Membership], bool]
    late: str | None = None


@dataclass(frozen=True)
class Form:
    """Form the group of a membership, unless a newer view supersedes it. Raises Broken."""

    membership: Membership


@dataclass(frozen=True)
class Compare:
    """Send every member's `completed` and `newest`, in the order of their ranks. Raises Broken."""

    completed: int
    newest: int


@dataclass(frozen=True)
class TakeOver:
    """Let the member with this index send the result of an operation to the others. Raises Broken.

    needed: whether this rank lacks it.
    """

    source: int
    needed: bool


@dataclass(frozen=True)
class Meet:
    """Wait until all members have reached this step. Raises Broken."""


@dataclass(frozen=True)
class Consent:
    """Report that this rank is ready for a rank that was started again to join."""

    rank: int
    incarnation: int


def known_to_all(seen: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    """The first rank, and its incarnation, of which all members know that it waits to join.

    seen: the incarnations of the waiting ranks, as each member knows them; negative for other ranks.
    """
    for rank, (first, *others) in enumerate(zip(*seen, strict=True)):
        if first >= 0 and all(other == first for other in others):
            return rank, first
    return None


R = TypeVar("R")
Steps = Generator[Any, Any, R]


class Survivor:
    """One rank's state in the protocol.

    Attributes:
        view: number of the present group. group: its ranks and their incarnations.
        entering: whether the group has not been formed completely.
        completed: number of operations that this rank has completed.
        newest: the last completed operation with one result for all ranks; -1: none.
        members: the ranks that took part in the last completed operation; the same for all of them.
        changed: whether ranks were lost or have returned, as of that operation.
    """

    def __init__(self, rank: int, incarnation: int, world: int) -> None:
        self.own, self.incarnation = rank, incarnation
        self.view = 0
        self.group = dict.fromkeys(range(world), 0)
        self.entering = False
        self.completed = 0
        self.newest = -1
        self.members = tuple(self.group)
        self.changed = incarnation > 0
        self._first = 0  # operation of the view: earlier ones were completed in another
        self._operated: list[tuple[int, tuple[int, ...]]] = []  # first operation and group of later views

    def lacks_member(self, membership: Membership) -> bool:
        """Whether a member of the present group is lost."""
        alive = membership.incarnations("member", "finished")
        return any(alive.get(rank) != incarnation for rank, incarnation in self.group.items())

    def superseded(self, membership: Membership) -> bool:
        """Whether the present step cannot succeed any more, because others are lost or in a newer view."""
        return membership.view != self.view if self.entering else self.lacks_member(membership)

    def operate(self, one_result: bool) -> Steps[bool]:
        """Complete the next operation, in as many views as it takes.

        one_result: whether it has one result for all ranks.

        Returns:
            Whether this rank has completed it itself. Otherwise it takes over the result of others.
        """
        own = False
        while not own and self.completed >= self._first:
            try:
                yield Operate()
                own = True
            except Broken as error:
                failure = str(error)
            if not own:
                yield from self.regroup(failure)
        if one_result:
            self.newest = self.completed
        while self._operated and self._operated[0][0] <= self.completed:
            self.members = self._operated.pop(0)[1]
            self.changed = True
        self.completed += 1
        return own

    def regroup(self, failure: str) -> Steps[None]:
        """Enter the view that follows the present one, whose group has failed."""
        yield Leave()
        yield from self._enter(failure)

    @staticmethod
    def _newer_than(view: int) -> Callable[[Membership], bool]:
        return lambda found: found.view != view

    def _enter(self, failure: str) -> Steps[None]:
        """Enter the newest view. Raises CommunicationError if this rank is not in it."""
        while True:
            late = f"{failure}; no node was declared lost"
            membership = yield Await(self._newer_than(self.view), late)
            self.view, self.group = membership.view, membership.incarnations("member")
            if self.group.get(self.own) != self.incarnation:
                raise CommunicationError(f"{failure}; the other nodes continue without this one")
            self.entering = True
            try:
                yield Form(membership)
                yield from self._agree()
                self.entering = False
                return
            except Broken as error:
                failure = str(error)
            yield Leave()

    def _agree(self) -> Steps[None]:
        """Find the first operation of the view, and take over a result that this rank lacks."""
        known: Sequence[tuple[int, int]] = yield Compare(self.completed, self.newest)
        first = max(completed for completed, _ in known)
        newest = max(newest for _, newest in known)
        if any(completed <= newest for completed, _ in known):
            source = next(index for index, (_, each) in enumerate(known) if each == newest)
            yield TakeOver(source, needed=self.completed == newest)
            if self.completed == newest:
                self.newest = newest
        self._first = first
        self._operated = [each for each in self._operated if each[0] < first]
        self._operated.append((first, tuple(sorted(self.group))))
        yield Meet()

    def admit(self, rank: int, incarnation: int) -> Steps[bool]:
        """Let a rank join that was started again. Returns whether it has; False: it was lost before.

        All members call it with the same arguments, after the same operation. If it returns True, they and
        the rank perform a barrier next, from which all know the members.
        """
        yield Consent(rank, incarnation)
        while True:
            view = self.view

            def decided(found: Membership, view: int = view) -> bool:
                return found.view != view or not found.waits(rank, incarnation)

            membership = yield Await(decided)
            if membership.view != view:
                yield Leave()
                yield from self._enter("a node was lost")
            if membership.has_joined(rank, incarnation):
                self.changed = True
                return True
            if not membership.waits(rank, incarnation):
                return False

    def join(self) -> Steps[None]:
        """Join the others, as a rank that was started again."""
        own, incarnation = self.own, self.incarnation
        self.view = -1

        def known(found: Membership) -> bool:
            return found.waits(own, incarnation) or found.has_joined(own, incarnation)

        yield Await(known, f"node {own} is not known to wait to join the others")
        yield Await(lambda found: not found.waits(own, incarnation))
        yield from self._enter("joining the others")
        self.completed = self._first
