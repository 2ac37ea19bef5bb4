"""Simulation of ranks on a described cluster: their work and exchanges become times, event by event.

Every rank has a clock and a program, a list of trace records. `WORK` advances the clock by CPU seconds over
node speed; an exchange joins the clocks of those who take part. The rank with the smallest clock always
runs first, so that a port and a server see messages in the order of their simulated times. The same
programs on the same cluster give the same bits.

A program may grow: a replay has it from a trace, and virtual nodes write it while they train. (Clauss et
al. 2011, "Single node on-line simulation of MPI applications with SMPI", has both.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any

from trainer.core.trace import WORK_PHASES, Kind
from trainer.time_model.algorithms import Network
from trainer.time_model.cluster import Cluster
from trainer.time_model.collectives import Costs
from trainer.time_model.errors import ReplayError
from trainer.time_model.outcome import Interval, RankReplay
from trainer.time_model.program import COLLECTIVES, NAMES, Channel, Entry, Group, Message, Started
from trainer.time_model.service import ServedRequest

_SEND, _RECEIVE, _REQUEST = (NAMES[int(kind)] for kind in (Kind.SEND, Kind.RECEIVE, Kind.REQUEST))


class Simulation(ABC):
    """Runs the programs of all ranks. A subclass says where programs come from, and how servers work."""

    def __init__(self, cluster: Cluster, transport: str, intervals: bool = False) -> None:
        """
        Args:
            transport: whose algorithms the collectives have.
            intervals: also collect the intervals of a timeline.

        Raises:
            ClusterError: An algorithm is unknown, or those of the transport are.
        """
        self._size = size = cluster.size
        self._network = Network(cluster, transport)
        self._links = cluster.links_of(range(size))
        self._speed = [cluster.speed_of(rank) for rank in range(size)]
        self._programs: list[list[Entry]] = [[] for _ in range(size)]
        self._groups: list[list[Group]] = [[] for _ in range(size)]
        self._ranks = [RankReplay([0.0] * len(WORK_PHASES)) for _ in range(size)]
        self._wanted = intervals
        # The next record of each rank; of a blocked rank, the one it is blocked in.
        self._at = [0] * size
        # (time, rank): the rank is free. (time, size + rank): the rank's request arrives.
        self._events: list[tuple[float, int]] = [(0.0, rank) for rank in range(size)]
        self._blocked: list[float | None] = [None] * size  # since when
        self._sending, self._receiving = [0.0] * size, [0.0] * size  # when the ports are free
        self._channels: dict[tuple[int, int, int], Channel] = {}
        # Beside the computation: (begin, start of the last rank, end, its rank) since the last wait.
        self._beside: list[list[tuple[float, float, float, int]]] = [[] for _ in range(size)]
        self._outstanding = [0] * size  # handed over, not yet started
        self._epoch: list[int | None] = [None] * size
        self._requests: dict[int, ServedRequest] = {}  # the last one of each rank
        self._inbox: list[deque[ServedRequest]] = [deque() for _ in range(size)]
        self._handlers: dict[int, Callable[[int, float, Entry], float | None]] = {
            **dict.fromkeys(COLLECTIVES, self._collective),
            int(Kind.SEND): self._send,
            int(Kind.SEND_WAIT): self._send_wait,
            int(Kind.RECEIVE): self._receive,
            int(Kind.START_ALL_REDUCE): self._start,
            int(Kind.WAIT_STARTED): self._wait_started,
            int(Kind.REQUEST): self._request,
            int(Kind.TAKE): self._serve,
            int(Kind.RESPOND): self._answer,
        }

    @abstractmethod
    def _continue(self, rank: int, now: float) -> bool:
        """Append to the program of a rank that has reached its end at `now`. False: the rank has ended."""

    @abstractmethod
    def _serve(self, server: int, entered: float, record: Entry) -> float | None:
        """Take the next request. entered: when the server was free. None: it blocks."""

    @abstractmethod
    def _answer(self, server: int, now: float, record: Entry) -> float | None:
        """Answer a request that was taken."""

    def _play(self) -> None:
        """Run until no event is left. Raises ReplayError if a rank is blocked then."""
        events = self._events
        while events:
            now, actor = heappop(events)
            if actor < self._size:
                self._advance(actor, now)
            else:
                self._arrive(self._requests[actor - self._size])
        for rank, since in enumerate(self._blocked):
            if since is not None:
                raise ReplayError(self._why_blocked(rank))

    def _advance(self, rank: int, now: float) -> None:
        """Run the rank's program from time `now` until it is blocked, or another rank is due."""
        program, speed, events = self._programs[rank], self._speed[rank], self._events
        handlers, work, wanted = self._handlers, self._ranks[rank].work_s, self._wanted
        position, end = self._at[rank], len(program)
        clock = now
        while True:
            if position == end:
                self._at[rank] = position
                if not self._continue(rank, clock):
                    break
                program = self._programs[rank]
                position, end = self._at[rank], len(program)
            record = program[position]
            kind = record[0]
            if kind == 1:  # WORK
                seconds = record[4] / speed
                work[record[2]] += seconds
                if wanted:
                    self._show(rank, WORK_PHASES[record[2]], clock, clock + seconds)
                clock += seconds
                position += 1
            elif kind == 3:  # STEP
                if wanted:
                    self._ranks[rank].step_ends_s.append(clock)
                position += 1
            elif kind == 2:  # EPOCH
                self._end_epoch(rank, clock)
                self._epoch[rank] = record[2]
                position += 1
            else:
                if events and events[0] < (clock, rank):
                    self._at[rank] = position
                    heappush(events, (clock, rank))
                    return
                self._at[rank] = position
                left = handlers[kind](rank, clock, record)
                if left is None:
                    return
                clock = left
                position = self._at[rank] + 1
        self._end_epoch(rank, clock)
        self._ranks[rank].end_s = clock

    def _end_epoch(self, rank: int, now: float) -> None:
        if (epoch := self._epoch[rank]) is not None:
            self._ranks[rank].epoch_ends_s[epoch] = now

    def _block(self, rank: int, now: float) -> None:
        """The rank stays in its record until `_free`."""
        self._blocked[rank] = now

    def _free(self, rank: int, now: float) -> None:
        """The rank leaves the record in which it is blocked."""
        self._blocked[rank] = None
        self._at[rank] += 1
        heappush(self._events, (now, rank))

    def _book(
        self, rank: int, entered: float, left: float, ready: float, cause: int, record: Entry
    ) -> None:
        """Book an exchange: until `ready` the rank waits for rank `cause`, then it communicates."""
        replay = self._ranks[rank]
        wait = min(max(ready - entered, 0.0), left - entered) if cause != rank else 0.0
        if wait:
            replay.wait_s[cause] += wait
        replay.communicate_s += left - entered - wait
        if self._wanted:
            caused = cause if wait > 0 else -1
            self._show(rank, NAMES[record[0]], entered, left, wait, caused, record[3])

    def _show(self, rank: int, name: str, start: float, end: float, *details: Any) -> None:
        if end > start:
            self._ranks[rank].intervals.append(Interval(name, start, end, *details))

    # Collectives

    def _collective(self, rank: int, now: float, record: Entry) -> float | None:
        group = self._groups[rank][record[1]]
        kind, _, peer, nbytes = record[:4]
        if group.count == 0:
            group.first, group.expected = rank, (kind, peer, nbytes)
        elif group.expected != (kind, peer, nbytes):
            raise ReplayError(
                f"{self._name(rank)} does not match {self._name(group.first)}: the ranks of a group call "
                f"the same collectives in the same order"
            )
        where = group.where[rank]
        if self._network.transport.sleeps:
            now = self._call(rank, now, record)
        group.entered[where] = now
        group.entries[where] = max(now, self._sending[rank])
        group.count += 1
        if group.count < len(group.ranks):
            self._block(rank, now)
            return None
        group.count = 0
        exits, origins = self._costs_of(group, kind, nbytes, peer).exits(group.entries)
        for at, member in enumerate(group.ranks):
            left = exits[at]
            self._use_ports(member, left)
            origin = origins[at]
            entry = self._programs[member][self._at[member]]
            self._book(member, group.entered[at], left, group.entered[origin], group.ranks[origin], entry)
            if member != rank:
                self._free(member, left)
        return exits[where]

    def _call(self, rank: int, now: float, record: Entry) -> float:
        """The rank's own software, before the first message. Returns when it has ended."""
        ended = now + record[4] / self._speed[rank]
        self._ranks[rank].communicate_s += ended - now
        if self._wanted and ended > now:
            self._show(rank, COLLECTIVES[record[0]], now, ended)
        return ended

    def _use_ports(self, rank: int, until: float) -> None:
        """Both ports are busy with a collective. A message that is on its way may arrive later."""
        self._sending[rank] = until
        if self._receiving[rank] < until:
            self._receiving[rank] = until

    def _costs_of(self, group: Group, kind: int, nbytes: int, peer: int) -> Costs:
        key = (kind, nbytes, peer)
        if key not in group.costs:
            group.costs[key] = self._network.costs(NAMES[kind], group.ranks, nbytes, peer)
        return group.costs[key]

    def _start(self, rank: int, now: float, record: Entry) -> float:
        group = self._groups[rank][record[1]]
        where = group.where[rank]
        for started in group.started:
            if started.handed[where] is None:
                break
        else:
            started = Started(len(group.ranks), record[3])
            group.started.append(started)
        if started.bytes != record[3]:
            raise ReplayError(f"{self._name(rank)}: other ranks hand over {started.bytes} bytes here")
        started.handed[where] = now
        self._outstanding[rank] += 1
        while group.started and None not in group.started[0].handed:
            self._run_beside(group, group.started.popleft())
        return now

    def _run_beside(self, group: Group, started: Started) -> None:
        """Run a collective that all ranks have handed over."""
        handed = [time for time in started.handed if time is not None]
        entries = [max(time, self._sending[rank]) for time, rank in zip(handed, group.ranks, strict=True)]
        costs = self._costs_of(group, int(Kind.START_ALL_REDUCE), started.bytes, -1)
        exits, origins = costs.exits(entries)
        for at, rank in enumerate(group.ranks):
            left = exits[at]
            self._use_ports(rank, left)
            origin = origins[at]
            self._beside[rank].append((entries[at], handed[origin], left, group.ranks[origin]))
            self._ranks[rank].overlapped_s += left - max(entries[at], min(handed[origin], left))
            self._outstanding[rank] -= 1
            entered = self._blocked[rank]
            if entered is not None and not self._outstanding[rank] and self._is_waiting_for_started(rank):
                self._free(rank, self._leave_started(rank, entered))

    def _is_waiting_for_started(self, rank: int) -> bool:
        return self._programs[rank][self._at[rank]][0] == Kind.WAIT_STARTED

    def _wait_started(self, rank: int, now: float, record: Entry) -> float | None:
        if self._outstanding[rank]:
            self._block(rank, now)
            return None
        return self._leave_started(rank, now)

    def _leave_started(self, rank: int, entered: float) -> float:
        """Book the part of what runs beside the computation that the rank waits for. Returns its end."""
        replay, now = self._ranks[rank], entered
        for _, last_handed, left, cause in self._beside[rank]:
            if left > now:
                ready = min(max(last_handed, now), left) if cause != rank else now
                self._book(rank, now, left, ready, cause, self._programs[rank][self._at[rank]])
                replay.overlapped_s -= left - ready
                now = left
        self._beside[rank].clear()
        replay.overlapped_s = max(replay.overlapped_s, 0.0)  # rounding
        return now

    # Point to point

    def _send(self, rank: int, now: float, record: Entry) -> float | None:
        to, nbytes = self._groups[rank][record[1]].ranks[record[2]], record[3]
        channel = self._channel_to(rank, record)
        message = channel.message(channel.sends)
        channel.sends += 1
        message.bytes, message.started = nbytes, now
        transport, overhead_s = self._network.transport, self._network.overhead_s
        if nbytes <= transport.eager_bytes or message.asked < inf:
            self._transfer(message, rank, to)
        left = now + overhead_s
        if transport.acknowledged:
            # Such a transport sends everything at once.
            left = message.arrived + self._links.between(to, rank).latency_s + overhead_s
        left += self._network.software_s(_SEND, nbytes)
        self._book(rank, now, left, now, rank, record)
        return left

    def _transfer(self, message: Message, rank: int, to: int) -> None:
        """Send a message for which the sender, and if need be the receiver, is ready; wake the receiver."""
        ready = message.started
        if message.bytes > self._network.transport.eager_bytes:
            ready = max(ready, message.requested)
        message.sent, message.arrived = self._deliver(rank, to, message.bytes, ready)
        if message.asked < inf:
            self._free(to, self._leave_receive(message, rank, to, message.asked))

    def _deliver(self, source: int, to: int, nbytes: int, ready: float) -> tuple[float, float]:
        """Pass a message through both ports. Returns when it is sent, and when it has arrived."""
        link = self._links.between(source, to)
        started = max(ready, self._sending[source]) + self._network.overhead_s
        transfer_s = nbytes / link.bytes_per_s
        sent = self._sending[source] = started + transfer_s
        arrived = max(started + link.latency_s, self._receiving[to]) + transfer_s
        self._receiving[to] = arrived
        return sent, arrived

    def _leave_receive(self, message: Message, source: int, rank: int, entered: float) -> float:
        network = self._network
        own_s = network.overhead_s + network.software_s(_RECEIVE, message.bytes)
        left = max(entered, message.arrived) + own_s
        self._book(rank, entered, left, message.started, source, self._programs[rank][self._at[rank]])
        return left

    def _receive(self, rank: int, now: float, record: Entry) -> float | None:
        _, group, peer, _ = record[:4]
        source = self._groups[rank][group].ranks[peer]
        channel = self._channel(rank, group, source, rank)
        message = channel.message(channel.receives)
        channel.receives += 1
        if message.arrived < inf:
            return self._leave_receive(message, source, rank, now)
        message.asked = now
        # The request follows what this rank is sending to the other one.
        message.requested = max(now, self._sending[rank]) + self._links.between(rank, source).latency_s
        self._block(rank, now)
        if message.started < inf:
            self._transfer(message, source, rank)
            blocked = self._blocked[source]
            if blocked is not None and self._waits_for(source, channel, message):
                self._free(source, self._leave_send(message, source, rank, blocked))
        return None

    def _waits_for(self, rank: int, channel: Channel, message: Message) -> bool:
        """Whether the blocked rank waits until this message is sent."""
        record = self._programs[rank][self._at[rank]]
        if record[0] != Kind.SEND_WAIT:
            return False
        return self._channel_to(rank, record) is channel and channel.messages[record[3]] is message

    def _send_wait(self, rank: int, now: float, record: Entry) -> float | None:
        to, index = self._groups[rank][record[1]].ranks[record[2]], record[3]
        channel = self._channel_to(rank, record)
        if index >= channel.sends:
            raise ReplayError(f"{self._name(rank)} waits for a send that it has not started")
        message = channel.messages[index]
        if message.sent == inf:
            self._block(rank, now)
            return None
        return self._leave_send(message, rank, to, now)

    def _leave_send(self, message: Message, rank: int, to: int, entered: float) -> float:
        left = max(entered, message.sent)
        rendezvous = message.bytes > self._network.transport.eager_bytes
        ready = message.asked if rendezvous else entered
        self._book(rank, entered, left, ready, to, self._programs[rank][self._at[rank]])
        return left

    def _channel_to(self, rank: int, record: Entry) -> Channel:
        """The channel of a send of the rank."""
        return self._channel(rank, record[1], rank, self._groups[rank][record[1]].ranks[record[2]])

    def _channel(self, rank: int, group: int, source: int, to: int) -> Channel:
        key = (id(self._groups[rank][group]), source, to)
        if key not in self._channels:
            self._channels[key] = Channel()
        return self._channels[key]

    # Requests to a server

    def _request(self, rank: int, now: float, record: Entry) -> None:
        server = self._groups[rank][record[1]].ranks[record[2]]
        _, arrived = self._deliver(rank, server, record[3], now)
        self._requests[rank] = ServedRequest(rank, server, record[3], now, arrived)
        self._block(rank, now)
        heappush(self._events, (arrived, self._size + rank))

    def _arrive(self, request: ServedRequest) -> None:
        """A request has arrived at its server."""
        self._inbox[request.server].append(request)
        if (entered := self._blocked[request.server]) is not None:
            server = request.server
            record = self._programs[server][self._at[server]]
            if record[0] == Kind.TAKE:
                self._blocked[server] = None
                left = self._serve(server, entered, record)
                if left is not None:
                    self._at[server] += 1
                    heappush(self._events, (left, server))

    def _respond(self, server: int, request: ServedRequest, nbytes: int, now: float, cause: int) -> None:
        rank = request.rank
        _, arrived = self._deliver(server, rank, nbytes, now)
        own_s = self._network.overhead_s + self._network.software_s(_REQUEST, request.bytes + nbytes)
        left = arrived + own_s
        in_server_s = now - request.arrived
        record = self._programs[rank][self._at[rank]]
        self._book(rank, request.started, left, request.started + in_server_s, cause, record)
        self._free(rank, left)

    # Groups, names and errors

    def _name(self, rank: int, at: int | None = None) -> str:
        """`rank 1, record 17 (all_reduce of 400 bytes)`."""
        at = self._at[rank] if at is None else at
        record = self._programs[rank][at]
        size = "" if record[0] == Kind.SEND_WAIT or not record[3] else f" of {record[3]} bytes"
        peer = f", peer {record[2]}" if record[2] >= 0 else ""
        return f"rank {rank}, record {at} ({NAMES[record[0]]}{size}{peer})"

    def _why_blocked(self, rank: int) -> str:
        record = self._programs[rank][self._at[rank]]
        kind, group = record[0], self._groups[rank][record[1]]
        if kind in COLLECTIVES:
            # The collective is open: a rank of the group is elsewhere.
            absent = [each for each in group.ranks if not self._is_in(each, group)]
            where = ", ".join(map(self._where, absent))
            return f"{self._name(rank)} never ends: {where}"
        if kind == Kind.WAIT_STARTED:
            mates = [
                each
                for own in self._groups[rank]
                for started in own.started
                for at, each in enumerate(own.ranks)
                if started.handed[at] is None
            ]
            where = ", ".join(map(self._where, dict.fromkeys(mates)))
            return f"{self._name(rank)} never ends: {where}"
        peer = group.ranks[record[2]]
        return f"{self._name(rank)} never ends: {self._where(peer)}"

    def _is_in(self, rank: int, group: Group) -> bool:
        if self._blocked[rank] is None:
            return False
        record = self._programs[rank][self._at[rank]]
        return record[0] in COLLECTIVES and self._groups[rank][record[1]] is group

    def _where(self, rank: int) -> str:
        if self._at[rank] >= len(self._programs[rank]):
            return f"the trace of rank {rank} has ended"
        return f"{self._name(rank)} is not part of it"
