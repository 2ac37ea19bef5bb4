"""Collective algorithms as rounds of messages, and what they cost between ranks that enter at any time.

An algorithm is a list of rounds; a round is a list of messages. In a round each rank sends its messages,
one after the other, then waits for those that it receives; the next round follows. The model of a message
is LogGP's (Alexandrov et al. 1995): the sender is busy for the overhead o, its port for n/β; the first byte
arrives a latency α later; the receiver's port is busy for n/β; then the receiver is busy for o. A rank has
one port for sending and one for receiving. A message waits at the receiver until the receiver wants it, as
in the kernel's socket buffers, and the network itself is never the bottleneck. With o = 0 and equal
entries, a message costs α + n/β (Hockney 1994).

Times are then linear in the algebra of max and +: rank r leaves at max over s of (entry_s + D_rs), where
D_rs is the longest path of messages from the entry of s to the exit of r (Baccelli et al. 1992,
"Synchronization and Linearity"). `Costs` computes D once for each kind, size and group.

Sources: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in
MPICH"; Chan, Heimlich, Purkayastha and van de Geijn 2007, "Collective communication: theory, practice, and
experience".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import add
from typing import NamedTuple, cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from trainer.time_model.cluster import CALL, RECEIVE_CALL, Link, Links

FEW = 32  # ranks, up to which lists are faster than arrays
BLOCK = 2**20  # numbers of an array that are computed at once: temporary arrays stay small

Message = tuple[int, int, float]  # sender, receiver, bytes


class Rotation(NamedTuple):
    """Messages of so many bytes from every rank to the one `distance` after it."""

    distance: int
    nbytes: float

    def messages(self, size: int) -> list[Message]:
        return [(rank, (rank + self.distance) % size, self.nbytes) for rank in range(size)]


Round = Sequence[Message] | Sequence[Rotation]
# (ranks, bytes that each rank passes, root or distance) -> rounds
Algorithm = Callable[[int, float, int], Sequence[Round]]


# All-reduce


def ring_all_reduce(size: int, nbytes: float, _: int) -> Sequence[Round]:
    """Reduce-scatter, then all-gather around the ring: 2(P−1) rounds of n/P (Thakur et al. 2005)."""
    return _ring(nbytes / size, 2 * (size - 1))


def segmented_ring_all_reduce(size: int, nbytes: float, _: int) -> Sequence[Round]:
    """The ring in which every rank sends its part as two segments, as gloo does to overlap the sums."""
    return 2 * (size - 1) * [2 * [Rotation(1, nbytes / size / 2)]]


def recursive_doubling(size: int, nbytes: float, _: int) -> Sequence[Round]:
    """Exchange the whole buffer over distances 1, 2, 4, …: log₂ P rounds (Thakur et al. 2005).

    Each rank beyond a power of two first sends its buffer to a neighbour, and gets the sum at the end.
    """
    first, ranks, last = _fold(size, nbytes)
    rounds = [_pairs(ranks, 1 << step, nbytes) for step in range(_log2(len(ranks)))]
    return [*first, *rounds, *last]


def rabenseifner(size: int, nbytes: float, _: int) -> Sequence[Round]:
    """Reduce-scatter by halving, then all-gather by doubling (Rabenseifner, in Thakur et al. 2005)."""
    first, ranks, last = _fold(size, nbytes)
    steps = range(_log2(len(ranks)))
    halving = [_pairs(ranks, 1 << step, nbytes / (2 << step)) for step in steps]
    return [*first, *halving, *reversed(halving), *last]


def direct_all_reduce(size: int, nbytes: float, _: int) -> Sequence[Round]:
    """Every rank sums one slice of the buffer and sends the sum to all: two direct exchanges of n/P."""
    return 2 * [*_direct(size, nbytes / size)]


# All-gather, reduce-scatter, all-to-all


def ring_all_gather(size: int, nbytes: float, _: int) -> Sequence[Round]:
    """P−1 rounds around the ring, each of one rank's buffer (Thakur et al. 2005)."""
    return _ring(nbytes, size - 1)


