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
from collections import Counter, deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any

from trainer.core.trace import WORK_PHASES, Kind, bytes_sent
from trainer.time_model.algorithms import Network
from trainer.time_model.cluster import Cluster
from trainer.time_model.collectives import Costs
from trainer.time_model.errors import ReplayError
from trainer.time_model.outcome import Interval, RankReplay
from trainer.time_model.program import (
    BESIDE,
    COLLECTIVES,
    NAMES,
    NUMBERED,
    Channel,
    Entry,
    Group,
    Message,
    Part,
    Started,
)
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
        # What each rank has started and not waited for, by group and number; and how many it has started.
        self._started: list[dict[tuple[int, int], Part]] = [{} for _ in range(size)]
        self._numbers: list[Counter[int]] = [Counter() for _ in range(size)]
        self._worked: list[deque[tuple[float, float]]] = [deque() for _ in range(size)]  # meanwhile
        self._waiting: list[Sequence[Part]] = [()] * size  # for which a blocked rank waits
        self._epoch: list[int | None] = [None] * size
        self._requests: dict[int, ServedRequest] = {}  # the last one of each rank
        self._inbox: list[deque[ServedRequest]] = [deque() for _ in range(size)]
        self._handlers: dict[int, Callable[[int, float, Entry], float | None]] = {
            **dict.fromkeys(COLLECTIVES, self._collective),
            int(Kind.SEND): self._send,
            int(Kind.SEND_WAIT): self._send_wait,
            int(Kind.RECEIVE): self._receive,
            **dict.fromkeys(BESIDE, self._start),
            int(Kind.START_RECEIVE): self._start_receive,
            int(Kind.WAIT): self._wait,
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
                if self._started[rank]:
                    self._worked[rank].append((clock, clock + seconds))
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
            nbytes = 0 if record[0] in NUMBERED else record[3]
            self._show(rank, NAMES[record[0]], entered, left, wait, caused, nbytes)

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
            now = self._call(rank, now, record, group)
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

    def _call(self, rank: int, now: float, record: Entry, group: Group) -> float:
        """The rank's own software, before the first message. Returns when it has ended."""
        kind, _, peer, nbytes, cpu_s, *_ = record
        if not cpu_s:  # a simulation
            cpu_s = self._network.call_s(NAMES[kind], len(group.ranks), group.where[rank], nbytes, peer)
        ended = now + cpu_s / self._speed[rank]
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

    # Beside the computation

    def _start(self, rank: int, now: float, record: Entry) -> float:
        group = self._groups[rank][record[1]]
        kind, _, peer, nbytes = record[:4]
        where = group.where[rank]
        for started in group.started:
            if started.parts[where] is None:
                break
        else:
            started = Started(len(group.ranks), (kind, peer, nbytes))
            group.started.append(started)
        if started.call != (kind, peer, nbytes):
            raise ReplayError(
                f"{self._name(rank)}: other ranks start {NAMES[started.call[0]].removeprefix('start_')} of "
                f"{started.call[2]} bytes here"
            )
        started.handed[where] = now
        started.parts[where] = self._new_part(rank, record)
        while group.started and inf not in group.started[0].handed:
            self._run_beside(group, group.started.popleft())
        return now

    def _new_part(self, rank: int, record: Entry) -> Part:
        number = self._numbers[rank][record[1]]
        self._numbers[rank][record[1]] += 1
        part = self._started[rank][record[1], number] = Part()
        return part

    def _run_beside(self, group: Group, started: Started) -> None:
        """Run a collective that all ranks have started. It has their ports to itself."""
        handed, (kind, peer, nbytes) = started.handed, started.call
        entries = [max(time, self._sending[rank]) for time, rank in zip(handed, group.ranks, strict=True)]
        moved = bytes_sent(Kind(kind), len(group.ranks), nbytes) or nbytes
        exits, origins = self._costs_of(group, kind, nbytes, peer).exits(entries)
        for at, rank in enumerate(group.ranks):
            left, since, part = exits[at], handed[origins[at]], started.parts[at]
            assert part is not None  # noqa: S101  (all ranks have started it)
            self._use_ports(rank, left)
            part.core_s = self._network.core_s_per_byte * moved
            part.complete(min(max(entries[at], since), left), left, since, group.ranks[origins[at]])
            self._awake(rank)

    def _awake(self, rank: int) -> None:
        """Let a blocked rank go on if all that it waits for is complete."""
        entered, waiting = self._blocked[rank], self._waiting[rank]
        if entered is not None and waiting and all(part.ends < inf for part in waiting):
            self._waiting[rank] = ()
            self._free(rank, self._leave(rank, entered, waiting))

    def _wait(self, rank: int, now: float, record: Entry) -> float | None:
        part = self._started[rank].pop((record[1], record[3]), None)
        if part is None:
            raise ReplayError(f"{self._name(rank)} waits for what it has not started")
        return self._wait_for(rank, now, [part])

    def _wait_started(self, rank: int, now: float, record: Entry) -> float | None:
        parts = [*self._started[rank].values()]
        self._started[rank].clear()
        return self._wait_for(rank, now, parts)

    def _wait_for(self, rank: int, now: float, parts: Sequence[Part]) -> float | None:
        if all(part.ends < inf for part in parts):
            return self._leave(rank, now, parts)
        self._waiting[rank] = parts
        self._block(rank, now)
        return None

    def _leave(self, rank: int, entered: float, parts: Sequence[Part]) -> float:
        """Book the part of what is complete that the rank waits for. Returns when it goes on."""
        replay, now = self._ranks[rank], entered
        for part in parts:
            hidden_s = self._hidden_s(rank, part)
            replay.overlapped_s += hidden_s
            # The work beside it took longer: the exchange used the core, too.
            share = hidden_s / (part.ends - part.begins) if hidden_s else 0.0
            left = max(now + part.core_s * share / self._speed[rank], part.ends) + part.own_s
            if left > now:
                record = self._programs[rank][self._at[rank]]
                self._book(rank, now, left, part.since if part.cause != rank else now, part.cause, record)
            now = left
        self._forget_work(rank)
        return now

    def _hidden_s(self, rank: int, part: Part) -> float:
        """Seconds of an exchange in which the rank worked."""
        begins, ends = part.begins, part.ends
        return sum(max(min(end, ends) - max(start, begins), 0.0) for start, end in self._worked[rank])

    def _forget_work(self, rank: int) -> None:
        """Forget work that was done before all that goes on beside it began."""
        worked, started = self._worked[rank], self._started[rank]
        oldest = min((part.begins for part in started.values()), default=inf)
        if oldest == inf and started:  # one has not begun, at a time that is not known
            return
        while worked and worked[0][1] <= oldest:
            worked.popleft()

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
        if message.part is not None:
            self._arrived(message, rank, message.part)
            self._awake(to)

    def _deliver(self, source: int, to: int, nbytes: int, ready: float) -> tuple[float, float]:
        """Pass a message through both ports. Returns when it is sent, and when it has arrived."""
        link = self._links.between(source, to)
        started = max(ready, self._sending[source]) + self._network.overhead_s
        transfer_s = nbytes / link.bytes_per_s
        sent = self._sending[source] = started + transfer_s
        arrived = max(started + link.latency_s, self._receiving[to]) + transfer_s
        self._receiving[to] = arrived
        return sent, arrived

    def _arrived(self, message: Message, source: int, part: Part) -> None:
        """A message has arrived, and the receiver has asked for it."""
        own_s = self._network.overhead_s + self._network.software_s(_RECEIVE, message.bytes)
        begins = min(max(message.started, message.asked), message.arrived)
        part.own_s = own_s
        part.complete(begins, message.arrived, message.started, source)

    def _receive(self, rank: int, now: float, record: Entry) -> float | None:
        part = Part()
        self._ask(rank, now, record, part)
        return self._wait_for(rank, now, [part])

    def _start_receive(self, rank: int, now: float, record: Entry) -> float:
        self._ask(rank, now, record, self._new_part(rank, record))
        return now

    def _ask(self, rank: int, now: float, record: Entry, part: Part) -> None:
        """Ask for the next message of a rank."""
        _, group, peer, _ = record[:4]
        source = self._groups[rank][group].ranks[peer]
        channel = self._channel(rank, group, source, rank)
        message = channel.message(channel.receives)
        channel.receives += 1
        message.asked, message.part = now, part
        if message.arrived < inf:
            self._arrived(message, source, part)
            return
        # The request follows what this rank is sending to the other one.
        message.requested = max(now, self._sending[rank]) + self._links.between(rank, source).latency_s
        if message.started < inf:
            self._transfer(message, source, rank)
            blocked = self._blocked[source]
            if blocked is not None and self._waits_for(source, channel, message):
                self._free(source, self._leave_send(message, source, rank, blocked))

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
        size = "" if record[0] in NUMBERED or not record[3] else f" of {record[3]} bytes"
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
        if kind in (Kind.WAIT, Kind.WAIT_STARTED):
            mates = [
                each
                for own in self._groups[rank]
                for started in own.started
                for at, each in enumerate(own.ranks)
                if started.parts[at] is None
            ] or [each for each in range(self._size) if each != rank]
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
