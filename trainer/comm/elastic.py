"""Collectives over the ranks that are left: a run with `on_loss: continue` goes on when a rank is lost.

Every rank performs the same operations in the same order, so an operation has a number. When a rank is
lost, operations that need it fail on some ranks and may have been completed by others. The survivors then
form a new group and agree on the newest operation that any of them has begun:

    - Ranks that are behind take the result of an operation that others have completed.
    - All repeat the newest operation in the new group, which has fewer ranks.

So every operation has one result for all survivors, as in virtual synchrony (Birman and Joseph 1987). A
shift differs from rank to rank: a rank that is behind receives its own buffer, as if its neighbour had the
same. A rank that was started again joins before an epoch, see `admit`.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from trainer.comm.base import CommunicationError, Communicator
from trainer.core.clock import Clock
from trainer.core.membership import Membership

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from trainer.core.context import NodeContext

POLL_S = 0.1  # between looks at the membership
DECLARED_S = 60.0  # from a failed exchange until the lost rank must have been declared lost
ABSENT = -1.0
NO_COMMON_RESULT = "an elastic communicator has collectives and shifts only"


class CollectivesOnly(Communicator):
    """A communicator of an elastic run: it has only the operations that several ranks can repeat."""

    topology: ClassVar[str] = "ddp"

    @classmethod
    def connect(cls, context: NodeContext, clock: Clock) -> Communicator:
        raise NotImplementedError("a transport's `connect_elastic` makes it")

    def _all_to_all(self, buffer: Tensor) -> Tensor:
        raise NotImplementedError(NO_COMMON_RESULT)

    def _send(self, buffer: Tensor, to: int) -> None:
        raise NotImplementedError(NO_COMMON_RESULT)

    def _recv(self, buffer: Tensor, source: int) -> None:
        raise NotImplementedError(NO_COMMON_RESULT)

    def _split(self, groups: list[list[int]], number: int) -> Communicator:
        raise NotImplementedError(NO_COMMON_RESULT)


class Group(CollectivesOnly):
    """A group of ranks, whose operations raise CommunicationError when a member is lost."""

    @abstractmethod
    def leave(self) -> None:
        """Disconnect from the other ranks, so that their operations in the group fail, too."""

    @abstractmethod
    def interrupt(self) -> None:
        """Make this rank's present operation fail. Called by another thread."""


class Groups(ABC):
    """Forms groups of ranks over one transport. A rank is in one group at a time."""

    @abstractmethod
    def first(self) -> Group:
        """The group of all ranks of the run."""

    @abstractmethod
    def form(
        self, name: str, ranks: Sequence[int], host: int, address: str, give_up: Callable[[], bool]
    ) -> Group:
        """The group of these ranks, which all call this with the same arguments.

        Args:
            name: of the group, which no other group of the run has.
            ranks: in ascending order.
            host: the rank that serves the rendezvous. address: its container's.
            give_up: whether the group cannot form any more.

        Raises:
            CommunicationError: the group has not formed.
        """

    def invite(self, name: str, address: str, group: str) -> None:
        """Let a rank that waits under this name know its group. Raises CommunicationError."""
        raise NotImplementedError("no rank can return over this transport")

    def invitation(self, name: str, address: str, timeout_s: float) -> str:
        """Wait for an `invite`. Raises CommunicationError."""
        raise NotImplementedError("no rank can return over this transport")

    def close(self, group: Group) -> None:
        """Disconnect after success."""
        group.leave()


