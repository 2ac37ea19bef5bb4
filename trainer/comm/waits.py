"""Waiting for others, told from moving bytes: after training, by comparing what the ranks have noted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from trainer.comm.base import Communicator

if TYPE_CHECKING:
    from torch import Tensor


def book_waits(comm: Communicator) -> None:
    """Split the clock's `communicate` into waiting for others and moving bytes.

    In a collective a rank waits from its own entry to the last rank's, in a shift to the entry of the rank
    that it hears; in a receive until the sender has begun to send, at the end of a send until the receiver
    has begun to receive. Call it on every rank with the clock stopped. Compares the ranks' clocks, so all
    ranks must be on one machine.
    """
    for part in comm.parts:
        book_waits(part)
    if comm.size == 1:
        return
    traffic = comm.traffic
    waited = 0.0
    if traffic.meetings:
        entered, left = _times(comm, traffic.meetings)
        waited += _wait(entered, left, everyones(comm, entered).max(dim=0).values)
    if traffic.shifts:
        entered, left = _times(comm, traffic.shifts)
        sources = [source for _, _, source in traffic.shifts]
        waited += _wait(entered, left, everyones(comm, entered)[sources, range(len(sources))])
    posts = _told_to_me(comm, traffic.posts)
    received = _numbered(traffic.receipts)
    waited += _waited_for(((*span, posts[source][at]) for span, source, at in received))
    receipts = _told_to_me(comm, [(entered, source) for entered, _, source in traffic.receipts])
    waited += _waited_for((entered, left, receipts[to][at]) for entered, left, to, at in traffic.deliveries)
    comm.clock.transfer("communicate", "wait", waited)


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


def _wait(entered: Tensor, left: Tensor, other: Tensor) -> float:
    """Seconds from the own entries to the other's, as far as one had not left before."""
    return (other.minimum(left) - entered).clamp_(min=0).sum().item()


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


def _waited_for(spans: Iterable[tuple[float, float, float]]) -> float:
    """Seconds of the spans (entered, left) before the time at which the other rank was there."""
    return sum(max(0.0, min(left, other) - entered) for entered, left, other in spans)
