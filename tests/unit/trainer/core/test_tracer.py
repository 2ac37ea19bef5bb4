"""Mistakes in traces of ranks: work lost or recorded twice, wrong bytes or peers, ranks that do not fit."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from tests.unit.conftest import FakeTime
from tests.unit.threads import together
from tests.unit.trace_laws import assert_lawful, assert_matching, cpu_s
from tests.unit.training import fields_for, train
from trainer.comm.base import Communicator
from trainer.comm.memory import MemoryCommunicator
from trainer.core.clock import Clock
from trainer.core.trace import WORK_PHASES, Kind, Trace, encode_trace, read_trace, trace_path
from trainer.core.tracer import Tracer
from trainer.spec.registries import STRATEGIES

Mode = Literal["steps", "full"]
MANY = 1000
# Strategies that train with threads as ranks; tests/integration/test_traces.py has the others.
THREADED = {
    name: STRATEGIES.load(name).max_nodes or {"hybrid": 4}.get(name, 3)
    for name in STRATEGIES.entries
    if "memory" in STRATEGIES.load(name).transports and STRATEGIES.load(name).untraced is None
}
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

    def exchange(self, kind: Kind = Kind.BARRIER) -> None:
        with self.clock.phase("communicate") as span:
            self.after(1)
        self.tracer.exchange(kind, 0, span.entered, span.left, cpu_s=span.cpu_s)

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


def test_work_between_exchanges_is_one_record_or_one_of_each_interval() -> None:
    merged = [(Kind.WORK, COMPUTE, 5.0, 0.0, 10.0)]
    single = [
        (Kind.WORK, DATA, 1.0, 0.0, 2.0),
        (Kind.WORK, COMPUTE, 3.0, 2.0, 8.0),
        (Kind.WORK, OTHER, 1.0, 8.0, 10.0),
    ]
    modes: list[tuple[Mode, Any]] = [("steps", merged), ("full", single)]
    for mode, before in modes:
        traced = Traced(mode)
        traced.work("data", 2)
        traced.work("compute", 6)
        traced.after(2)
        traced.exchange()
        traced.after(4)
        after = [(Kind.BARRIER, -1, 0.5, 10.0, 11.0), (Kind.WORK, OTHER, 2.0, 11.0, 15.0)]
        assert traced.records == [*before, *after]


@pytest.mark.parametrize(
    ("seconds", "phase"), [((3, 2, 2), DATA), ((2, 2, 2), COMPUTE), ((1, 2, 3), OTHER), ((2, 1, 2), OTHER)]
)
def test_merged_work_has_the_longest_phase(seconds: tuple[int, ...], phase: int) -> None:
    traced = Traced()
    for name, each in zip(WORK_PHASES, seconds, strict=True):
        traced.work(name, each)
    assert [record[1] for record in traced.records] == [phase]


@pytest.mark.parametrize("mode", ["steps", "full"])
def test_marks_follow_the_work_before_them_and_other_phases_are_no_work(mode: Mode) -> None:
    traced = Traced(mode)
    traced.tracer.mark(Kind.EPOCH, traced.clock.booked_until, 1)
    traced.work("compute", 4)
    traced.tracer.mark(Kind.STEP, traced.clock.booked_until)
    for phase in ("evaluate", "checkpoint", "wait", "communicate"):
        traced.work(phase, 4)
    assert traced.records == [
        (Kind.EPOCH, 1, 0.0, 0.0, 0.0),
        (Kind.WORK, COMPUTE, 2.0, 0.0, 4.0),
        (Kind.STEP, -1, 0.0, 4.0, 4.0),
    ]


@pytest.mark.parametrize("mode", ["steps", "full"])
def test_work_of_the_thread_during_a_wait_follows_it(mode: Mode) -> None:
    """As in ddp: the clock books the end of the backward pass as compute, and then as communication."""
    traced = Traced(mode)
    with traced.clock.phase("compute"):
        traced.after(4)
        handed_over, _ = traced.clock.lap()
        traced.tracer.exchange(Kind.START_ALL_REDUCE, 0, handed_over, handed_over, 64)
        traced.tracer.hold()
        traced.after(2)
    traced.clock.transfer("compute", "communicate", 2.0, 1.0)
    traced.tracer.exchange(Kind.WAIT_STARTED, 0, handed_over, traced.wall())
    traced.tracer.release(compute_s=1.0)
    traced.work("compute", 2)
    trace = traced.stopped()
    kinds = trace.records["kind"].tolist()
    assert kinds[:3] == [Kind.WORK, Kind.START_ALL_REDUCE, Kind.WAIT_STARTED]
    assert {*kinds[3:]} == {Kind.WORK}
    assert cpu_s(trace, Kind.WORK) == traced.clock.work_cpu_s + 1.0
    assert trace.records["cpu_s"][0] == 2.0


def test_a_thread_of_a_library_records_no_work() -> None:
    traced = Traced()
    traced.work("compute", 4)
    arguments = (Kind.START_ALL_REDUCE, 0, 102.0, 102.0, 64)
    thread = threading.Thread(target=traced.tracer.exchange, args=arguments)
    thread.start()
    thread.join()
    assert [record[0] for record in traced.records] == [Kind.START_ALL_REDUCE, Kind.WORK]


def test_a_trace_that_is_full_says_so(tmp_path: Path) -> None:
    for exchanges, complete in ((3, True), (4, False)):
        traced = Traced(max_records=3)
        for _ in range(exchanges):
            traced.exchange()
        trace = traced.stopped()
        assert (len(trace.records), trace.header.complete) == (3, complete)
        trace_path(tmp_path, 1).write_bytes(encode_trace(trace))
        assert read_trace(trace_path(tmp_path, 1)).header == trace.header


def test_communicators_of_other_ranks_or_in_another_order_are_others() -> None:
    tracer = Traced().tracer
    groups = [[0, 1], [1, 0], [1], [1, 0]]
    assert [tracer.group(ranks) for ranks in groups] == [0, 1, 2, 1]
    assert tracer.finished(101.0, "run", 1, "gloo").header.groups == [None, [1, 0], [1]]


# Exchanges


def recorded(body: Any, size: int = 3) -> list[list[tuple[Any, ...]]]:
    """(kind, ranks of the group, peer, bytes) of each exchange of each rank."""

    def rank(comm: MemoryCommunicator) -> list[tuple[Any, ...]]:
        comm.clock.tracer = trace_of(comm.clock, size)
        body(comm)
        comm.clock.stop()
        tracer, comm.clock.tracer = comm.clock.tracer, None
        trace = tracer.finished(comm.clock.booked_until, "run", comm.rank, "memory")
        exchanges = trace.records[trace.records["kind"] >= Kind.ALL_REDUCE]
        found = exchanges[["kind", "group", "peer", "bytes"]].tolist()
        return [(Kind(kind), [*trace.header.members(group)], *rest) for kind, group, *rest in found]

    outcomes = together(size, rank)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes


ALL = [0, 1, 2]


def test_every_collective_leaves_one_record() -> None:
    def body(comm: Communicator) -> None:
        comm.all_reduce(torch.ones(5), "sum")
        comm.all_gather(torch.ones(5))
        comm.all_to_all(torch.ones(3, 5))
        comm.gather(torch.ones(5), root=1)
        comm.broadcast(torch.ones(5), root=2)
        comm.barrier()
        comm.shift(torch.ones(5), -2)
        with comm.clock.phase("evaluate"):
            comm.all_reduce(torch.ones(5), "sum")  # which is not recorded

    expected = [
        (Kind.ALL_REDUCE, ALL, -1, 20),
        (Kind.ALL_GATHER, ALL, -1, 20),
        (Kind.ALL_TO_ALL, ALL, -1, 60),
        (Kind.GATHER, ALL, 1, 20),
        (Kind.BROADCAST, ALL, 2, 20),
        (Kind.BARRIER, ALL, -1, 0),
        (Kind.SHIFT, ALL, -2, 20),
    ]
    assert recorded(body) == [expected] * 3
    assert recorded(lambda comm: comm.all_reduce(torch.ones(5), "sum"), size=1) == [[]]


def test_messages_leave_a_record_at_both_ends() -> None:
    def body(comm: Communicator) -> None:
        for floats in (1, 2):
            if comm.rank == 0:
                comm.send(torch.ones(floats), to=2)
            elif comm.rank == 2:
                comm.recv(torch.ones(floats), source=0)

    sends = [(Kind.SEND, ALL, 2, 4), (Kind.SEND_WAIT, ALL, 2, 0), (Kind.SEND, ALL, 2, 8)]
    receives = [(Kind.RECEIVE, ALL, 0, 4), (Kind.RECEIVE, ALL, 0, 8)]
    assert recorded(body) == [[*sends, (Kind.SEND_WAIT, ALL, 2, 1)], [], receives]


def test_subgroups_are_named_by_the_ranks_of_the_run() -> None:
    def body(comm: Communicator) -> None:
        with comm.clock.phase("evaluate"):
            parity = comm.split(comm.rank % 2)
            upper = parity.split(parity.rank // 2)
        upper.barrier()
        parity.barrier()

    even, odd, top = [0, 2, 4], [1, 3], [0, 2]
    exchanges = recorded(body, size=5)
    assert exchanges[0] == [(Kind.BARRIER, top, -1, 0), (Kind.BARRIER, even, -1, 0)]
    assert exchanges[3] == [(Kind.BARRIER, odd, -1, 0)] * 2
    assert exchanges[4] == [(Kind.BARRIER, even, -1, 0)]  # it is alone in `upper`


# Trainings


@pytest.mark.parametrize("name", THREADED)
def test_traces_of_every_strategy(name: str) -> None:
    mode = ("steps", "full")[[*THREADED].index(name) % 2]
    fields = {"model": {"name": "mlp", "hidden": [8, 8, 8]}, "trace": mode, **fields_for(name)}
    training = train(name, THREADED[name], **fields)
    assert len(training.traces) == THREADED[name]
    for trace, result in zip(training.traces, training.results, strict=True):
        assert_lawful(trace, result.bytes_sent, result.work_cpu_s or 0.0)
        kinds = trace.records["kind"]
        assert (kinds == Kind.STEP).sum() == result.steps
        assert trace.records["peer"][kinds == Kind.EPOCH].tolist() == [1, 2]
        assert trace.header.mode == mode
    assert_matching(training.traces)


@pytest.mark.parametrize("compression", ["fp16", "top_k", "sign", "power_sgd"])
def test_compressed_bytes_are_recorded(compression: str) -> None:
    training = train({"name": "all_reduce", "compression": compression}, 3, epochs=1)
    for trace, result in zip(training.traces, training.results, strict=True):
        assert_lawful(trace, result.bytes_sent, result.work_cpu_s or 0.0)


def test_a_trace_is_complete_unless_the_run_resumes(tmp_path: Path) -> None:
    for complete in (True, False):
        resumed = train("all_reduce", 2, tmp_path, checkpoint_epochs=1)
        assert [trace.header.complete for trace in resumed.traces] == [complete] * 2
    for trace, result in zip(resumed.traces, resumed.results, strict=True):
        assert cpu_s(trace, Kind.WORK) < (result.work_cpu_s or 0.0)  # which includes the first epoch
    assert train("all_reduce", 2, trace="none").traces == []
