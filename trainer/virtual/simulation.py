"""The simulation of virtual nodes: its programs are written by the ranks while they train.

When a rank leaves an exchange, its program has ended. Its thread then runs until the next exchange, which
extends the program. Of the ranks that do not wait, the one with the smallest clock is always the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from enum import IntEnum

from trainer.comm.memory import PEER_FAILED
from trainer.core.trace import Kind
from trainer.time_model.cluster import Cluster
from trainer.time_model.engine import Simulation
from trainer.time_model.errors import ReplayError
from trainer.time_model.outcome import RankReplay
from trainer.time_model.program import NAMES, NUMBERED, Entry, Group
from trainer.time_model.service import ServedRequest
from trainer.virtual.turns import VirtualRank

MAX_NAMED = 4  # states of ranks in a message


class Untimed(IntEnum):
    """Exchanges outside of training, such as in an evaluation: they take no time."""

    COLLECTIVE = 100
    SEND = 101  # peer: the receiver
    RECEIVE = 102  # peer: the sender
    DONE = 103  # bytes: the number of a start, see Kind.WAIT: asks whether that is complete


class VirtualSimulation(Simulation):
    """Runs virtual ranks to their end.

    Attributes:
        ranks: all ranks of the run.
        failed: whether a rank has failed. The others get a CommunicationError then.
        is_done: the last answer to `Untimed.DONE`, by rank.
    """

    def __init__(self, ranks: Sequence[VirtualRank], cluster: Cluster, transport: str) -> None:
        """Raises ClusterError, see Simulation."""
        super().__init__(cluster, transport)
        self.ranks, self.failed = ranks, False
        self.is_done = [False] * len(ranks)
        self._met: defaultdict[int, list[int]] = defaultdict(list)  # by group: ranks in a collective
        self._unread: defaultdict[tuple[int, int, int], int] = defaultdict(int)  # untimed messages
        self._taken: list[dict[int, ServedRequest]] = [{} for _ in ranks]  # by server and sender
        self._last_taken: list[int] = [-1] * len(ranks)
        self._in_server_s = [0.0] * len(ranks)  # of the last request of each rank
        # Seconds that each rank waited for a server or as one, by the rank that it waited for.
        self._served_s = [defaultdict[int, float](float) for _ in ranks]
        self._handlers |= {
            int(Untimed.COLLECTIVE): self._meet,
            int(Untimed.SEND): self._deliver_untimed,
            int(Untimed.RECEIVE): self._receive_untimed,
            int(Untimed.DONE): self._answer_done,
        }

    def run(self) -> Sequence[RankReplay]:
        """Run until every rank has ended. Returns their times."""
        try:
            self._play()
        except ReplayError as error:
            self._fail(str(error))
        return self._ranks

    def join(self, ranks: Sequence[int]) -> Group:
        """A new group of ranks of the run; see `number_in`."""
        group = Group(tuple(ranks))
        for rank in ranks:
            self._groups[rank].append(group)
        return group

    def number_in(self, rank: int, group: Group) -> int:
        """The number under which the exchanges of a rank name a group."""
        return self._groups[rank].index(group)

    @property
    def has_work(self) -> bool:
        """Whether some rank has worked, up to the exchanges that have begun."""
        return any(any(rank.work_s) for rank in self._ranks)

    def taken_by(self, server: int) -> int:
        """The rank whose request a server has taken last."""
        return self._last_taken[server]

    def waits_s(self, rank: int) -> dict[int, float]:
        """Seconds that a rank has waited, by the rank that it waited for, without requests to servers."""
        served = self._served_s[rank]
        waited = self._ranks[rank].wait_s
        return {cause: seconds - served.get(cause, 0.0) for cause, seconds in waited.items()}

    def in_server_s(self, rank: int) -> float:
        """The seconds that the last request of a rank spent in its server."""
        return self._in_server_s[rank]

    def _continue(self, rank: int, now: float) -> bool:
        node = self.ranks[rank]
        if node.ended:
            return False
        program = self._programs[rank] = node.resume(now)
        self._at[rank] = 0
        if self.failed:
            self._fail(PEER_FAILED)
            return False
        return bool(program)

    def _fail(self, why: str) -> None:
        """End all ranks: those that have not ended get an error from the exchange that they are in."""
        self._events.clear()
        self._blocked = [None] * self._size
        for rank in self.ranks:
            rank.lost = why
            while not rank.ended:
                rank.resume(rank.clock.now_s)

    def _book(
        self, rank: int, entered: float, left: float, ready: float, cause: int, record: Entry
    ) -> None:
        waited = self._ranks[rank].wait_s
        before = waited.get(cause, 0.0)
        super()._book(rank, entered, left, ready, cause, record)
        if record[0] in (Kind.REQUEST, Kind.TAKE):
            self._served_s[rank][cause] += waited.get(cause, 0.0) - before

    # Requests to a server, whose own code decides what to do with them

    def _serve(self, server: int, entered: float, record: Entry) -> float | None:
        if not self._inbox[server]:
            self._block(server, entered)
            return None
        request = self._inbox[server].popleft()
        self._taken[server][request.rank] = request
        self._last_taken[server] = request.rank
        taken = max(entered, request.arrived) + self._network.overhead_s
        self._book(server, entered, taken, request.started, request.rank, record)
        return taken

    def _answer(self, server: int, now: float, record: Entry) -> float:
        client = self._groups[server][record[1]].ranks[record[2]]
        last = self._last_taken[server]
        deferred = client != last  # until another worker's request was taken
        request = self._taken[server].pop(client)
        self._in_server_s[client] = now - request.arrived
        self._respond(server, request, record[3], now, last if deferred else server)
        return now

    # Exchanges that take no time

    def _meet(self, rank: int, now: float, record: Entry) -> float | None:
        group = self._groups[rank][record[1]]
        met = self._met[id(group)]
        met.append(rank)
        if len(met) < len(group.ranks):
            self._block(rank, now)
            return None
        for other in met[:-1]:
            entered = self._blocked[other]
            assert entered is not None  # noqa: S101  (it is blocked in this collective)
            self._free(other, entered)
        met.clear()
        return now

    def _deliver_untimed(self, rank: int, now: float, record: Entry) -> float:
        group = self._groups[rank][record[1]]
        to = group.ranks[record[2]]
        self._unread[id(group), rank, to] += 1
        entered = self._blocked[to]
        if entered is not None:
            waits = self._programs[to][self._at[to]]
            if waits[0] == Untimed.RECEIVE and self._source(to, waits) == (id(group), rank, to):
                self._unread[id(group), rank, to] -= 1
                self._free(to, entered)
        return now

    def _receive_untimed(self, rank: int, now: float, record: Entry) -> float | None:
        source = self._source(rank, record)
        if self._unread[source]:
            self._unread[source] -= 1
            return now
        self._block(rank, now)
        return None

    def _answer_done(self, rank: int, now: float, record: Entry) -> float:
        part = self._started[rank].get((record[1], record[3]))
        self.is_done[rank] = part is None or part.ends <= now
        return now

    def _source(self, rank: int, record: Entry) -> tuple[int, int, int]:
        """The messages that a rank waits for: group, sender, receiver."""
        group = self._groups[rank][record[1]]
        return id(group), group.ranks[record[2]], rank

    # Errors

    def _name(self, rank: int, at: int | None = None) -> str:
        """`rank 1 (all_reduce of 400 bytes)`."""
        record = self._programs[rank][self._at[rank] if at is None else at]
        kind, _, peer, nbytes = record[:4]
        name = NAMES[kind] if kind in NAMES else f"{Untimed(kind).name.lower()} outside of training"
        size = f" of {nbytes} bytes" if nbytes and kind not in NUMBERED else ""
        with_peer = f", peer {peer}" if peer >= 0 else ""
        return f"rank {rank} ({name}{size}{with_peer})"

    def _why_blocked(self, rank: int) -> str:
        by_state: defaultdict[Entry | None, list[int]] = defaultdict(list)
        for each in range(self._size):
            waits = self._blocked[each] is not None
            by_state[self._programs[each][self._at[each]] if waits else None].append(each)
        alike = sorted(by_state.values(), key=len)  # the culprit is most often alone
        states = [self._state(ranks[0]) + _others(len(ranks) - 1) for ranks in alike[:MAX_NAMED]]
        more = f"; and {len(alike) - MAX_NAMED} other states" if len(alike) > MAX_NAMED else ""
        return f"the ranks wait for each other for ever: {'; '.join(states)}{more}"

    def _state(self, rank: int) -> str:
        return self._name(rank) if self._blocked[rank] is not None else f"rank {rank} has ended"


def _others(number: int) -> str:
    return f", as {number} other rank{'s' if number > 1 else ''}" if number else ""
