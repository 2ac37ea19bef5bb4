"""A server's part of a trace: which work each request needed, and which request comes next.

A server takes requests in the order of arrival, which differs from cluster to cluster. So its records from
a first TAKE to a last RESPOND are one section: a set of requests, each with the work done for it, found by
worker and number. A section ends at any other exchange and at the end of an epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.core.trace import Kind
from trainer.time_model.errors import ReplayError

_TAKE = int(Kind.TAKE)
_IN_SECTION = {int(kind) for kind in (Kind.WORK, Kind.STEP, Kind.TAKE, Kind.RESPOND)}


@dataclass(frozen=True)
class ServedRequest:
    """A request on its way to a server. started, arrived: seconds of cluster time."""

    rank: int
    server: int
    bytes: int
    started: float
    arrived: float


@dataclass
class Service:
    """What a server did for a request.

    Attributes:
        before: work from taking the request to its response, (phase, CPU seconds) each.
        after: work from its response to the next request.
        is_push: a push changes the model; a pull reads it.
    """

    is_push: bool
    before: list[tuple[int, float]] = field(default_factory=list)
    after: list[tuple[int, float]] = field(default_factory=list)
    response_bytes: int = 0


class Section:
    """Requests of a server in any order, with those that bounded staleness defers.

    As `trainer.parallel.parameter_server.BoundedStaleness` (Ho et al. 2013): a pull is answered when its
    worker is at most `max_staleness` pushes ahead of the slowest worker with pushes left.
    """

    def __init__(self) -> None:
        self.end = 0  # the record after the last response
        self._services: dict[int, list[Service]] = {}  # by worker, in order
        self._taken: dict[int, int] = {}
        self._pushed: dict[int, int] = {}
        self._pushes: dict[int, int] = {}
        self._deferred: list[ServedRequest] = []
        self._last: Service | None = None

    def add(self, worker: int, service: Service) -> None:
        self._services.setdefault(worker, []).append(service)
        self._taken[worker] = self._pushed[worker] = 0
        self._pushes[worker] = self._pushes.get(worker, 0) + service.is_push

    @property
    def complete(self) -> bool:
        """Whether all requests are answered."""
        return not self._deferred and all(
            self._taken[worker] == len(services) for worker, services in self._services.items()
        )

    def next_request(self, inbox: deque[ServedRequest]) -> ServedRequest | None:
        """Remove the first request of this section from the inbox, which is in order of arrival."""
        for request in inbox:
            if self._taken.get(request.rank, 0) < len(self._services.get(request.rank, ())):
                inbox.remove(request)
                return request
        return None

    def begin(
        self, request: ServedRequest, max_staleness: int | None
    ) -> list[tuple[ServedRequest, int, bool]]:
        """Take a request.

        Returns:
            The requests to answer now: (request, worker whose push allows it, whether it was deferred).
        """
        worker = request.rank
        self._taken[worker] += 1
        self._last = self.service(request)
        answers = []
        if self._last.is_push:
            self._pushed[worker] += 1
            answers.append((request, worker, False))
        else:
            self._deferred.append(request)
        still = []
        for pull in self._deferred:
            if self._may_pull(pull.rank, max_staleness):
                answers.append((pull, worker, pull is not request))
            else:
                still.append(pull)
        self._deferred = still
        return answers

    def service(self, request: ServedRequest) -> Service:
        """The work for the request of a worker that was taken last."""
        return self._services[request.rank][self._taken[request.rank] - 1]

    def rest(self) -> list[tuple[int, float]]:
        """Work after the response to the request that was taken last."""
        return self._last.after if self._last else []

    def _may_pull(self, worker: int, max_staleness: int | None) -> bool:
        if max_staleness is None:
            return True
        unfinished = (
            self._pushed[other] for other, pushes in self._pushes.items() if self._pushed[other] < pushes
        )
        return self._pushed[worker] - min(unfinished, default=0) <= max_staleness


def sections_of(
    rank: int, program: Sequence[tuple[Any, ...]], groups: Sequence[Sequence[int]]
) -> dict[int, Section]:
    """The sections of a rank's trace by their first record.

    A request with bytes is a push, one without a pull. Raises ReplayError.
    """
    found: dict[int, Section] = {}
    if not any(record[0] == _TAKE for record in program):
        return found
    at = 0
    while at < len(program):
        if program[at][0] != Kind.TAKE:
            at += 1
            continue
        first = at
        while at < len(program) and program[at][0] in _IN_SECTION:
            at += 1
        end = 1 + max(index for index in range(first, at) if program[index][0] in (Kind.TAKE, Kind.RESPOND))
        found[first] = _section(rank, program, first, end, groups)
    return found


def _section(
    rank: int, program: Sequence[tuple[Any, ...]], first: int, end: int, groups: Sequence[Sequence[int]]
) -> Section:
    section = Section()
    section.end = end
    open_: dict[int, Service] = {}
    work: list[tuple[int, float]] = []
    last: Service | None = None
    for at in range(first, end):
        kind, group, peer, nbytes, cpu_s, *_ = program[at]
        if kind == Kind.WORK:
            work.append((peer, cpu_s))
        elif kind == Kind.TAKE:
            if last is not None:
                last.after += work
            work = []
            worker = groups[group][peer]
            last = open_[worker] = Service(is_push=nbytes > 0)
            section.add(worker, last)
        elif kind == Kind.RESPOND:
            service = open_.pop(groups[group][peer], None)
            if service is None:
                raise ReplayError(f"rank {rank}, record {at} (respond): the request was not taken")
            service.before += work
            service.response_bytes = nbytes
            work = []
    for worker in open_:
        raise ReplayError(f"rank {rank}, record {end}: the request of rank {worker} is not answered")
    return section
