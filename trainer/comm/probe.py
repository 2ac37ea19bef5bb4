"""Measure the links between ranks with messages of the run's own transport, before training.

One rank sends, the other answers. Latency is half of the median round trip of a small message. Bandwidth is
n / (t - r) of a large message of n bytes that takes t seconds until its answer, where r is the shortest
round trip. So it is what the transport makes of the link for messages of this size, its own protocol
included. Of several transfers the fastest counts, because TCP begins slowly.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import torch

from trainer.comm.base import Communicator

PINGS = 8
PINGS_S = 0.05  # after which no other ping begins
TRANSFERS = 6  # of a large message
TRANSFERS_S = 0.06  # after which, and after 10 round trips, no other transfer begins
LARGE_S = 0.01  # that a large transfer should take at least, or twice the round trip
MIN_FLOATS, MAX_FLOATS = 2**12, 2**18  # of a large transfer: 16 KiB to 1 MiB
GROWTH = 4  # of the transfer's size, until it takes long enough
MAX_RANKS = 32  # that are probed from rank 0
MAX_RANKS_ALL_PAIRS = 8

END, PING = 0, -1  # headers; a positive one is the number of floats that follow


@dataclass(frozen=True)
class LinkSpeed:
    """What was measured from this rank to rank `to`.

    Attributes:
        latency_s: half of a small message's round trip.
        bytes_per_s: the throughput of large messages.
    """

    to: int
    latency_s: float
    bytes_per_s: float


def probe_links(comm: Communicator, all_pairs: bool = False) -> list[LinkSpeed]:
    """Measure the links from this rank; every rank calls it. Nothing is counted as training.

    Rank 0 measures its links with up to 31 others, one after the other, in both directions.

    Args:
        comm: the communicator of all ranks.
        all_pairs: measure the links between all ranks if there are at most 8: they differ.
    """
    found: list[LinkSpeed] = []
    comm.barrier()
    for pair in _pairs(comm.size, all_pairs):
        for sender, receiver in (pair, pair[::-1]):
            if comm.rank == sender:
                found.append(_measure(comm, receiver))
            elif comm.rank == receiver:
                _answer(comm, sender)
        if all_pairs:
            comm.barrier()  # two pairs at once would disturb each other
    return found


def _pairs(size: int, all_pairs: bool) -> Iterator[tuple[int, int]]:
    if all_pairs and size <= MAX_RANKS_ALL_PAIRS:
        yield from combinations(range(size), 2)
        return
    for other in range(1, min(size, MAX_RANKS)):
        yield 0, other


def _measure(comm: Communicator, to: int) -> LinkSpeed:
    """The sender's part."""
    _ask(comm, to, PING)  # the first waits until the other rank is ready
    began = time.perf_counter()
    pings: list[float] = []
    while len(pings) < PINGS and time.perf_counter() - began < PINGS_S:
        pings.append(_ask(comm, to, PING))
    round_trip_s = median(pings)
    nearest_s = min(pings)
    long_s = nearest_s + max(LARGE_S, 2 * nearest_s)
    floats, found = MIN_FLOATS, [_ask(comm, to, MIN_FLOATS)]
    # A second transfer shows whether the first was long only by chance.
    while floats < MAX_FLOATS and (found[0] < long_s or _ask(comm, to, floats) < long_s):
        floats *= GROWTH
        found = [_ask(comm, to, floats)]
    end = time.perf_counter() + TRANSFERS_S + 10 * nearest_s
    while len(found) < TRANSFERS and time.perf_counter() < end:
        found.append(_ask(comm, to, floats))
    _send(comm, to, END)
    shortest_s = min(found)
    # Where a transfer takes next to no time, noise can make it shorter than a ping.
    transfer_s = shortest_s - nearest_s if shortest_s > nearest_s else shortest_s
    return LinkSpeed(to, round_trip_s / 2, 4 * floats / transfer_s)


def _ask(comm: Communicator, to: int, header: int) -> float:
    """Send a header and what follows it. Returns the seconds until the answer."""
    payload = torch.zeros(max(header, 0), device=comm.device)
    answer = torch.zeros(1, device=comm.device)
    began = time.perf_counter()
    _send(comm, to, header)
    if header > 0:
        comm.send(payload, to)
    comm.recv(answer, to)
    answer.item()  # on a GPU, receiving has ended only now
    return time.perf_counter() - began


def _send(comm: Communicator, to: int, header: int) -> None:
    comm.send(torch.tensor([float(header)], device=comm.device), to)


def _answer(comm: Communicator, source: int) -> None:
    """The receiver's part: answer until the sender ends."""
    header = torch.zeros(1, device=comm.device)
    payload = torch.zeros(MAX_FLOATS, device=comm.device)
    while True:
        comm.recv(header, source)
        floats = int(header.item())
        if floats == END:
            return
        if floats > 0:
            comm.recv(payload[:floats], source)
        comm.send(torch.ones(1, device=comm.device), source)
