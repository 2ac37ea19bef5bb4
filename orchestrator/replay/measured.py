"""What exchanges took in a run, by its traces: from the last rank that entered to the last that left.

Waiting for a late rank is thus left out. The clocks of the ranks must be one, as on one machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from trainer.core.trace import Kind, Trace
from trainer.time_model.cluster import ANSWER
from trainer.time_model.collectives import call_name, only_receive
from trainer.time_model.program import BESIDE, COLLECTIVES, NAMES

SEND, RECEIVE, REQUEST = (NAMES[int(kind)] for kind in (Kind.SEND, Kind.RECEIVE, Kind.REQUEST))
ENTRIES_S = 100e-6  # in which all ranks have to wait for what they have started


@dataclass(frozen=True)
class Exchange:
    """A kind of exchange: what its messages cost depends on these.

    Attributes:
        name: the name of its kind, in lower case.
        ranks: the ranks of the group, in order; of a message, its sender and its receiver.
        bytes: the bytes that a rank passes; of a request, with those of the answer.
        root: the root of a collective, or the distance of a shift; -1 where there is none.
    """

    name: str
    ranks: tuple[int, ...]
    bytes: int
    root: int = -1

    @property
    def receivers(self) -> list[int]:
        """Positions in `ranks` of those who leave a collective with something from others."""
        size = len(self.ranks)
        return sorted(only_receive(self.name.removesuffix(ANSWER), size, self.root)) or [*range(size)]


def durations(traces: Sequence[Trace], without_cpu: bool) -> dict[Exchange, list[float]]:
    """Seconds of each exchange, by kind.

    Args:
        without_cpu: leave out the CPU time of the last caller of a collective, which is that of calling,
            and is an exchange of its own.
    """
    found: defaultdict[Exchange, list[float]] = defaultdict(list)
    for exchange, seconds in _calls(traces) if without_cpu else ():
        found[exchange].append(seconds)
    for exchange, seconds, cpu_s in _collectives(traces):
        found[exchange].append(seconds - cpu_s if without_cpu else seconds)
    for measure in (_answers, _started, _beside, _messages, _requests):
        for exchange, seconds in measure(traces):
            found[exchange].append(seconds)
    return dict(found)


def _collectives(traces: Sequence[Trace]) -> Iterator[tuple[Exchange, float, float]]:
    """Blocking collectives, with the CPU seconds of the last to enter.

    The n-th of a group on one rank is the n-th on all. A gather or a broadcast alone counts only where the
    last rank to enter is one that others wait for. Elsewhere the messages arrived before it entered.
    """
    for ranks, members in _by_group(traces, [*COLLECTIVES]).items():
        calls = [*zip(*members, strict=False)]
        for mates, following in zip(calls, [*calls[1:], ()], strict=True):
            first = mates[0]
            exchange = Exchange(COLLECTIVES[first.kind], ranks, first.bytes, first.peer)
            late = max(range(len(mates)), key=lambda at: mates[at].entered)
            # Collectives that were started together are waited for together, with the first of them.
            joint = bool(following) and all(each.left == each.entered for each in following)
            leaving = [*range(len(mates))] if joint else exchange.receivers
            if len(leaving) == len(mates) or late not in leaving:
                left = max(mates[at].left for at in leaving)
                yield exchange, left - mates[late].entered, mates[late].cpu_s


def _calls(traces: Sequence[Trace]) -> Iterator[tuple[Exchange, float]]:
    """CPU seconds of calling a collective, on each rank."""
    for ranks, members in _by_group(traces, [*COLLECTIVES]).items():
        for at, records in enumerate(members):
            for record in filter(lambda record: record.cpu_s, records):
                name = call_name(COLLECTIVES[record.kind], len(ranks), at, record.peer)
                yield Exchange(name, ranks, record.bytes, record.peer), record.cpu_s


def _answers(traces: Sequence[Trace]) -> Iterator[tuple[Exchange, float]]:
    """Ranks that only send in a collective: seconds until they leave, without the CPU time of the call."""
    for ranks, members in _by_group(traces, (int(Kind.GATHER), int(Kind.BROADCAST))).items():
        for mates in zip(*members, strict=False):
            name, nbytes, root = COLLECTIVES[mates[0].kind], mates[0].bytes, mates[0].peer
            exchange = Exchange(name + ANSWER, ranks, nbytes, root)
            for at in {*range(len(mates))} - only_receive(name, len(mates), root):
                yield exchange, mates[at].left - mates[at].entered - mates[at].cpu_s


def _started(traces: Sequence[Trace]) -> Iterator[tuple[Exchange, float]]:
    """All-reduces beside the computation, where one was started before all ranks waited for it."""
    kinds = (int(Kind.START_ALL_REDUCE), int(Kind.WAIT_STARTED))
    for ranks, members in _by_group(traces, kinds).items():
        calls = [*zip(*members, strict=False)]  # the n-th of each member
        for before, began, ended in zip([None, *calls], calls, calls[1:], strict=False):
            alone = before is None or before[0].kind == kinds[1]
            if alone and (began[0].kind, ended[0].kind) == kinds:
                all_began = max(each.entered for each in began)
                # A rank that computed until the all-reduce had ended says nothing about its end.
                if max(each.entered for each in ended) - all_began < ENTRIES_S:
                    seconds = max(each.left for each in ended) - all_began
                    yield Exchange(NAMES[kinds[0]], ranks, began[0].bytes), seconds


def _beside(traces: Sequence[Trace]) -> Iterator[tuple[Exchange, float]]:
    """Collectives beside the computation whose end is known, and which did not queue behind another one."""
    for ranks, members in _by_group(traces, [*BESIDE, int(Kind.START_RECEIVE), int(Kind.WAIT)]).items():
        last_end = 0.0
        for mates in zip(*map(_completed, members), strict=False):
            began = max(start.entered for start, _ in mates)
            ends = [end for _, end in mates if end is not None]
            if len(ends) == len(mates) and last_end <= began:
                first = mates[0][0]
                yield Exchange(NAMES[first.kind], ranks, first.bytes, first.peer), max(ends) - began
            last_end = max(last_end, *ends) if ends else inf


def _completed(records: Sequence[_Record]) -> list[tuple[_Record, float | None]]:
    """The collectives that a rank started in a group, and when each was complete; None: not known."""
    starts: list[_Record] = []
    ends: dict[int, float] = {}
    for record in records:
        if record.kind != Kind.WAIT:
            starts.append(record)
        elif record.peer >= 0:  # microseconds for which it was complete before; 0: within the wait
            ends[record.bytes] = record.entered - record.peer * 1e-6 if record.peer else record.left
    return [(start, ends.get(number)) for number, start in enumerate(starts) if start.kind in BESIDE]


def _messages(traces: Sequence[Trace]) -> Iterator[tuple[Exchange, float]]:
    """Sends, and messages from the later of send and receive to the end of the receive."""
    sends: defaultdict[tuple[int, ...], list[_Record]] = defaultdict(list)
    receives: defaultdict[tuple[int, ...], list[_Record]] = defaultdict(list)
    for rank, trace in enumerate(traces):
        for record in _records(trace, (int(Kind.SEND), int(Kind.RECEIVE))):
            group = trace.header.members(record.group)
            peer = group[record.peer]
            if record.kind == Kind.SEND:
                sends[*group, -1, rank, peer].append(record)
                yield Exchange(SEND, (rank, peer), record.bytes), record.left - record.entered
            else:
                receives[*group, -1, peer, rank].append(record)
    for key, received in receives.items():
        for sent, record in zip(sends[key], received, strict=False):
            ready = max(sent.entered, record.entered)
            yield Exchange(RECEIVE, key[-2:], record.bytes), record.left - ready


def _requests(traces: Sequence[Trace]) -> Iterator[tuple[Exchange, float]]:
    """Requests and their answers, without the time between in which the server worked or was busy."""
    served: dict[int, dict[tuple[int, int], list[_Record]]] = {}
    for rank, trace in enumerate(traces):
        asked: defaultdict[int, list[_Record]] = defaultdict(list)
        for record in _records(trace, (int(Kind.REQUEST),)):
            asked[trace.header.members(record.group)[record.peer]].append(record)
        for server, requests in asked.items():
            if server not in served:
                served[server] = _by_client(traces[server])
            taken, answered = (served[server].get((kind, rank), []) for kind in (Kind.TAKE, Kind.RESPOND))
            for request, take, answer in zip(requests, taken, answered, strict=False):
                there = take.left - max(request.entered, take.entered)
                back = request.left - answer.entered
                nbytes = request.bytes + answer.bytes
                yield Exchange(REQUEST, (rank, server), nbytes), there + back


def _by_client(trace: Trace) -> dict[tuple[int, int], list[_Record]]:
    """A server's records about requests, by their kind and client."""
    found: dict[tuple[int, int], list[_Record]] = {}
    for record in _records(trace, (int(Kind.TAKE), int(Kind.RESPOND))):
        client = trace.header.members(record.group)[record.peer]
        found.setdefault((record.kind, client), []).append(record)
    return found


class _Record(NamedTuple):
    """A record of a trace, in seconds of a clock that all ranks share."""

    kind: int
    group: int
    peer: int
    bytes: int
    cpu_s: float
    entered: float
    left: float


def _records(trace: Trace, kinds: Sequence[int]) -> list[_Record]:
    """The records of these kinds, in order."""
    start = trace.header.started_s
    chosen = trace.records[np.isin(trace.records["kind"], kinds)].tolist()
    return [
        _Record(kind, group, peer, nbytes, cpu_s, start + entered, start + left)
        for kind, group, peer, nbytes, cpu_s, entered, left in chosen
    ]


def _by_group(traces: Sequence[Trace], kinds: Sequence[int]) -> dict[tuple[int, ...], list[list[_Record]]]:
    """The records of each group with several ranks, by member. Groups of the same ranks count as one."""
    found: dict[tuple[int, ...], dict[int, list[_Record]]] = {}
    for rank, trace in enumerate(traces):
        for record in _records(trace, kinds):
            ranks = tuple(trace.header.members(record.group))
            found.setdefault(ranks, {}).setdefault(rank, []).append(record)
    return {
        ranks: [*members.values()]
        for ranks, members in found.items()
        if len(ranks) > 1 and members.keys() == {*ranks}
    }