def doubling_all_gather(size: int, nbytes: float, root: int) -> Sequence[Round]:
    """Distances 1, 2, 4, … with doubling messages; the ring unless P is a power of two."""
    if size & (size - 1):
        return ring_all_gather(size, nbytes, root)
    ranks = [*range(size)]
    return [_pairs(ranks, 1 << step, nbytes * (1 << step)) for step in range(_log2(size))]


def direct_all_gather(size: int, nbytes: float, _: int) -> Sequence[Round]:
    """Every rank sends its buffer to all others."""
    return _direct(size, nbytes)


def ring_reduce_scatter(size: int, nbytes: float, _: int) -> Sequence[Round]:
    """P−1 rounds of n/P around the ring."""
    return _ring(nbytes / size, size - 1)


def pairwise_all_to_all(size: int, nbytes: float, _: int) -> Sequence[Round]:
    """P−1 rounds; in round k rank r sends a row of n/P to rank r + k (Thakur et al. 2005)."""
    return [[Rotation(distance, nbytes / size)] for distance in range(1, size)]


def direct_all_to_all(size: int, nbytes: float, _: int) -> Sequence[Round]:
    """Every rank sends its rows of n/P at once, one after the other."""
    return _direct(size, nbytes / size)


# Gather, broadcast, barrier, shift


def linear_gather(size: int, nbytes: float, root: int) -> Sequence[Round]:
    """The root receives from the others one after the other, in the order of their ranks."""
    return [[(rank, root, nbytes) for rank in range(size) if rank != root]]


def binomial_broadcast(size: int, nbytes: float, root: int) -> Sequence[Round]:
    """⌈log₂ P⌉ rounds, in which all ranks that have the buffer send it (Chan et al. 2007)."""
    rounds: list[Round] = []
    for step in reversed(range(_log2_up(size))):
        mask = 1 << step
        senders = range(0, size - mask, 2 * mask)
        rounds.append([((at + root) % size, (at + mask + root) % size, nbytes) for at in senders])
    return rounds


def linear_broadcast(size: int, nbytes: float, root: int) -> Sequence[Round]:
    """The root sends to the others one after the other, starting with the next rank."""
    return [[(root, (root + distance) % size, nbytes) for distance in range(1, size)]]


def dissemination(size: int, _: float, __: int) -> Sequence[Round]:
    """Empty messages over distances 1, 2, 4, …: ⌈log₂ P⌉ rounds (Hensgen, Finkel and Manber 1988)."""
    return [[Rotation(1 << step, 0.0)] for step in range(_log2_up(size))]


def direct_barrier(size: int, _: float, __: int) -> Sequence[Round]:
    """Every rank sends an empty message to all others."""
    return _direct(size, 0.0)


def shift(size: int, nbytes: float, distance: int) -> Sequence[Round]:
    """Rank r sends to rank r + distance and receives from rank r − distance."""
    return [[Rotation(distance, nbytes)]] if distance % size else []


ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "all_reduce": {
        "ring": ring_all_reduce,
        "segmented_ring": segmented_ring_all_reduce,
        "recursive_doubling": recursive_doubling,
        "rabenseifner": rabenseifner,
        "direct": direct_all_reduce,
    },
    "all_gather": {
        "ring": ring_all_gather,
        "recursive_doubling": doubling_all_gather,
        "direct": direct_all_gather,
    },
    "reduce_scatter": {
        "ring": ring_reduce_scatter,
        "pairwise": pairwise_all_to_all,
        "direct": direct_all_to_all,
        "all_reduce": segmented_ring_all_reduce,
    },
    "all_to_all": {"pairwise": pairwise_all_to_all, "direct": direct_all_to_all},
    "gather": {"linear": linear_gather},
    "broadcast": {"binomial": binomial_broadcast, "linear": linear_broadcast},
    "barrier": {"dissemination": dissemination, "direct": direct_barrier},
    "shift": {"direct": shift},
}


