"""Mistakes in faults: when, where, how often and how long they act, and what a run may ask for."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from orchestrator.execution.faults import (
    contradicts,
    fault_flags,
    fault_of_loss,
    injected_faults,
    repeated_steps,
)
from orchestrator.sweeps.validation import dotted, error_lines
from tests.unit.conftest import FakeTime
from trainer.core.clock import Clock
from trainer.core.context import NodeContext
from trainer.core.events import Event, EventReader, EventWriter
from trainer.spec.run_spec import RunSpec
from trainer.torchrun_restarts.attempts import Attempts
from trainer.training.faults import FaultError, FaultInjector
from trainer.training.packet_loss import PacketLoss, connections, service_ports
from trainer.training.pause import pause

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
KILL: dict[str, Any] = {"kill": {"node": 1}, "at": {"epoch": 2}}
CUT: dict[str, Any] = {"cut_off": {"node": 0, "seconds": 1}, "at": {"epoch": 1}}
RETURNING: dict[str, Any] = {"kill": {"node": 1, "return_after": 2}, "at": {"epoch": 2}}


def spec(*faults: Any, **fields: Any) -> RunSpec:
    given = {"strategy": "all_reduce", "transport": "gloo", "nodes": 3, "faults": [*faults], **fields}
    return RunSpec.model_validate(given)


def fault_of(action: str, at: Any = None, **fields: Any) -> dict[str, Any]:
    """A fault of node 1, at the start of an epoch unless it says when."""
    return {action: {"node": 1, **fields}, "at": at or {"epoch": 1}}


def test_faults_are_part_of_the_key_unless_there_are_none() -> None:
    plain = RunSpec.model_validate({"strategy": "all_reduce", "transport": "gloo", "nodes": 3})
    faulty = spec(KILL)
    assert spec().key == plain.key != faulty.key
    assert RunSpec.model_validate_json(faulty.model_dump_json()) == faulty
    assert spec({**KILL, "pause": None}).key == faulty.key
    for fields in ({}, {"node_speed": {-1: 0.5}}):  # a node may return that is not slower
        assert spec(RETURNING, strategy="gossip", on_loss="continue", **fields).return_after


CONTINUE = ("on_loss", "continue", "allowed: stop")


@pytest.mark.parametrize(
    ("fault", "fields", "named"),
    [
        ({"at": {"epoch": 1}}, {}, ("faults[0]", "none", "kill, pause, slow, cut_off, drop")),
        ({**KILL, "pause": {"node": 0, "seconds": 1}}, {}, ("faults[0]", "kill and pause", "exactly one")),
        (fault_of("kill", {"epoch": 1, "step": 2}), {}, ("faults[0].at", "epoch and step")),
        (fault_of("kill", {"step": 0}), {}, ("faults[0].at.step", "0")),
        (fault_of("kill", {"random": {"steps": [9, 3]}}), {}, ("faults[0].at.random", "9", "3")),
        (fault_of("slow", factor=1), {}, ("faults[0].slow.factor", "1")),
        # Checks across fields
        (fault_of("kill", node=3), {}, ("faults: ", "fault 0, kill", "node is 3", "0 to 2")),
        (fault_of("kill", {"epoch": 4}), {}, ("faults: ", "at.epoch is 4", "1 to 3")),
        (fault_of("kill", {"second": 601}), {}, ("faults: ", "at.second is 601", "600")),
        (fault_of("pause", seconds=601), {}, ("seconds is 601", "timeout_s", "600")),
        (RETURNING, {}, ("return_after is 2", "continue")),
        (KILL, {"faults": [KILL] * 33}, ("faults", "32")),
        (KILL, {"transport": "memory"}, ("faults", "memory")),
        (KILL, {"strategy": "fault_injection"}, ("faults", "does not train")),
        (CUT, {"nodes": 1}, ("faults", "nodes 2 or more")),
        (CUT, {"processes_per_node": 2}, ("faults", "processes_per_node 1")),
        (CUT, {"transport": "nccl"}, ("faults", "nccl", "kill, pause, slow")),
        # Runs that continue without a lost node
        (None, {"strategy": "all_reduce"}, (*CONTINUE, "all_reduce", "one of", "gossip", "local_sgd")),
        (None, {"transport": "mpi"}, (*CONTINUE, "gossip", "over mpi", "stop, or transport gloo")),
        (None, {"restarts": 1}, (*CONTINUE, "restarts is 1", "restarts: 0")),
        (None, {"strategy": "local_sgd", "checkpoint_epochs": 1}, (*CONTINUE, "without checkpoints")),
        (None, {"save_weights": True}, (*CONTINUE, "save_weights: false")),
        (None, {"processes_per_node": 2}, (*CONTINUE, "processes_per_node: 1")),
        (None, {"nodes": 1}, (*CONTINUE, "nodes is 1", "2 to 128")),
        (None, {"nodes": 129}, (*CONTINUE, "nodes is 129", "2 to 128")),
        (
            RETURNING,
            {"strategy": "async_parameter_server", "transport": "rpc", "on_loss": "continue"},
            (*CONTINUE, "over rpc", "no return_after"),
        ),
        (
            RETURNING,
            {"strategy": "gossip", "node_speed": [1, 0.5], "nodes": 2, "on_loss": "continue"},
            (*CONTINUE, "node_speed", "no return_after of node 1"),
        ),
        (
            RETURNING,
            {"strategy": "local_sgd", "target_accuracy": 0.9, "on_loss": "continue"},
            (*CONTINUE, "no target"),
        ),
    ],
)
def test_what_is_refused(fault: Any, fields: dict[str, Any], named: tuple[str, ...]) -> None:
    if fault is None:
        fields = {"strategy": "gossip", "on_loss": "continue", **fields}
    with pytest.raises(ValidationError) as caught:
        spec(*([fault] if fault else []), **fields)
    (line,) = error_lines(caught.value, dotted)
    assert [part for part in named if part not in line] == []


def test_random_step_depends_on_its_seed_alone() -> None:
    steps = [
        spec(fault_of("kill", {"random": {"steps": [5, 500], "seed": seed}}), seed=run)
        .faults[0]
        .at.drawn_step
        for seed in range(20)
        for run in (0, 1)
    ]
    assert steps[::2] == steps[1::2]
    assert len({*steps}) > 10
    assert all(step is not None and 5 <= step <= 500 for step in steps)


# The injector


class FakeMeans:
    """Records what is asked for."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def kill(self) -> None:
        self.done.append("kill")

    def pause(self, seconds: float) -> None:
        self.done.append(("pause", seconds))

    def sleep(self, seconds: float) -> None:
        self.done.append(("sleep", round(seconds, 3)))

    def lose_packets(self, share: float) -> Callable[[], None]:
        self.done.append(("lose", share))
        return lambda: self.done.append("restored")


