"""Programs of ranks: their groups, and the exchanges that are under way between ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

import numpy as np

from trainer.core.trace import WORK_PHASES, Kind, Trace
from trainer.time_model.collectives import Costs
from trainer.time_model.errors import ReplayError

# (kind, group, peer, bytes, cpu_s, entered_s, left_s), see trainer.core.trace.RECORD
Entry = tuple[int, int, int, int, float, float, float]


class Group:
    """A communicator. ranks: its members in the run."""

    __slots__ = ("costs", "count", "entered", "entries", "expected", "first", "ranks", "started", "where")

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.where = {rank: at for at, rank in enumerate(ranks)}
        self.costs: dict[tuple[int, int, int], Costs] = {}
        # The open blocking collective: who has entered, and when its network port was free.
        self.count, self.first, self.expected = 0, -1, (0, 0, 0)
        self.entered = [0.0] * len(ranks)
        self.entries = [0.0] * len(ranks)
        # Collectives that run beside the computation and have not started.
        self.started: deque[Started] = deque()


class Started:
    """A collective beside the computation: what it is, and each rank's part of it once that has started."""

    __slots__ = ("call", "handed", "parts")

    def __init__(self, size: int, call: tuple[int, int, int]) -> None:
        """call: kind, root and bytes."""
        self.call = call
        self.handed = [inf] * size  # when each rank has started it
        self.parts: list[Part | None] = [None] * size


class Part:
    """One rank's part of an exchange, for which it may wait later.

    begins, ends: when the exchange itself goes on; inf: not known yet. since: when the rank that it waited
    for, `cause`, was ready. own_s: the rank's own software, after the end. core_s: CPU seconds of the core
    of the rank while it goes on.
    """

    __slots__ = ("begins", "cause", "core_s", "ends", "own_s", "since")

    def __init__(self) -> None:
        self.begins = self.ends = self.since = inf
        self.own_s = self.core_s = 0.0
        self.cause = -1

    def complete(self, begins: float, ends: float, since: float, cause: int) -> None:
        """Set when it goes on."""
        self.begins, self.ends, self.since, self.cause = begins, ends, since, cause


class Message:
    """A message: when its sender started and its receiver asked for it, and what follows; inf: not yet."""

    __slots__ = ("arrived", "asked", "bytes", "part", "requested", "sent", "started")

    def __init__(self) -> None:
        self.bytes = 0
        self.started = inf  # the sender's clock
        self.asked = inf  # the receiver's
        self.requested = inf  # when the sender knows
        self.sent = inf
        self.arrived = inf
        self.part: Part | None = None  # the receiver's


class Channel:
    """Messages of a group from one rank to another, in order."""

    __slots__ = ("messages", "receives", "sends")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.sends = self.receives = 0

    def message(self, index: int) -> Message:
        while len(self.messages) <= index:
            self.messages.append(Message())
        return self.messages[index]


COLLECTIVES = {
    int(kind): kind.name.lower()
    for kind in (
        Kind.ALL_REDUCE,
        Kind.ALL_GATHER,
        Kind.ALL_TO_ALL,
        Kind.REDUCE_SCATTER,
        Kind.GATHER,
        Kind.BROADCAST,
        Kind.BARRIER,
        Kind.SHIFT,
    )
}
# Collectives beside the computation, and the blocking ones that they are like.
BESIDE = {
    int(kind): kind.name.removeprefix("START_").lower()
    for kind in (
        Kind.START_ALL_REDUCE,
        Kind.START_ALL_GATHER,
        Kind.START_REDUCE_SCATTER,
        Kind.START_BROADCAST,
    )
}
NAMES = {int(kind): kind.name.lower() for kind in Kind}
NUMBERED = (int(Kind.SEND_WAIT), int(Kind.WAIT))  # have a number in the place of bytes
_WITH_PEER = (
    Kind.GATHER,
    Kind.BROADCAST,
    Kind.SEND,
    Kind.SEND_WAIT,
    Kind.RECEIVE,
    Kind.START_BROADCAST,
    Kind.START_RECEIVE,
    Kind.REQUEST,
    Kind.TAKE,
    Kind.RESPOND,
)


def join_groups(traces: Sequence[Trace]) -> list[list[Group]]:
    """The groups of each rank: the same object for all members of a communicator.

    Raises ReplayError for a group, a peer, a root or a phase that does not exist.
    """
    known: dict[tuple[tuple[int, ...], int], Group] = {}
    everyone, joined = tuple(range(len(traces))), []
    for rank, trace in enumerate(traces):
        own, seen = [], dict[tuple[int, ...], int]()
        for listed in trace.header.groups:
            ranks = everyone if listed is None else tuple(listed)
            if ranks is not everyone and (
                rank not in ranks or len({*ranks}) < len(ranks) or max(ranks) >= len(traces)
            ):
                raise ReplayError(
                    f"rank {rank}: its trace has a group {listed!s:.60}, of a run of {len(traces)} ranks"
                )
            number = seen[ranks] = seen.get(ranks, -1) + 1  # a communicator may be split twice alike
            if (ranks, number) not in known:
                known[ranks, number] = Group(ranks)
            own.append(known[ranks, number])
        joined.append(own)
    for rank, trace in enumerate(traces):
        _check_peers(rank, trace.records, joined[rank])
    return joined


def _check_peers(rank: int, records: np.ndarray, groups: Sequence[Group]) -> None:
    """Raise ReplayError for a phase, a peer or a root that does not exist."""
    kinds, peers = records["kind"], records["peer"]
    sizes = np.array([len(group.ranks) for group in groups])[records["group"]]
    limits = np.where(kinds == Kind.WORK, len(WORK_PHASES), sizes)
    checked = np.isin(kinds, (Kind.WORK, *_WITH_PEER))
    wrong = np.flatnonzero(checked & ((peers < 0) | (peers >= limits)))
    if len(wrong):
        at = int(wrong[0])
        name, peer = NAMES[int(kinds[at])], int(peers[at])
        what = f"phase {peer} of {limits[at]}" if kinds[at] == Kind.WORK else f"peer {peer} of {limits[at]}"
        raise ReplayError(f"rank {rank}, record {at} ({name}): there is no {what}")