def only_receive(collective: str, size: int, root: int) -> set[int]:
    """The ranks that send nothing of their own in a collective, and wait for the others."""
    if collective == "gather":
        return {root}
    return {*range(size)} - {root} if collective == "broadcast" else set()


def call_name(collective: str, size: int, rank: int, root: int) -> str:
    """The name of a rank's call of a collective among the costs of software."""
    return collective + (RECEIVE_CALL if rank in only_receive(collective, size, root) else CALL)


def _ring(nbytes: float, rounds: int) -> Sequence[Round]:
    return rounds * [[Rotation(1, nbytes)]]


def _direct(size: int, nbytes: float) -> Sequence[Round]:
    """One round in which every rank sends to all others, starting with the next one."""
    if size == 1:
        return []
    return [[Rotation(distance, nbytes) for distance in range(1, size)]]


def _pairs(ranks: Sequence[int], distance: int, nbytes: float) -> Round:
    return [(rank, ranks[at ^ distance], nbytes) for at, rank in enumerate(ranks)]


def _fold(size: int, nbytes: float) -> tuple[list[Round], list[int], list[Round]]:
    """A first round that leaves a power of two of ranks, these ranks, and a last round to the others."""
    extra = size - (1 << _log2(size))
    ranks = [*range(1, 2 * extra, 2), *range(2 * extra, size)]
    if not extra:
        return [], ranks, []
    first = [(rank, rank + 1, nbytes) for rank in range(0, 2 * extra, 2)]
    return [first], ranks, [[(target, source, nbytes) for source, target, nbytes in first]]


def _log2(size: int) -> int:
    return size.bit_length() - 1


def _log2_up(size: int) -> int:
    return (size - 1).bit_length()


@dataclass(frozen=True)
class Costs:
    """D of an algorithm: seconds from the entry of each rank to the exit of each.

    D_rs is `array[r, s]`; -inf where the exit of r does not depend on the entry of s.
    """

    array: np.ndarray

    @classmethod
    def of(
        cls,
        rounds: Sequence[Round],
        links: Links,
        overhead_s: float,
        acknowledged: bool = False,
        call_s: Sequence[float] = (),
        eager_bytes: float = np.inf,
        answer_s: float = 0.0,
    ) -> Costs:
        """
        Args:
            links: the links from each rank to each other.
            acknowledged: a sender waits until its messages have arrived and their receivers have said so.
            call_s: the time of the call on each rank, before its first message; empty: none. Negative if
                the overhead of all messages is too long; no rank leaves before another whose message it
                needs has entered.
            eager_bytes: larger messages are sent when their receiver has begun the round and asked.
            answer_s: what an answer takes beyond its message, if there are answers.
        """
        size = links.size
        calls = [*call_s] or [0.0] * size
        rotations = [round_ for round_ in rounds if all(isinstance(each, Rotation) for each in round_)]
        alike = links.uniform is not None and len({*calls}) == 1 and not acknowledged
        if alike and len(rotations) == len(rounds):
            link, turns = links.uniform, cast("Sequence[Sequence[Rotation]]", rotations)
            assert link is not None  # noqa: S101  (for the type checker)
            found = _from_rank_0(turns, size, link, overhead_s, calls[0], eager_bytes)
            return cls(_circulant(_at_least_0(found)))
        found = np.empty((size, size))
        for sources in _blocks(size):
            found[:, sources] = _at_least_0(
                _from_ranks(sources, rounds, links, overhead_s, acknowledged, calls, eager_bytes, answer_s)
            )
        return cls(found)

    @cached_property
    def rows(self) -> list[list[float]]:
        """D as lists, which are faster than arrays for few ranks."""
        rows: list[list[float]] = self.array.tolist()
        return rows

    def exits(self, entries: Sequence[float]) -> tuple[list[float], list[int]]:
        """The time at which each rank leaves, and the rank whose entry it follows from."""
        if len(entries) > FEW:
            return self._exits_of_many(np.asarray(entries))
        exits, origins = [], []
        for row in self.rows:
            sums = [*map(add, entries, row)]
            exits.append(last := max(sums))
            origins.append(sums.index(last))
        return exits, origins

    def _exits_of_many(self, entries: np.ndarray) -> tuple[list[float], list[int]]:
        exits: list[float] = []
        origins: list[int] = []
        for ranks in _blocks(len(entries)):
            times = self.array[ranks] + entries
            last = times.argmax(axis=1)
            exits += times[np.arange(len(times)), last].tolist()
            origins += last.tolist()
        return exits, origins