Make = Callable[..., FaultInjector]


@pytest.fixture
def injector(tmp_path: Path) -> Iterator[Make]:
    """`injector(means, faults …)`: that of rank 1, on fake time that starts at 100 s."""
    with ExitStack() as stack:

        def make(
            means: FakeMeans, *faults: Any, at: FakeTime | None = None, **where: Path
        ) -> FaultInjector:
            run = spec(*faults)
            context = NodeContext(1, 3, run.transport, tmp_path, **{"out_dir": tmp_path, **where})
            clock = Clock(wall=at or FakeTime(), cpu=lambda: 0.0)
            clock.start()
            writer = EventWriter(run.key, 1, tmp_path, io.StringIO())
            stack.callback(lambda: writer._file and writer._file.close())
            return FaultInjector(context, run, writer, clock, means)

        yield make


def train(faults: FaultInjector, epochs: int = 3, steps: int = 4) -> None:
    """Call the injector as a session does."""
    faults.started(0)
    for epoch in range(1, epochs + 1):
        faults.at_epoch(epoch)
        for step in range((epoch - 1) * steps, epoch * steps):
            faults.before_step(step)
            faults.after_step()
    faults.ended()


def fault_events(directory: Path) -> list[dict[str, Any]]:
    return [event.fields for event in EventReader(directory).new() if event.kind == "fault"]


def test_faults_fire_at_their_moment_on_their_node(tmp_path: Path, injector: Make) -> None:
    """Their events are written before they act."""

    class Checking(FakeMeans):
        def kill(self) -> None:
            self.done.append([each["action"] for each in fault_events(tmp_path)])

    faults = [
        fault_of("kill", {"epoch": 2}),
        fault_of("pause", {"step": 7}, seconds=2),
        fault_of("pause", {"step": 7}, seconds=3, node=2),
        fault_of("pause", {"step": 70}, seconds=4),
        fault_of("drop", {"random": {"steps": [9, 9]}}, share=0.5),
    ]
    means = Checking()
    train(injector(means, *faults))
    assert means.done == [["kill"], ("pause", 2), ("lose", 0.5), "restored"]
    fields = ("fault", "action", "epoch", "step", "second")
    assert [tuple(each[name] for name in fields) for each in fault_events(tmp_path)] == [
        (0, "kill", 2, 4, 0),
        (1, "pause", 2, 6, 0),
        (4, "drop", 3, 8, 0),
    ]


