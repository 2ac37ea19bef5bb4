"""Straggler attribution: after training, separates waiting from transfer and names the rank waited for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from trainer.comm.base import Communicator

if TYPE_CHECKING:
    from torch import Tensor


def attribute_stragglers(comm: Communicator) -> dict[int, float]:
    """Move the time spent waiting for other ranks from phase `communicate` to phase `wait`.

    In a collective a rank waits from its own entry to the entry of the last rank; in a shift, to the entry
    of its source; in a receive, until the sender starts to send; at the end of a send, until the receiver
    starts to receive. In the wait for a non-blocking collective, it waits until the last rank has started
    that. The ranks exchange their times, so this compares their clocks: all ranks must be on one machine.
    Call it on every rank with the clock stopped.

    Returns:
        Seconds that this rank waited, by the rank that it waited for. Their sum has moved to `wait`.
    """
    if (known := comm.waits_s()) is not None:
        comm.clock.transfer("communicate", "wait", sum(known.values()))
        return known
    wait_s = defaultdict[int, float](float)
    for subgroup in comm.subgroups:
        for rank, seconds in attribute_stragglers(subgroup).items():
            wait_s[subgroup.parent_ranks[rank]] += seconds
    if comm.size > 1:
        own = [*_waits(comm)]
        comm.clock.transfer("communicate", "wait", sum(seconds for _, seconds in own))
        for rank, seconds in own:
            wait_s[rank] += seconds
    return wait_s


def _waits(comm: Communicator) -> Iterator[tuple[int, float]]:
    """(rank waited for, seconds) of every exchange on `comm` itself, without its subgroups."""
    import torch

    traffic = comm.traffic
    if traffic.collectives:
        entered, left = _times(comm, traffic.collectives)
        last = comm.all_gather_float64(entered).max(dim=0)
        yield from enumerate(_sum_by_rank(comm, _overlap(entered, left, last.values), last.indices))
    if traffic.starts:
        started = torch.tensor(traffic.starts, dtype=torch.float64, device=comm.device)
        last = comm.all_gather_float64(started).max(dim=0)
        for entered_s, left_s, index, _ in traffic.start_waits:
            yield int(last.indices[index]), _seconds_until((entered_s, left_s), last.values[index].item())
    if traffic.shifts:
        entered, left = _times(comm, traffic.shifts)
        sources = torch.tensor([source for _, _, source in traffic.shifts], device=comm.device)
        source_entered = comm.all_gather_float64(entered)[sources, range(len(sources))]
        yield from enumerate(_sum_by_rank(comm, _overlap(entered, left, source_entered), sources))
    sends = _times_about_this_rank(comm, traffic.sends)
    for span, source, index in _numbered(traffic.receives):
        yield source, _seconds_until(span, sends[source][index])
    receives = _times_about_this_rank(comm, [(asked, source) for _, _, source, asked in traffic.receives])
    for entered_s, left_s, to, index in traffic.send_waits:
        yield to, _seconds_until((entered_s, left_s), receives[to][index])


def _times(comm: Communicator, spans: Sequence[tuple[float, ...]]) -> list[Tensor]:
    """The entry times and the exit times of all spans: two float64 tensors of shape (spans,)."""
    import torch

    entered_and_left = zip(*(span[:2] for span in spans), strict=True)
    return [torch.tensor(each, dtype=torch.float64, device=comm.device) for each in entered_and_left]


def _overlap(entered: Tensor, left: Tensor, other: Tensor) -> Tensor:
    """Seconds of each span (entered, left) before the other rank's entry."""
    return (other.minimum(left) - entered).clamp_(min=0)


def _sum_by_rank(comm: Communicator, seconds: Tensor, ranks: Tensor) -> list[float]:
    return [each.item() for each in seconds.new_zeros(comm.size).index_add_(0, ranks, seconds).unbind()]


def _times_about_this_rank(comm: Communicator, times: Sequence[tuple[float, int]]) -> list[list[float]]:
    """All-gather (time, peer) pairs; returns, by rank, the times whose peer is this rank, in order."""
    import torch

    count = torch.tensor([float(len(times))], dtype=torch.float64, device=comm.device)
    longest = int(comm.all_gather_float64(count).max().item())
    if not longest:
        return [[] for _ in range(comm.size)]
    padded = [*times, *[(0.0, -1)] * (longest - len(times))]
    columns = [
        torch.tensor(each, dtype=torch.float64, device=comm.device) for each in zip(*padded, strict=True)
    ]
    seconds, peers = (comm.all_gather_float64(each) for each in columns)
    return [row[peer == comm.rank].tolist() for row, peer in zip(seconds, peers, strict=True)]


def _numbered(
    receives: Iterable[tuple[float, float, int, float]],
) -> Iterator[tuple[tuple[float, float], int, int]]:
    """Each receive's span, its sender, and its number among the messages from that sender."""
    counts: dict[int, int] = {}
    for entered, left, source, _ in receives:
        index = counts.get(source, 0)
        counts[source] = index + 1
        yield (entered, left), source, index


def _seconds_until(span: tuple[float, float], other: float) -> float:
    """Seconds of the span (entered, left) before the time `other`."""
    entered, left = span
    return max(0.0, min(left, other) - entered)