def _blocks(size: int) -> Iterator[slice]:
    """Parts of the rows or columns of an array of shape (size, size)."""
    step = max(1, BLOCK // size)
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def _at_least_0(seconds: np.ndarray) -> np.ndarray:
    return np.where(seconds > -np.inf, np.maximum(seconds, 0.0), seconds)


def _from_ranks(
    sources: slice,
    rounds: Sequence[Round],
    links: Links,
    overhead_s: float,
    acknowledged: bool,
    call_s: Sequence[float],
    eager_bytes: float,
    answer_s: float,
) -> np.ndarray:
    """The longest paths to the exit of each rank from the entries of some, shape (size, sources)."""
    size = links.size
    # Every time is a vector: the longest path to it from the entry of each source.
    clock = np.full((size, sources.stop - sources.start), -np.inf)
    np.fill_diagonal(clock[sources], call_s[sources])
    receiving = np.full(clock.shape, -np.inf)  # when the receiving ports are free
    for round_ in rounds:
        sending, done = clock.copy(), clock.copy()
        for source, target, nbytes in _messages(round_, size):
            link = links.between(source, target)
            transfer_s = nbytes / link.bytes_per_s
            ready = sending[source]
            if nbytes > eager_bytes:
                ready = np.maximum(ready, clock[target] + links.between(target, source).latency_s)
            started = ready + overhead_s
            arrived = np.maximum(started + link.latency_s, receiving[target]) + transfer_s
            sending[source] = started + transfer_s
            receiving[target] = arrived
            done[target] = np.maximum(done[target], arrived) + overhead_s
            if acknowledged:
                back_s = links.between(target, source).latency_s
                answered = arrived + back_s + overhead_s + answer_s
                done[source] = np.maximum(done[source], answered)
        clock = np.maximum(sending, done)
    return clock


def _messages(round_: Round, size: int) -> Iterator[Message]:
    for each in round_:
        if isinstance(each, Rotation):
            yield from each.messages(size)
        else:
            yield each


def _from_rank_0(
    rounds: Sequence[Sequence[Rotation]],
    size: int,
    link: Link,
    overhead_s: float,
    call_s: float,
    eager_bytes: float,
) -> np.ndarray:
    """Like `_from_ranks`, the paths from rank 0 alone, shape (size,): all ranks do the same."""
    clock = np.full(size, -np.inf)
    clock[0] = call_s
    receiving = np.full(size, -np.inf)
    for round_ in rounds:
        sending, done = clock.copy(), clock.copy()
        for distance, nbytes in round_:
            transfer_s = nbytes / link.bytes_per_s
            ready = sending
            if nbytes > eager_bytes:
                ready = np.maximum(ready, np.roll(clock, -distance) + link.latency_s)
            started = ready + overhead_s
            receiving = np.maximum(np.roll(started + link.latency_s, distance), receiving) + transfer_s
            sending = started + transfer_s
            done = np.maximum(done, receiving) + overhead_s
        clock = np.maximum(sending, done)
    return clock


def _circulant(first: np.ndarray) -> np.ndarray:
    """The array whose column s is the first column, turned by s: a view of 2·size numbers."""
    return sliding_window_view(np.tile(first, 2)[1:], len(first))[:, ::-1]
