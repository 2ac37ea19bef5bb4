"""Collectives over the ranks that are left: a run with `on_loss: continue` goes on when a rank is lost.

`views` describes how ranks agree on groups and results. A shift has a result of its own on every rank: a
rank that is behind receives its own buffer, as if its neighbour had the same. A rank that was started again
joins before an epoch, see `admit`.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from trainer.comm import views
from trainer.comm.base import Communicator
from trainer.comm.errors import CommunicationError
from trainer.comm.nonblocking import Operation
from trainer.comm.views import Steps, Survivor
from trainer.core.clock import Clock
from trainer.core.membership import Membership

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from trainer.comm.requests import Requests
    from trainer.core.context import NodeContext
    from trainer.core.events import EventWriter

POLL_S = 0.1  # between looks at the membership
DECLARED_S = 60.0  # from a failed exchange until the lost rank must have been declared lost
ABSENT = -1
NO_COMMON_RESULT = "an elastic communicator has collectives and shifts only"


class SourceLost(CommunicationError):
    """The rank that alone has the values of an operation was lost."""


class CollectivesOnly(Communicator):
    """A communicator of an elastic run: it has only the operations that several ranks can repeat."""

    topology: ClassVar[str] = "ddp"

    @classmethod
    def connect(cls, context: NodeContext, clock: Clock) -> Communicator:
        raise NotImplementedError("a transport's `connect_elastic` makes it")

    def _all_to_all(self, buffer: Tensor) -> Tensor:
        raise NotImplementedError(NO_COMMON_RESULT)

    def _isend(self, buffer: Tensor, to: int) -> Operation:
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
            name: the name of the group, which no other group of the run has.
            ranks: its ranks, in ascending order.
            host: the rank that serves the rendezvous. address: its container's.
            give_up: whether the group cannot form any more.

        Raises:
            CommunicationError: the group has not formed.
        """

    def requests(self, comm: Communicator, timeout_s: float) -> Requests:
        """The channel for requests of a communicator over these groups."""
        raise NotImplementedError(f"{type(self).__name__} has no requests; the spec's checks prevent this")

    def close(self, group: Group) -> None:
        """Disconnect after success."""
        group.leave()