def test_fault_fires_once_and_lasting_ones_return_after_a_restart(tmp_path: Path, injector: Make) -> None:
    """Marks are in the directory of the checkpoints, if there is one: the output is that of an attempt."""
    faults = [
        fault_of("pause", {"epoch": 2}, seconds=2),
        fault_of("drop", {"step": 2}, share=0.5),
        fault_of("cut_off", {"step": 3}, seconds=50),
    ]
    kept = tmp_path / "kept"
    kept.mkdir()
    train(injector(FakeMeans(), *faults, checkpoint_dir=kept))
    assert len([*kept.iterdir()]) == 3
    again = FakeMeans()
    train(injector(again, *faults, checkpoint_dir=kept))
    assert again.done == [("lose", 0.5), "restored"]
    events = fault_events(tmp_path)
    assert [each.pop("earlier") for each in events] == [False] * 3 + [True] * 3
    assert sorted(events[:3], key=lambda each: each["fault"]) == events[3:]


def test_fault_after_seconds_fires_in_a_thread_and_not_after_training(injector: Make) -> None:
    fired = threading.Event()
    means = FakeMeans()
    means.pause = lambda seconds: fired.set()  # type: ignore[method-assign]
    soon, late = fault_of("pause", {"second": 0.01}, seconds=2), fault_of("kill", {"second": 500})
    cut = fault_of("cut_off", {"epoch": 1}, seconds=0.01)
    faults = injector(means, soon, late, cut)
    faults.started(0)
    faults.at_epoch(1)
    assert fired.wait(10)
    faults._timers[-1].join(10)
    assert means.done == [("lose", 1.0), "restored"]
    faults.ended()
    assert "kill" not in means.done


def test_slow_node_sleeps_in_proportion_to_its_work(injector: Make) -> None:
    """Factors multiply, each for its time, and what is no work is not slowed down."""
    at, means = FakeTime(), FakeMeans()
    twice = fault_of("slow", {"step": 2}, factor=3, seconds=5), fault_of("slow", {"step": 3}, factor=2)
    faults = injector(means, *twice, at=at)
    faults.started(0)
    for step in range(5):
        faults.before_step(step)
        with faults._clock.phase("compute"):
            at.pass_(1.0)
        faults.after_step()
        with faults._clock.phase("evaluate"):
            at.pass_(1.5)
    assert means.done == [("sleep", 2.0), ("sleep", 5.0), ("sleep", 1.0), ("sleep", 1.0)]
    faults.ended()


def test_fault_that_is_not_possible_fails_the_run(injector: Make) -> None:
    class Unconnected(FakeMeans):
        def lose_packets(self, share: float) -> Callable[[], None]:
            raise OSError("no TCP connection")

    with pytest.raises(FaultError, match=r"fault 0, cut_off of node 1 at step 1.*no TCP connection"):
        train(injector(Unconnected(), fault_of("cut_off", {"step": 1}, seconds=1)))
    assert service_ports("127.0.0.1:2950", {"PMIX_SERVER_URI41": "a;tcp4://127.0.0.1:77"}) == {2950, 77}
    assert service_ports("/file:/x", {}) == set()


# Packets and signals, for real


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A TCP connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    with one, other:
        one.settimeout(10)
        other.settimeout(10)
        yield one, other


