"""Asynchronous rounds: workers take local steps from a server's weights and push what they have changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import NamedTuple

from torch import Tensor

from trainer.parallel.parameter_server import BoundedStaleness, Server, Worker
from trainer.training.replica import Replica
from trainer.training.session import Session


class Push(NamedTuple):
    """What a worker has pushed.

    Attributes:
        change: what the server subtracts: the weights that the worker pulled less those after its steps, or
            a share of that; shape (parameters,).
        staleness: the server's updates between its pull and its push.
        last: of the epoch.
    """

    change: Tensor
    staleness: int
    last: bool


def pushes(
    session: Session,
    replica: Replica,
    local_steps: Sequence[int],
    max_staleness: int | None,
    pushes_per_update: int = 1,
) -> Iterator[Push]:
    """Serve the workers of a run. The caller updates the weights of the replica by each push.

    Args:
        local_steps: the steps of a round of each worker; an epoch's last round can have fewer.
        max_staleness: rounds that a worker may be ahead of the slowest; None: any number.
        pushes_per_update: after how many pushes of an epoch the caller updates the weights.
    """
    requests = session.comm.requests(session.timeout_s)
    server = Server(replica, session.comm, requests, session.timeout_s, pushes_per_update)
    for epoch in session.epochs(evaluate="server"):
        rounds = [ceil(n / h) for n, h in zip(session.steps(epoch), local_steps, strict=True)]
        server.start_epoch(BoundedStaleness(dict(enumerate(rounds, start=1)), max_staleness))
        for number in session.server_steps(server.pushes_left(), count=sum(rounds)):
            with server.next_push() as change:
                if change is None:  # only runs that continue without lost nodes
                    break
                yield Push(change, server.staleness, number == sum(rounds))


def work(session: Session, replica: Replica, local_steps: int) -> None:
    """Train as a worker, with the run's optimizer, whose state it keeps. local_steps: of a round."""
    server = Worker(session.comm, session.comm.requests(session.timeout_s))
    staleness: list[int] = []
    for epoch in session.epochs(evaluate="server"):
        for batch in session.batches(epoch):
            if batch.step % local_steps == 1 % local_steps:
                pulled = server.pull()
                replica.set_flat_parameters(pulled)
            replica.backward(batch)
            replica.step()
            if batch.step % local_steps == 0 or batch.step == batch.steps:
                with session.clock.phase("compute"):
                    change = pulled - replica.flat_parameters()
                staleness.append(server.push(change))
    session.report_staleness(staleness)