class ElasticCommunicator(CollectivesOnly):
    """A communicator that outlives the loss of ranks.

    Attributes:
        rank, size: this rank's number among the members, and their number.
        members: the ranks that took part in the last completed operation; the same for all of them.
    """

    def __init__(
        self, context: NodeContext, clock: Clock, groups: Groups, path: Path, events: EventWriter
    ) -> None:
        """path: the file with the membership. events: the writer by which this rank changes it."""
        import torch

        super().__init__(context.rank, context.size, clock)
        self._world, self._path, self._groups, self._events = context.size, path, groups, events
        self._survivor = Survivor(context.rank, context.incarnation, context.size)
        self._closed = False
        self._nothing = torch.empty(0)
        self._run: Callable[[Group], Tensor]  # the present operation
        self._result = self._nothing  # of the operation that has just been run
        self._newest = self._nothing  # result of operation `newest`
        self._group: Group | None = None
        self._set_members()
        if context.incarnation:
            self._drive(self._survivor.join())
            self._barrier()
        else:
            self._group = groups.first()
        threading.Thread(target=self._watch, name="membership", daemon=True).start()

    def requests(self, timeout_s: float) -> Requests:
        return self._groups.requests(self, timeout_s)

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
            ranks = sorted(self._survivor.group)
            if source not in ranks:
                raise SourceLost(f"broadcast failed: node {source} has the values and was lost")
            if group.size > 1:
                group._broadcast(received, ranks.index(source))
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
        self._run = run
        if self._drive(self._survivor.operate(one_result=behind is None)):
            result, self._result = self._result, self._nothing
        else:
            result = self._newest if behind is None else behind.clone()
        if behind is None:
            self._newest = result
        if self._survivor.members != self.members:
            self._set_members()
        return result

    def _set_members(self) -> None:
        self.members = self._survivor.members
        self.rank, self.size = self.members.index(self._survivor.own), len(self.members)
        self.parent_ranks = self.members

    # The protocol

    def _drive(self, steps: Steps[bool] | Steps[None]) -> bool | None:
        """Carry out the steps of the protocol."""
        outcome = failure = None
        while True:
            try:
                step = steps.throw(views.Broken(failure)) if failure else steps.send(outcome)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            outcome, failure = self._outcome(step)

    def _outcome(self, step: object) -> tuple[Any, str | None]:
        """Carry out one step. Returns its outcome, and why it failed if the others are needed for it.

        The reason is kept alone: the exception would keep the group's connections open.
        """
        match step:
            case views.Leave():
                self._leave()
            case views.Await(ready, late):
                return self._await(ready, late), None
            case views.Consent(rank, incarnation):
                self._events.write("consent", returned=rank, incarnation=incarnation)
            case _:
                try:
                    return self._together(step), None
                except SourceLost:
                    raise
                except CommunicationError as error:
                    return None, str(error)
        return None, None

    def _together(self, step: object) -> Any:
        """Carry out a step for which the other ranks are needed. Raises CommunicationError."""
        if isinstance(step, views.Form):
            self._group = self._form(step.membership)
            return None
        group = self._group
        if group is None:
            raise CommunicationError("the group has been left")
        match step:
            case views.Operate():
                self._result = self._run(group)
            case views.Compare(completed, newest):
                return self._compared(group, completed, newest)
            case views.TakeOver(source, needed):
                self._take_over(group, source, needed)
            case views.Meet() if group.size > 1:
                group._barrier()
        return None

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group:
            group.leave()

    def _await(self, ready: Callable[[Membership], bool], late: str | None) -> Membership:
        deadline = time.monotonic() + DECLARED_S
        while not ready(membership := self._membership()):
            if late and time.monotonic() > deadline:
                raise CommunicationError(f"{late} within {DECLARED_S:g} s")
            time.sleep(POLL_S)
        return membership

    def _form(self, membership: Membership) -> Group:
        ranks = sorted(membership.incarnations("member"))
        host, name = ranks[0], f"view-{membership.view}"

        def give_up() -> bool:
            return self._survivor.superseded(self._membership())

        return self._groups.form(name, ranks, host, membership.address_of(host), give_up)

    def _compared(self, group: Group, completed: int, newest: int) -> list[tuple[int, int]]:
        import torch

        own = torch.tensor([float(completed), float(newest)], dtype=torch.float64)
        known = group.all_gather_float64(own) if group.size > 1 else own.unsqueeze(0)
        return [(int(each[0]), int(each[1])) for each in known]

    def _take_over(self, group: Group, source: int, needed: bool) -> None:
        import torch

        knows = group.rank == source
        size = torch.tensor([float(self._newest.numel())])
        group._broadcast(size, source)
        result = self._newest.flatten().clone() if knows else torch.empty(int(size.item()))
        if result.numel():  # not of a barrier
            group._broadcast(result, source)
        if needed:
            self._newest = result

    def _membership(self) -> Membership:
        try:
            return Membership.read(self._path)
        except (OSError, ValueError) as error:
            raise CommunicationError(f"the membership of the run cannot be read: {error}") from None

    def _watch(self) -> None:
        """Interrupt a step that waits for a rank that was declared lost: its connection may hang."""
        interrupted: Group | None = None
        while not self._closed:
            time.sleep(POLL_S)
            group = self._group
            try:
                superseded = self._survivor.superseded(self._membership())
            except CommunicationError:
                continue  # `_await` reports it
            if group and superseded and group is self._group and group is not interrupted:
                group.interrupt()
                interrupted = group

    def close(self) -> None:
        self._barrier()
        self._closed = True
        if self._group:
            self._groups.close(self._group)

    def abort(self) -> None:
        self._closed = True
        self._leave()

    def leave_lost(self) -> set[int] | None:
        if self._survivor.lacks_member(self._membership()):
            self._drive(self._survivor.regroup("a node was lost"))
        return {*range(self._world)} - self._survivor.group.keys()

    @property
    def changed(self) -> bool:
        return self._survivor.changed

    def admit(self) -> list[int]:
        """Let ranks join that were started again. Every rank calls it between two epochs.

        One joins at a time: it takes part in the next epoch's.

        Returns:
            The ranks that have joined.
        """
        import torch

        waiting = self._membership().incarnations("waiting")
        own = torch.tensor([float(waiting.get(rank, ABSENT)) for rank in range(self._world)])
        seen = self.all_gather(own) if self.size > 1 else own.unsqueeze(0)
        if (joining := views.known_to_all(seen.int().tolist())) is None:
            return []
        if not self._drive(self._survivor.admit(*joining)):
            return []
        self._barrier()
        return [joining[0]]
