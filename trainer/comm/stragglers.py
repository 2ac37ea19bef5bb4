"""Waiting for others, told from moving bytes: after training, by comparing what the ranks have noted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from trainer.comm.base import Communicator

if TYPE_CHECKING:
    from torch import Tensor


def book_waits(comm: Communicator) -> list[float]:
    """Split the clock's `communicate` into waiting for others and moving bytes; who was waited for.

    In a collective a rank waits from its own entry to the last rank's, in a shift to the entry of the rank
    that it hears; in a receive until the sender has begun to send, at the end of a send until the receiver
    has begun to receive. Returns the seconds by the rank that was waited for: their sum is what has been
    booked. Call it on every rank with the clock stopped. Compares the ranks' clocks, so all ranks must be
    on one machine.
    """
    waited = [0.0] * comm.size
    for part in comm.parts:
        for member, seconds in zip(part.members, book_waits(part), strict=True):
            waited[member] += seconds
    if comm.size == 1:
        return waited
    own = [0.0] * comm.size
    for rank, seconds in _waits(comm):
        own[rank] += seconds
    comm.clock.transfer("communicate", "wait", sum(own))
    return [one + other for one, other in zip(waited, own, strict=True)]


def _waits(comm: Communicator) -> Iterator[tuple[int, float]]:
    """Ranks that this one has waited for, and for how many seconds; not over what was split off."""
    import torch

    traffic = comm.traffic
    if traffic.meetings:
        entered, left = _times(comm, traffic.meetings)
        last = everyones(comm, entered).max(dim=0)
        yield from enumerate(_by_rank(comm, _waited(entered, left, last.values), last.indices))
    if traffic.shifts:
        entered, left = _times(comm, traffic.shifts)
        sources = torch.tensor([source for _, _, source in traffic.shifts], device=comm.device)
        others = everyones(comm, entered)[sources, range(len(sources))]
        yield from enumerate(_by_rank(comm, _waited(entered, left, others), sources))
    posts = _told_to_me(comm, traffic.posts)
    for span, source, at in _numbered(traffic.receipts):
        yield source, _until(span, posts[source][at])
    receipts = _told_to_me(comm, [(entered, source) for entered, _, source in traffic.receipts])
    for entered_s, left_s, to, at in traffic.deliveries:
        yield to, _until((entered_s, left_s), receipts[to][at])


def _times(comm: Communicator, spans: Sequence[tuple[float, ...]]) -> list[Tensor]:
    """Of all spans: when they were entered, and when they were left. float64, each of shape (spans,)."""
    import torch

    entered_and_left = zip(*(span[:2] for span in spans), strict=True)
    return [torch.tensor(each, dtype=torch.float64, device=comm.device) for each in entered_and_left]


def everyones(comm: Communicator, numbers: Tensor) -> Tensor:
    """The ranks' float64 numbers, of shape (n,) on each, as shape (size, n)."""
    import torch

    # The transports carry float32: a float64 travels as the bits of two of them, never computed with.
    return comm.all_gather(numbers.view(torch.float32)).view(torch.float64)


def _waited(entered: Tensor, left: Tensor, other: Tensor) -> Tensor:
    """Seconds from each own entry to the other's, as far as one had not left before."""
    return (other.minimum(left) - entered).clamp_(min=0)


def _by_rank(comm: Communicator, seconds: Tensor, ranks: Tensor) -> list[float]:
    """The sums of the seconds that belong to each rank."""
    return [each.item() for each in seconds.new_zeros(comm.size).index_add_(0, ranks, seconds).unbind()]


def _told_to_me(comm: Communicator, notes: Sequence[tuple[float, int]]) -> list[list[float]]:
    """By rank: the times in its notes (time, about which rank) that are about this one, in order."""
    import torch

    count = torch.tensor([float(len(notes))], dtype=torch.float64, device=comm.device)
    longest = int(everyones(comm, count).max().item())
    if not longest:
        return [[] for _ in range(comm.size)]
    padded = [*notes, *[(0.0, -1)] * (longest - len(notes))]
    both = [
        torch.tensor(each, dtype=torch.float64, device=comm.device) for each in zip(*padded, strict=True)
    ]
    times, about = (everyones(comm, each) for each in both)
    return [row[who == comm.rank].tolist() for row, who in zip(times, about, strict=True)]


def _numbered(
    receipts: Iterable[tuple[float, float, int]],
) -> Iterator[tuple[tuple[float, float], int, int]]:
    """Each receipt's span, its sender, and which of the messages from there it is."""
    seen: dict[int, int] = {}
    for entered, left, source in receipts:
        at = seen.get(source, 0)
        seen[source] = at + 1
        yield (entered, left), source, at


def _until(span: tuple[float, float], other: float) -> float:
    """Seconds of the span (entered, left) before the time at which the other rank was there."""
    entered, left = span
    return max(0.0, min(left, other) - entered)
