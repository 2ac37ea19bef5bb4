"""What holds for the trace of every rank, whatever its strategy and transport."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from trainer.core.trace import Kind, Trace

# Work that a trace has and the result books as communication, see docs/traces.md.
STARTS = [kind for kind in Kind if kind.name.startswith("START_")]
POINT_TO_POINT = {Kind.SEND: (Kind.RECEIVE, Kind.START_RECEIVE), Kind.REQUEST: (Kind.TAKE,)}


def cpu_s(trace: Trace, *kinds: Kind) -> float:
    """CPU seconds of all records of these kinds."""
    return float(trace.records["cpu_s"][np.isin(trace.records["kind"], kinds)].sum())


def bytes_sent(trace: Trace) -> float:
    """The payload that the rank sent, by the formulas of docs/architecture.md."""
    header, sent = trace.header, 0.0
    for record in trace.records:
        n, peer = int(record["bytes"]), int(record["peer"])
        members = header.members(record["group"])
        size, rank = len(members), members.index(header.rank)
        match Kind(record["kind"]):
            case Kind.ALL_REDUCE | Kind.START_ALL_REDUCE:
                sent += 2 * n * (size - 1) / size
            case Kind.REDUCE_SCATTER | Kind.START_REDUCE_SCATTER | Kind.ALL_TO_ALL:
                sent += n * (size - 1) / size
            case Kind.ALL_GATHER | Kind.START_ALL_GATHER:
                sent += n * (size - 1)
            case Kind.GATHER:
                sent += 0 if peer == rank else n
            case Kind.BROADCAST | Kind.START_BROADCAST:
                sent += n * (size - 1) if peer == rank else 0
            case Kind.SHIFT | Kind.SEND | Kind.REQUEST | Kind.RESPOND:
                sent += n
    return sent


def exchanges(trace: Trace) -> list[tuple[str, int, int, int]]:
    """Kind, group, peer and bytes of each exchange and mark, in order; not how early one was complete."""
    records = trace.records[trace.records["kind"] != Kind.WORK]
    found = zip(*(records[field].tolist() for field in ("kind", "group", "peer", "bytes")), strict=True)
    return [
        (Kind(kind).name, group, 0 if kind == Kind.WAIT else peer, nbytes)
        for kind, group, peer, nbytes in found
    ]


def assert_lawful(trace: Trace, sent: float, work_cpu_s: float) -> None:
    """Check a trace against its rank's result."""
    assert trace.header.complete
    assert bytes_sent(trace) == pytest.approx(sent, rel=1e-9)
    assert cpu_s(trace, Kind.WORK) == pytest.approx(work_cpu_s, rel=1e-6, abs=1e-6)
    assert_waited_for(trace)
    assert trace.records["entered_s"].min() >= 0


def assert_waited_for(trace: Trace) -> None:
    """Check that each exchange that was started was waited for, and nothing else."""
    outstanding: set[tuple[int, int]] = set()
    numbers: dict[int, int] = defaultdict(int)
    for record in trace.records:
        kind, group = Kind(record["kind"]), int(record["group"])
        if kind in STARTS:
            outstanding.add((group, numbers[group]))
            numbers[group] += 1
        elif kind == Kind.WAIT:
            outstanding.remove((group, int(record["bytes"])))
        elif kind == Kind.WAIT_STARTED:
            outstanding.clear()
    assert not outstanding


def assert_matching(traces: list[Trace]) -> None:
    """Check that each receive, take and collective of a rank is that of the others, in their order."""
    for send, receive in POINT_TO_POINT.items():
        sent, received = _messages(traces, send), _messages(traces, *receive)
        if send == Kind.REQUEST:  # taken in the order of arrival
            sent, received = ({at: sorted(each) for at, each in of.items()} for of in (sent, received))
        assert {(group, to, own): each for (group, own, to), each in received.items()} == sent
    collectives: dict[tuple[int, ...], list[list[tuple[int, ...]]]] = defaultdict(list)
    for trace in traces:
        for number in range(len(trace.header.groups)):
            of_group = trace.records[trace.records["group"] == number]
            found = of_group[(of_group["kind"] >= Kind.ALL_REDUCE) & (of_group["kind"] <= Kind.SHIFT)]
            listed = [tuple(each) for each in found[["kind", "peer", "bytes"]].tolist()]
            collectives[tuple(trace.header.members(number))].append(listed)
    for group, lists in collectives.items():
        assert lists == [lists[0]] * len(group)


def _messages(traces: list[Trace], *kinds: Kind) -> dict[tuple[tuple[int, ...], int, int], list[int]]:
    """The bytes of the messages of these kinds, in order, by group, this rank and its peer."""
    found: dict[tuple[tuple[int, ...], int, int], list[int]] = defaultdict(list)
    for trace in traces:
        for record in trace.records[np.isin(trace.records["kind"], kinds)]:
            group = trace.header.members(record["group"])
            found[tuple(group), trace.header.rank, group[record["peer"]]].append(int(record["bytes"]))
    return found
