"""Mistakes in traces: work lost or recorded twice, wrong bytes or peers, damage that is not noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from tests.unit.conftest import FakeTime
from tests.unit.threads import together
from tests.unit.trace_laws import assert_lawful, assert_matching, cpu_s
from tests.unit.training import fields_for, train
from trainer.comm.base import Communicator
from trainer.core.clock import Clock
from trainer.core.trace import (
    RECORD,
    WORK_PHASES,
    Kind,
    Trace,
    TraceError,
    TraceHeader,
    TraceLimits,
    encode_trace,
    read_trace,
    trace_path,
    wrong_record,
)
from trainer.core.tracer import Tracer
from trainer.spec.registries import STRATEGIES

Mode = Literal["steps", "full"]
MANY = 1000
# Strategies that train with threads as ranks; tests/integration/test_traces.py has the others.
THREADED = [
    name
    for name in STRATEGIES.entries
    if "memory" in STRATEGIES.load(name).transports and STRATEGIES.load(name).untraced is None
]
DATA, COMPUTE, OTHER = map(WORK_PHASES.index, ("data", "compute", "other"))


class Traced:
    """A clock on fake time with a tracer. `after(2)` advances wall time by 2 s and CPU time by 1 s."""

    def __init__(self, mode: Mode = "steps", max_records: int = MANY) -> None:
        self.wall, self.cpu = FakeTime(100.0), FakeTime(7.0)
        self.clock = Clock(self.wall, self.cpu)
        self.clock.start()
        self.tracer = self.clock.tracer = trace_of(self.clock, 2, mode, max_records)

    def after(self, seconds: float) -> None:
        self.wall.pass_(seconds)
        self.cpu.pass_(seconds / 2)

    def work(self, phase: Any, seconds: float) -> None:
        with self.clock.phase(phase):
            self.after(seconds)

    def exchange(self) -> None:
        with self.clock.phase("communicate") as span:
            self.after(1)
        self.tracer.exchange(Kind.BARRIER, 0, span.entered, span.left, cpu_s=span.cpu_s)

    def stopped(self) -> Trace:
        self.clock.stop()
        return self.tracer.finished(self.clock.booked_until, "run", 1, "gloo")

    @property
    def records(self) -> list[tuple[Any, ...]]:
        """(kind, peer, CPU seconds, entered, left) of each record."""
        columns = ["kind", "peer", "cpu_s", "entered_s", "left_s"]
        return self.stopped().records[columns].tolist()


def trace_of(clock: Clock, size: int, mode: Mode = "steps", max_records: int = MANY) -> Tracer:
    return Tracer(clock.cpu_seconds, clock.booked_until, mode, range(size), max_records)


@pytest.mark.parametrize("mode", ["steps", "full"])
def test_work_is_recorded_before_what_follows_it(mode: Mode) -> None:
    merged = [(Kind.WORK, COMPUTE, 5.0, 0.0, 10.0)]
    single = [(Kind.WORK, DATA, 1.0, 0.0, 2.0), (Kind.WORK, COMPUTE, 3.0, 2.0, 8.0)]
    single.append((Kind.WORK, OTHER, 1.0, 8.0, 10.0))
    traced = Traced(mode)
    traced.tracer.mark(Kind.EPOCH, traced.clock.booked_until, 1)
    traced.work("data", 2)
    traced.work("compute", 6)
    traced.after(2)
    traced.exchange()
    traced.work("compute", 4)
    traced.tracer.mark(Kind.STEP, traced.clock.booked_until)
    for phase in ("evaluate", "checkpoint", "wait", "communicate"):  # which are no work
        traced.work(phase, 4)
    traced.after(4)
    assert traced.records == [
        (Kind.EPOCH, 1, 0.0, 0.0, 0.0),
        *(merged if mode == "steps" else single),
        (Kind.BARRIER, -1, 0.5, 10.0, 11.0),
        (Kind.WORK, COMPUTE, 2.0, 11.0, 15.0),
        (Kind.STEP, -1, 0.0, 15.0, 15.0),
        (Kind.WORK, OTHER, 2.0, 15.0, 35.0),
    ]


def test_communicators_of_the_same_ranks_are_told_apart_by_their_splits() -> None:
    """Whichever of them a rank uses first."""

    def body(comm: Communicator) -> Trace:
        tracer = comm.clock.tracer = trace_of(comm.clock, 2)
        one, other = comm.split(0), comm.split(0)
        starts = [lambda: one.iall_gather(torch.ones(1)), lambda: other.iall_gather(torch.ones(2))]
        for request in [start() for start in (starts if comm.rank else starts[::-1])]:
            request.wait()
        comm.clock.stop()
        return tracer.finished(comm.clock.booked_until, "run", comm.rank, "memory")

    for trace in together(2, body):
        started = trace.records[trace.records["kind"] == Kind.START_ALL_GATHER]
        assert sorted(started[["group", "bytes"]].tolist()) == [(1, 4), (2, 8)]
        waits = trace.records[trace.records["kind"] == Kind.WAIT]
        assert sorted(waits["group"].tolist()) == [1, 2]
        assert waits["bytes"].tolist() == [0, 0]


def test_a_trace_that_is_full_says_so(tmp_path: Path) -> None:
    for exchanges, complete in ((3, True), (4, False)):
        traced = Traced(max_records=3)
        for _ in range(exchanges):
            traced.exchange()
        trace = traced.stopped()
        assert (len(trace.records), trace.header.complete) == (3, complete)
        trace_path(tmp_path, 1).write_bytes(encode_trace(trace))
        assert read_trace(trace_path(tmp_path, 1)).header == trace.header


def test_exchanges_of_training_leave_records_with_their_peer_and_bytes() -> None:
    """Those that the laws below do not check."""

    def body(comm: Communicator) -> list[tuple[int, ...]]:
        tracer = comm.clock.tracer = trace_of(comm.clock, 3)
        comm.gather(torch.ones(5), root=1)
        comm.shift(torch.ones(5), -2)
        with comm.clock.phase("evaluate"):
            comm.barrier()
        for to in (1, 2, 2) if comm.rank == 0 else ():
            comm.send(torch.ones(1), to)
        for _ in range(comm.rank):
            comm.recv(torch.ones(1), source=0)
        comm.clock.stop()
        records = tracer.finished(comm.clock.booked_until, "run", comm.rank, "memory").records
        found = records[records["kind"] >= Kind.ALL_REDUCE][["kind", "peer", "bytes"]]
        return [tuple(each) for each in found.tolist()]

    common, received = [(Kind.GATHER, 1, 20), (Kind.SHIFT, -2, 20)], (Kind.RECEIVE, 0, 4)
    numbers = [(1, 0), (2, 0), (2, 1)]  # of each message among those to its receiver
    sends = [each for to, number in numbers for each in ((Kind.SEND, to, 4), (Kind.SEND_WAIT, to, number))]
    assert together(3, body) == [[*common, *sends], [*common, received], [*common, received, received]]


@pytest.mark.parametrize("name", THREADED)
def test_traces_of_every_strategy(name: str) -> None:
    ranks = STRATEGIES.load(name).max_nodes or {"hybrid": 4, "hierarchical_sgd": 4}.get(name, 3)
    mode = ("steps", "full")[THREADED.index(name) % 2]
    fields = {"model": {"name": "mlp", "hidden": [8, 8, 8]}, "trace": mode, **fields_for(name)}
    training = train(name, ranks, **fields)
    assert [trace.header.mode for trace in training.traces] == [mode] * ranks
    for trace, result in zip(training.traces, training.results, strict=True):
        assert_lawful(trace, result.bytes_sent, result.work_cpu_s or 0.0)
        kinds = trace.records["kind"]
        assert (kinds == Kind.STEP).sum() == result.steps
        assert trace.records["peer"][kinds == Kind.EPOCH].tolist() == [1, 2]
    assert_matching(training.traces)


def test_a_trace_is_complete_unless_the_run_resumes(tmp_path: Path) -> None:
    for complete in (True, False):
        resumed = train("all_reduce", 2, tmp_path, checkpoint_epochs=1)
        assert [trace.header.complete for trace in resumed.traces] == [complete] * 2
    for trace, result in zip(resumed.traces, resumed.results, strict=True):
        assert cpu_s(trace, Kind.WORK) < (result.work_cpu_s or 0.0)  # which includes the first epoch
    assert train("all_reduce", 2, trace="none").traces == []


# Files

RECORDS = np.array(
    [(Kind.WORK, 0, 1, 0, 0.25, 0.0, 0.5), (Kind.ALL_REDUCE, 0, -1, 4096, 0.0, 0.5, 0.75)], RECORD
)
LIMITS = TraceLimits(seconds=60, bytes=4096, epochs=3)


def header(**changes: object) -> TraceHeader:
    values = {"run": "run", "rank": 1, "size": 2, "transport": "gloo", "mode": "steps", "started_s": 12.5}
    return TraceHeader.model_validate({**values, "groups": [None, [1]], "count": len(RECORDS), **changes})


CONTENT = encode_trace(Trace(header(), RECORDS))


def read(directory: Path, content: bytes) -> Trace:
    path = trace_path(directory, 1)
    path.write_bytes(content)
    return read_trace(path, LIMITS)


def test_a_trace_is_read_back_and_every_damage_is_noticed(tmp_path: Path) -> None:
    trace = read(tmp_path, CONTENT)
    assert trace.header == header()
    assert [[*trace.header.members(group)] for group in (0, 1)] == [[0, 1], [1]]
    assert (trace.records == RECORDS).all()
    changed = (CONTENT[:at] + bytes([CONTENT[at] ^ 0x40]) + CONTENT[at + 1 :] for at in range(len(CONTENT)))
    for content in (*changed, *(CONTENT[:left] for left in (0, 10, 200, -5)), CONTENT + b"\0"):
        with pytest.raises(TraceError, match="trace-1"):
            read(tmp_path, content)


def test_what_is_no_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="version 2"):
        read(tmp_path, CONTENT.replace(b'"version":2', b'"version":3'))
    trace_path(tmp_path, 1).unlink()
    with pytest.raises(TraceError, match="No such file"):
        read_trace(trace_path(tmp_path, 1))


# A field, the kind of its record, values that a rank of the run can write, and values that it cannot;
# tests/attacks/test_traces.py has those of other orders of magnitude.
RANGES: list[tuple[str, Kind, list[float], list[float]]] = [
    ("kind", Kind.BARRIER, [1, 42], [0, 99]),
    ("group", Kind.BARRIER, [0, 1], [2]),
    ("peer", Kind.EPOCH, [1, 3], [-1, 0, 4]),
    ("peer", Kind.SHIFT, [-1, 0, 4], []),
    ("bytes", Kind.ALL_REDUCE, [0, 4096], [4097]),
    ("bytes", Kind.SEND_WAIT, [4097], []),  # an index
    ("cpu_s", Kind.WORK, [0.0, 60.0], [-0.1, 60.1]),
    ("entered_s", Kind.BARRIER, [-60.0, 0.75], [-60.1]),
    ("left_s", Kind.BARRIER, [0.5, 60.0], [0.4, 60.1]),
]


def test_records_that_no_rank_writes_are_refused(tmp_path: Path) -> None:
    for field, kind, right, wrong in RANGES:
        found = []
        for value in (*right, *wrong):
            records = RECORDS.copy()
            records["kind"][1], records["peer"][1] = kind, 1
            records[field][1] = value
            found.append(wrong_record(header(), records, LIMITS, first=5).partition(" is ")[0])
        assert found == [""] * len(right) + [f"record 6: {field}"] * len(wrong)
    trace_path(tmp_path, 1).write_bytes(CONTENT)
    with pytest.raises(TraceError, match=r"record 1: bytes is .*; allowed: at most 10"):
        read_trace(trace_path(tmp_path, 1), TraceLimits(bytes=10))