@linux
def test_dropped_packets_arrive_after_the_cut(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    ends = {one.getsockname(), other.getsockname()}
    with ExitStack() as stack:
        for ports, found in (((), ends), ((one.getsockname()[1],), set())):
            names = {stack.enter_context(each).getsockname() for each in connections(ports)}
            assert names & ends == found  # at neither end of a service's connections
    loss = PacketLoss([other.dup()])
    loss.start(1.0)
    one.sendall(b"lost")
    other.settimeout(0.3)
    with pytest.raises(TimeoutError):
        other.recv(4)
    loss.stop()
    other.settimeout(10)
    assert other.recv(4) == b"lost"


@pytest.mark.parametrize(("share", "loses"), [(0.2, [False]), (0.4, [False, True]), (1.0, [True])])
def test_slices_are_lost_if_the_number_drawn_is_below_the_share(
    share: float, loses: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: Any = SimpleNamespace(random=lambda: 0.3)
    loss, done = PacketLoss([], random=drawn), list[bool]()
    assert isinstance(PacketLoss([])._random, Random)
    monkeypatch.setattr(loss, "_lose", done.append)
    slices = iter([False] * 5 + [True])
    loss._stopped.wait = lambda _: next(slices)  # type: ignore[assignment, method-assign, misc]
    loss.start(share)
    loss.stop()
    assert done == loses


PAUSED = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pause import pause
print("ready", flush=True)
pause(float(sys.argv[2]))
print("continued", flush=True)
time.sleep(60)
"""


@linux
@pytest.mark.parametrize("seconds", ["0.5", "300"])
def test_whole_process_is_stopped_and_continues_or_is_killed(seconds: str) -> None:
    """The helper ends with the process that it has stopped."""
    folder = str(Path(sys.modules[pause.__module__].__file__ or "").parent)
    command = [sys.executable, "-S", "-c", PAUSED, folder, seconds]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        found, deadline = psutil.Process(process.pid), time.monotonic() + 20
        while found.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
            time.sleep(0.01)
        assert found.status() == psutil.STATUS_STOPPED
        helpers = found.children()
        assert len(helpers) == 1
        if seconds == "0.5":
            assert process.stdout.readline() == "continued\n"
            assert found.children() == []
        process.kill()
    psutil.wait_procs(helpers, timeout=10)
    assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in helpers)


def test_a_pause_that_is_not_permitted_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    done = SimpleNamespace(returncode=1, stderr="Traceback …\n  hold()\nPermissionError: not permitted\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(OSError, match=r"\APermissionError: not permitted\Z"):
        pause(1)


# What events say


def event(rank: int, kind: str, **fields: Any) -> Event:
    return Event(5.0, "key", rank, "host", kind, fields)


def fault(rank: int = 1, number: int = 0, step: int = 37, **fields: Any) -> Event:
    given = {"fault": number, "action": "kill", "epoch": 2, "step": step, "second": 1.5, **fields}
    return event(rank, "fault", **given)


def step(epoch: int, number: int) -> Event:
    return event(0, "step", epoch=epoch, step=number, steps=20)


def attempts(*each: list[Event]) -> Attempts:
    found = Attempts(3)
    for number, events in enumerate(each):
        for rank in range(3):
            found.add(event(rank, "start", pid=7, attempt=number))
        for one in events:
            found.add(one)
    return found


RESUMED = [
    event(rank, "resumed", epoch=1, step=0, age_s=1.0, times=None, steps_taken=20) for rank in range(3)
]


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        ([[fault(step=37), step(2, 10)], RESUMED], 17),
        ([[fault(step=37)], []], 37),  # starts over
        ([[fault(step=37)], [*RESUMED, fault(step=37, earlier=True), step(2, 5)], RESUMED], 22),
        ([[fault(step=37, earlier=True), *RESUMED]], 17),  # a command that resumes the killed run
        ([[step(2, 15)], RESUMED], 15),  # killed from outside
        ([[fault(step=37)]], 0),  # not restarted
        ([[]], 0),
    ],
)
def test_repeated_steps(tried: list[list[Event]], expected: int) -> None:
    assert repeated_steps(attempts(*tried)) == expected


def test_injected_faults_flags_and_cause() -> None:
    run = spec(KILL, {"pause": {"node": 0, "seconds": 1}, "at": {"step": 900}})
    (only,) = injected_faults(run, attempts([fault()], [fault(earlier=True), *RESUMED]))
    assert (only.fault, only.node, only.rank, only.action, only.step) == (0, 1, 1, "kill", 37)
    done, missed = fault_flags(run, [only])
    assert done.startswith("1 fault was injected: kill of node 1")
    assert "fault 1" in missed
    assert "pause of node 0 at step 900" in missed
    assert fault_flags(spec(), []) == []
    mine, others = (f"node {node} (process 7) was killed by SIGKILL" for node in (1, 2))
    assert str(fault_of_loss(run, mine, [only])).startswith(mine)
    assert "fault 0" in str(fault_of_loss(run, mine, [only]))
    assert fault_of_loss(run, others, [only]) == others
    assert not contradicts(spec(KILL), fault())
    for odd in (fault(number=1), fault(rank=2), fault(action="drop"), fault(rank=9)):
        assert contradicts(spec(KILL), odd)
        assert injected_faults(spec(KILL), attempts([odd])) == []