class ElasticCommunicator(CollectivesOnly):
    """A communicator that outlives the loss of ranks.

    Attributes:
        rank, size: this rank's number among the members, and their number.
        members: the ranks that took part in the last completed operation; the same for all of them.
    """

    def __init__(self, context: NodeContext, clock: Clock, groups: Groups, path: Path) -> None:
        """path: of the file with the membership."""
        import torch

        super().__init__(context.rank, context.size, clock)
        self._own, self._world = context.rank, context.size
        self._timeout_s, self._path, self._groups = context.timeout_s, path, groups
        self._incarnation = context.incarnation
        self._closed = False
        self._nothing = torch.empty(0)
        self._result = self._nothing  # of the operation that has just been run
        self._count = 0  # operations completed
        self._resume_at = 0  # operations before this one were completed in an earlier group
        self._last = (-1, self._nothing)  # number and result of the last one with one result for all
        self._incarnations: dict[int, int] = dict.fromkeys(range(self._world), 0)  # of the group
        self.returned = bool(self._incarnation)
        self._group: Group
        if self.returned:
            self._join()
        else:
            self._group = groups.first()
        self._set_members()
        threading.Thread(target=self._watch, name="membership", daemon=True).start()

    # Operations

    def _all_reduce(self, buffer: Tensor) -> None:
        def run(group: Group) -> Tensor:
            summed = buffer.clone()  # a failed operation leaves anything in it
            if group.size > 1:
                group._all_reduce(summed)
            return summed

        buffer.copy_(self._perform(run).view(buffer.shape))

    def _all_gather(self, buffer: Tensor) -> Tensor:
        def run(group: Group) -> Tensor:
            return group._all_gather(buffer) if group.size > 1 else buffer.clone().unsqueeze(0)

        return self._perform(run).clone().view(-1, buffer.numel())  # its caller may change it

    def _broadcast(self, buffer: Tensor, root: int) -> None:
        source = self.members[root]

        def run(group: Group) -> Tensor:
            received = buffer.clone()
            if source not in self._incarnations:
                raise CommunicationError(f"broadcast failed: node {source} has the values and was lost")
            if group.size > 1:
                group._broadcast(received, sorted(self._incarnations).index(source))
                group._barrier()  # the source must not be several operations ahead
            return received

        buffer.copy_(self._perform(run).view(buffer.shape))

    def _barrier(self) -> None:
        def run(group: Group) -> Tensor:
            if group.size > 1:
                group._barrier()
            return self._nothing

        self._perform(run)

    def _shift(self, buffer: Tensor, to: int, source: int) -> Tensor:
        distance = (to - self.rank) % self.size

        def run(group: Group) -> Tensor:
            if distance % group.size == 0:
                return buffer.clone()
            peers = (group.rank + distance) % group.size, (group.rank - distance) % group.size
            return group._shift(buffer, *peers)

        return self._perform(run, behind=buffer)

    def _perform(self, run: Callable[[Group], Tensor], behind: Tensor | None = None) -> Tensor:
        """Complete the next operation, in as many groups as it takes. Returns its result.

        behind: the result on a rank that is behind; None if the operation has one result for all ranks.
        """
        while True:
            if self._count < self._resume_at:
                result = self._last[1] if behind is None else behind.clone()
                break
            if failure := self._failure_of(run):
                self._regroup(failure)
                continue
            result, self._result = self._result, self._nothing
            if len(self._incarnations) != self.size:
                self._set_members()
            break
        if behind is None:
            self._last = (self._count, result)
        self._count += 1
        return result

    def _failure_of(self, run: Callable[[Group], Tensor]) -> str | None:
        """Run the operation in the present group. Returns why that failed, or None.

        It keeps the reason alone: the exception would keep the group's connections open.
        """
        try:
            self._result = run(self._group)
        except CommunicationError as error:
            return str(error)
        return None

    # Groups

    def _set_members(self) -> None:
        self.members = tuple(sorted(self._incarnations))
        self.rank, self.size = self.members.index(self._own), len(self.members)
        self.parent_ranks = self.members

    def _regroup(self, failure: str) -> None:
        """Form a group of the ranks that are left, and agree on the operation to repeat.

        Raises CommunicationError: no rank was lost, or this one is considered lost.
        """
        self._group.leave()
        while True:
            membership = self._after_loss(failure)
            alive = membership.incarnations
            left = {rank: each for rank, each in self._incarnations.items() if alive.get(rank) == each}
            if self._own not in left:
                raise CommunicationError(f"{failure}; the other nodes continue without this one")
            host = min(left)
            self._incarnations = left
            if reason := self._formed(f"loss-{membership.generation}", host, membership.address_of(host)):
                failure = reason
                continue
            return

    def _after_loss(self, failure: str) -> Membership:
        """The membership once it lacks a rank of the present group."""
        deadline = time.monotonic() + DECLARED_S
        while time.monotonic() < deadline:
            membership = self._membership()
            if self._lacks_member(membership):
                return membership
            time.sleep(POLL_S)
        raise CommunicationError(f"{failure}; no node was declared lost within {DECLARED_S:g} s")

    def _formed(self, name: str, host: int, address: str) -> str | None:
        """Form the group of the present incarnations. Returns why that failed, or None."""
        try:
            self._group = self._form(name, host, address)
            self._agree()
        except CommunicationError as error:
            return str(error)
        return None

    def _form(self, name: str, host: int, address: str) -> Group:
        def lost() -> bool:
            return self._lacks_member(self._membership())

        return self._groups.form(name, sorted(self._incarnations), host, address, lost)

    def _agree(self) -> None:
        """Find the newest operation that a rank has begun, and take over a result that this one lacks."""
        import torch

        if self._group.size == 1:
            self._resume_at = self._count
            return
        own = torch.tensor([float(self._count), float(self._last[0])], dtype=torch.float64)
        known = self._group.all_gather_float64(own)
        self._resume_at = int(known[:, 0].max())
        number = int(known[:, 1].max())
        source = int(known[:, 1].argmax())
        if bool((known[:, 0] > number).all()):
            return  # all have completed it
        knows = self._last[0] == number
        size = torch.tensor([float(self._last[1].numel())])
        self._group._broadcast(size, source)
        result = self._last[1].flatten().clone() if knows else torch.empty(int(size.item()))
        if result.numel():  # not of a barrier
            self._group._broadcast(result, source)
        if self._count == number:
            self._last = (number, result)

    def _membership(self) -> Membership:
        try:
            return Membership.read(self._path)
        except (OSError, ValueError) as error:
            raise CommunicationError(f"the membership of the run cannot be read: {error}") from None

    def _lacks_member(self, membership: Membership) -> bool:
        alive = membership.incarnations
        return any(alive.get(rank) != each for rank, each in self._incarnations.items())

    def _watch(self) -> None:
        """Interrupt an operation that waits for a rank that was declared lost: its connection may hang."""
        interrupted: Group | None = None
        while not self._closed:
            time.sleep(POLL_S)
            group = self._group
            try:
                lacks = self._lacks_member(self._membership())
            except CommunicationError:
                continue  # `_regroup` reports it
            if lacks and group is self._group and group is not interrupted:
                group.interrupt()
                interrupted = group

    def close(self) -> None:
        self._barrier()
        self._closed = True
        self._groups.close(self._group)

    def abort(self) -> None:
        self._closed = True
        self._group.leave()

    def leave_lost(self) -> set[int] | None:
        if self._lacks_member(self._membership()):
            self._regroup("a node was lost")
        return {*range(self._world)} - self._incarnations.keys()

    @property
    def changed(self) -> bool:
        return self.returned or len(self.members) < self._world or any(self._incarnations.values())

    # Ranks that return

    def admit(self) -> list[int]:
        """Let ranks join that were started again. Every rank calls it between two epochs.

        Returns:
            The ranks that have joined.
        """
        import torch

        alive = self._membership().incarnations
        own = torch.tensor([float(alive.get(rank, ABSENT)) for rank in range(self._world)])
        seen = self.all_gather(own) if self.size > 1 else own.unsqueeze(0)
        waiting = [
            rank
            for rank in range(self._world)
            if rank not in self.members
            and bool((seen[:, rank] == seen[0, rank]).all())
            and seen[0, rank] >= 0
        ]
        # One at a time: a rank that has joined takes part in the next epoch's.
        return [rank for rank in waiting[:1] if self._admit(rank, int(seen[0, rank]))]

    def _admit(self, rank: int, incarnation: int) -> bool:
        """Form a group with one rank that has returned. False if that rank is lost again."""
        before, group = self._incarnations, self._group
        address = next((m.address for m in self._membership().members if m.rank == rank), "")
        name = f"return-{rank}-{incarnation}"
        joined = {**before, rank: incarnation}
        self._incarnations = joined
        try:
            if self._own == min(before):
                listed = ",".join(f"{each}:{joined[each]}" for each in sorted(joined))
                self._groups.invite(name, address, listed)
            self._group = self._form(f"{name}-joined", rank, address)
            self._group._barrier()  # either all ranks are in the new group, or none is
        except CommunicationError:
            self._incarnations, self._group = before, group
            return False
        group.leave()
        self._set_members()
        self._agree()
        return True

    def _join(self) -> None:
        """Wait for an invitation, and form the group with the ranks that are in it."""
        name = f"return-{self._own}-{self._incarnation}"
        deadline = time.monotonic() + DECLARED_S
        while (membership := self._membership()).incarnations.get(self._own) != self._incarnation:
            if time.monotonic() > deadline:
                raise CommunicationError(f"{name}: not among the ranks that are alive")
            time.sleep(POLL_S)
        address = membership.address_of(self._own)
        listed = self._groups.invitation(name, address, self._timeout_s)
        pairs = [each.split(":") for each in listed.split(",")]
        self._incarnations = {int(rank): int(incarnation) for rank, incarnation in pairs}
        self._group = self._form(f"{name}-joined", self._own, address)
        self._group._barrier()
        self._agree()
        self._count = self._resume_at
