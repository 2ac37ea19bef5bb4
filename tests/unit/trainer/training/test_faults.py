"""Faults: what a spec may ask for, when a rank injects them, and what the events say about them."""

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
from typing import Any, Protocol

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
from trainer.core.clock import Clock
from trainer.core.context import NodeContext
from trainer.core.events import Event, EventReader, EventWriter
from trainer.spec.run_spec import RunSpec
from trainer.torchrun_restarts.attempts import Attempts
from trainer.training.faults import FaultError, FaultInjector, RealMeans
from trainer.training.packet_loss import PacketLoss, connections, service_ports

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
KILL = {"kill": {"node": 1}, "at": {"epoch": 2}}
RETURNING = {"kill": {"node": 1, "return_after": 2}, "at": {"epoch": 2}}


def spec(*faults: Any, **fields: Any) -> RunSpec:
    given = {"strategy": "all_reduce", "transport": "gloo", "nodes": 3, "faults": [*faults], **fields}
    return RunSpec.model_validate(given)


def errors(*faults: Any, **fields: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        spec(*faults, **fields)
    return "\n".join(error_lines(caught.value, dotted))


def test_faults_are_part_of_the_key_unless_there_are_none() -> None:
    plain = RunSpec.model_validate({"strategy": "all_reduce", "transport": "gloo", "nodes": 3})
    assert spec().key == plain.key
    faulty = spec(KILL)
    assert faulty.key != plain.key
    assert RunSpec.model_validate(faulty.model_dump(mode="json")) == faulty
    assert RunSpec.model_validate_json(faulty.model_dump_json()).key == faulty.key
    assert spec({**KILL, "pause": None}).key == faulty.key


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ({"at": {"epoch": 1}}, ("faults[0]", "none", "kill, pause, slow, cut_off, drop")),
        ({**KILL, "pause": {"node": 0, "seconds": 1}}, ("faults[0]", "kill and pause", "exactly one")),
        ({"kill": {"node": 1}}, ("faults[0].at", "missing")),
        ({"kill": {"node": 1}, "at": {}}, ("faults[0].at", "epoch, step, second, random")),
        ({"kill": {"node": 1}, "at": {"epoch": 1, "step": 2}}, ("faults[0].at", "epoch and step")),
        ({"kill": {"node": 1}, "at": {"epoch": 0}}, ("faults[0].at.epoch", "0")),
        ({"kill": {"node": 1}, "at": {"step": 0}}, ("faults[0].at.step", "0")),
        ({"kill": {"node": 1}, "at": {"second": -1}}, ("faults[0].at.second", "-1")),
        ({"kill": {"node": 1}, "at": {"random": {"steps": [9, 3]}}}, ("faults[0].at.random", "9", "3")),
        ({"kill": {"node": 1}, "at": {"random": {"steps": [9]}}}, ("faults[0].at.random.steps",)),
        ({"kill": {"nodes": 1}, "at": {"epoch": 1}}, ("faults[0].kill.nodes", "unknown key")),
        ({"kill": {"node": "1"}, "at": {"epoch": 1}}, ("faults[0].kill.node", "'1'")),
        ({"stop": {"node": 1}, "at": {"epoch": 1}}, ("faults[0].stop", "unknown key")),
        ({"pause": {"node": 1}, "at": {"epoch": 1}}, ("faults[0].pause.seconds", "missing")),
        ({"pause": {"node": 1, "seconds": 0}, "at": {"epoch": 1}}, ("faults[0].pause.seconds", "0")),
        ({"slow": {"node": 1, "factor": 1}, "at": {"epoch": 1}}, ("faults[0].slow.factor", "1")),
        ({"drop": {"node": 1, "share": 1.5}, "at": {"epoch": 1}}, ("faults[0].drop.share", "1.5")),
        # Checks across fields
        ({"kill": {"node": 3}, "at": {"epoch": 1}}, ("faults: ", "fault 0, kill", "node is 3", "0 to 2")),
        ({"kill": {"node": 1}, "at": {"epoch": 4}}, ("faults: ", "at.epoch is 4", "1 to 3")),
        ({"kill": {"node": 1}, "at": {"second": 601}}, ("faults: ", "at.second is 601", "600")),
        (
            {"pause": {"node": 1, "seconds": 601}, "at": {"epoch": 1}},
            ("seconds is 601", "timeout_s", "600"),
        ),
        ({"kill": {"node": 1, "return_after": 2}, "at": {"epoch": 1}}, ("return_after is 2", "continue")),
    ],
)
def test_faults_that_are_not_possible(fault: Any, named: tuple[str, ...]) -> None:
    message = errors(fault)
    assert [part for part in named if part not in message] == []


CUT = {"cut_off": {"node": 0, "seconds": 1}, "at": {"epoch": 1}}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"faults": [KILL] * 33}, ("faults", "32")),
        ({"faults": [KILL], "transport": "memory"}, ("faults", "memory")),
        ({"faults": [KILL], "strategy": "fault_injection"}, ("faults", "does not train")),
        ({"faults": [CUT], "nodes": 1}, ("faults", "nodes 2 or more")),
        ({"faults": [CUT], "processes_per_node": 2}, ("faults", "processes_per_node 1")),
        ({"faults": [CUT], "transport": "nccl"}, ("faults", "nccl", "kill, pause, slow")),
    ],
)
def test_runs_that_cannot_have_faults(fields: dict[str, Any], named: tuple[str, ...]) -> None:
    message = errors(**fields)
    assert [part for part in named if part not in message] == []


def test_strategies_that_cannot_continue_name_those_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.strategies.gossip import Gossip

    assert "all_reduce cannot continue without a node" in errors(on_loss="continue")
    monkeypatch.setattr(Gossip, "elastic_transports", ("gloo",))
    assert "gossip" in errors(on_loss="continue")
    assert spec(strategy="gossip", on_loss="continue").key != spec(strategy="gossip").key
    assert "allowed: stop, or transport gloo" in errors(
        strategy="gossip", transport="mpi", on_loss="continue"
    )
    assert "restarts is 1" in errors(strategy="gossip", on_loss="continue", restarts=1)
    returning = {"kill": {"node": 1, "return_after": 2}, "at": {"epoch": 2}}
    assert spec(returning, strategy="gossip", on_loss="continue").faults[0].kill


def test_random_step_depends_on_its_seed_alone() -> None:
    steps = [
        spec({"kill": {"node": 1}, "at": {"random": {"steps": [5, 500], "seed": seed}}}, seed=run)
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


class FakeTime:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Make(Protocol):
    def __call__(
        self, run: RunSpec, at: FakeTime | None = None, means: FakeMeans | None = None
    ) -> FaultInjector: ...


@pytest.fixture
def injector(tmp_path: Path) -> Iterator[Make]:
    """`injector(run)`: that of rank 1, with fake time and means."""
    writers = []

    def make(run: RunSpec, at: FakeTime | None = None, means: FakeMeans | None = None) -> FaultInjector:
        context = NodeContext(1, run.world_size, run.transport, tmp_path, out_dir=tmp_path)
        clock = Clock(wall=at or FakeTime(), cpu=lambda: 0.0)
        clock.start()
        writers.append(EventWriter(run.key, 1, tmp_path, io.StringIO()))
        return FaultInjector(context, run, writers[-1], clock, means or FakeMeans())

    yield make
    for each in writers:
        if each._file:
            each._file.close()


def train(faults: FaultInjector, epochs: int = 3, steps: int = 4, resumed: int = 0) -> None:
    """Call the injector as a session does."""
    faults.started(resumed)
    for epoch in range(1, epochs + 1):
        if epoch * steps <= resumed:
            continue
        faults.at_epoch(epoch)
        for step in range(max(resumed, (epoch - 1) * steps), epoch * steps):
            faults.before_step(step)
            faults.after_step()
    faults.ended()


def fault_events(directory: Path) -> list[dict[str, Any]]:
    return [event.fields for event in EventReader(directory).new() if event.kind == "fault"]


def test_faults_fire_at_their_moment_on_their_node(tmp_path: Path, injector: Make) -> None:
    run = spec(
        {"kill": {"node": 1}, "at": {"epoch": 2}},
        {"pause": {"node": 1, "seconds": 2}, "at": {"step": 7}},
        {"pause": {"node": 2, "seconds": 3}, "at": {"step": 7}},
        {"pause": {"node": 1, "seconds": 4}, "at": {"step": 70}},
        {"drop": {"node": 1, "share": 0.5}, "at": {"random": {"steps": [9, 9]}}},
    )
    means = FakeMeans()
    train(injector(run, means=means))
    assert means.done == ["kill", ("pause", 2), ("lose", 0.5), "restored"]
    assert [
        (each["fault"], each["action"], each["epoch"], each["step"]) for each in fault_events(tmp_path)
    ] == [
        (0, "kill", 2, 4),
        (1, "pause", 2, 6),
        (4, "drop", 3, 8),
    ]


def test_fault_fires_once_and_lasting_ones_return_after_a_restart(tmp_path: Path, injector: Make) -> None:
    run = spec(
        {"pause": {"node": 1, "seconds": 2}, "at": {"epoch": 2}},
        {"drop": {"node": 1, "share": 0.5}, "at": {"step": 2}},
        {"cut_off": {"node": 1, "seconds": 50}, "at": {"step": 3}},
    )
    train(injector(run))
    again = FakeMeans()
    train(injector(run, means=again))
    assert again.done == [("lose", 0.5), "restored"]
    first, second = fault_events(tmp_path)[:3], fault_events(tmp_path)[3:]
    assert [each.pop("earlier") for each in first + second] == [False] * 3 + [True] * 3
    assert sorted(first, key=lambda each: each["fault"]) == second


def test_event_is_written_before_the_fault_acts(tmp_path: Path, injector: Make) -> None:
    class Checking(FakeMeans):
        def kill(self) -> None:
            self.done.append([each["action"] for each in fault_events(tmp_path)])

    means = Checking()
    train(injector(spec(KILL), means=means))
    assert means.done == [["kill"]]


def test_fault_after_seconds_fires_in_a_thread_and_not_after_training(
    tmp_path: Path, injector: Make
) -> None:
    fired = threading.Event()

    class Signalling(FakeMeans):
        def pause(self, seconds: float) -> None:
            super().pause(seconds)
            fired.set()

    means = Signalling()
    faults = injector(
        spec(
            {"pause": {"node": 1, "seconds": 2}, "at": {"second": 0.01}},
            {"kill": {"node": 1}, "at": {"second": 500}},
        ),
        means=means,
    )
    faults.started(0)
    assert fired.wait(10)
    faults.ended()
    assert means.done == [("pause", 2)]


def test_slow_node_sleeps_in_proportion_to_its_work(tmp_path: Path, injector: Make) -> None:
    at, means = FakeTime(), FakeMeans()
    faults = injector(
        spec({"slow": {"node": 1, "factor": 3, "seconds": 5}, "at": {"step": 2}}),
        at=at,
        means=means,
    )
    faults.started(0)
    faults.at_epoch(1)
    for step in range(4):
        faults.before_step(step)
        at.now += 1.0 if step < 2 else 0.5
        faults.after_step()
        at.now += 2.0
    assert means.done == [("sleep", 2.0), ("sleep", 5.0)]
    faults.ended()


def test_fault_that_is_not_possible_fails_the_run(tmp_path: Path, injector: Make) -> None:
    context = NodeContext(1, 3, "gloo", tmp_path, out_dir=tmp_path)
    run = spec({"cut_off": {"node": 1, "seconds": 1}, "at": {"step": 1}})

    class Unconnected(FakeMeans):
        def lose_packets(self, share: float) -> Callable[[], None]:
            raise OSError("no TCP connection")

    with pytest.raises(FaultError, match=r"fault 0, cut_off of node 1 at step 1.*no TCP connection"):
        train(injector(run, means=Unconnected()))
    assert service_ports("127.0.0.1:2950", {"PMIX_SERVER_URI41": "a;tcp4://127.0.0.1:77"}) == {2950, 77}
    assert service_ports("/file:/x", {}) == set()
    assert RealMeans(context)


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
        found = {stack.enter_context(each).getsockname() for each in connections()}
        others = {stack.enter_context(each).getsockname() for each in connections({one.getsockname()[1]})}
    assert ends <= found
    assert ends.isdisjoint(others)
    loss = PacketLoss([other.dup()])
    loss.start(1.0)
    one.sendall(b"lost")
    other.settimeout(0.3)
    with pytest.raises(TimeoutError):
        other.recv(4)
    loss.stop()
    other.settimeout(10)
    assert other.recv(4) == b"lost"


@linux
def test_share_of_packets_is_lost_and_sent_again(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    loss = PacketLoss([other.dup()])
    loss.start(0.5)
    for number in range(100):
        one.sendall(bytes([number]))
        time.sleep(0.001)
    received = b""
    while len(received) < 100:
        received += other.recv(100)
    assert received == bytes(range(100))
    # struct tcp_info: tcpi_total_retrans, a 32-bit number at byte 100.
    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    assert int.from_bytes(info[100:104], sys.byteorder) > 0
    loss.stop()


PAUSED = """
import sys, time
from trainer.training.pause import pause
print("ready", flush=True)
pause(float(sys.argv[1]))
print("continued", flush=True)
time.sleep(60)
"""


@linux
def test_whole_process_is_stopped_and_continues() -> None:
    command = [sys.executable, "-c", PAUSED, "0.5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        states = set()
        found = psutil.Process(process.pid)
        deadline = time.monotonic() + 20
        while psutil.STATUS_STOPPED not in states and time.monotonic() < deadline:
            states.add(found.status())
            time.sleep(0.01)
        assert psutil.STATUS_STOPPED in states
        assert process.stdout.readline() == "continued\n"
        assert found.children() == []
        process.kill()


@linux
def test_helper_ends_with_the_process_that_it_has_stopped() -> None:
    process = subprocess.Popen([sys.executable, "-c", PAUSED, "300"], stdout=subprocess.DEVNULL)
    found = psutil.Process(process.pid)
    deadline = time.monotonic() + 20
    while found.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
        time.sleep(0.01)
    (helper,) = found.children()
    process.kill()
    process.wait()
    psutil.wait_procs([helper], timeout=10)
    assert not helper.is_running() or helper.status() == psutil.STATUS_ZOMBIE


# What events say


def event(rank: int, kind: str, **fields: Any) -> Event:
    return Event(5.0, "key", rank, "host", kind, fields)


def fault(rank: int = 1, number: int = 0, step: int = 37, **fields: Any) -> Event:
    given = {"fault": number, "action": "kill", "epoch": 2, "step": step, "second": 1.5, **fields}
    return event(rank, "fault", **given)


def step(rank: int, epoch: int, number: int, of: int = 20) -> Event:
    return event(rank, "step", epoch=epoch, step=number, steps=of)


def attempts(*each: list[Event]) -> Attempts:
    found = Attempts(3)
    for number, events in enumerate(each):
        for rank in range(3):
            found.add(event(rank, "start", pid=7, attempt=number))
        for one in events:
            found.add(one)
    return found


def resumed(steps_taken: int) -> list[Event]:
    return [
        event(rank, "resumed", epoch=1, step=0, age_s=1.0, times=None, steps_taken=steps_taken)
        for rank in range(3)
    ]


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        ([[fault(step=37), step(0, 2, 10)], resumed(20)], 17),
        ([[fault(step=37)], []], 37),  # starts over
        ([[fault(step=37)], [*resumed(20), fault(step=37, earlier=True), step(0, 2, 5)], resumed(20)], 22),
        ([[fault(step=37, earlier=True), *resumed(20)]], 17),  # a command that resumes the killed run
        ([[step(0, 2, 15)], resumed(20)], 15),  # killed from outside
        ([[fault(step=37)]], 0),  # not restarted
        ([[]], 0),
    ],
)
def test_repeated_steps(tried: list[list[Event]], expected: int) -> None:
    assert repeated_steps(attempts(*tried)) == expected


def test_injected_faults_flags_and_cause() -> None:
    run = spec(KILL, {"pause": {"node": 0, "seconds": 1}, "at": {"step": 900}})
    found = attempts([fault()], [fault(earlier=True), *resumed(20)])
    (only,) = injected_faults(run, found)
    assert (only.fault, only.node, only.rank, only.action, only.step) == (0, 1, 1, "kill", 37)
    done, missed = fault_flags(run, [only])
    assert done.startswith("1 fault was injected: kill of node 1")
    assert "fault 1" in missed
    assert "pause of node 0 at step 900" in missed
    assert fault_flags(spec(), []) == []
    cause = fault_of_loss(run, "node 1 (process 7) was killed by SIGKILL", [only])
    assert str(cause).startswith("node 1 (process 7) was killed by SIGKILL")
    assert "fault 0" in str(cause)
    assert fault_of_loss(run, "node 2 (process 7) was killed by SIGKILL", [only]) == (
        "node 2 (process 7) was killed by SIGKILL"
    )


@pytest.mark.parametrize("odd", [fault(number=1), fault(rank=2), fault(action="drop"), fault(rank=9)])
def test_event_about_a_fault_that_the_spec_does_not_have(odd: Event) -> None:
    run = spec(KILL)
    assert contradicts(run, odd)
    assert not contradicts(run, fault())
    assert injected_faults(run, attempts([odd])) == []


# Runs that continue without a lost node


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"strategy": "all_reduce"}, ("all_reduce", "stop, or one of", "gossip", "local_sgd")),
        ({"transport": "mpi"}, ("gossip", "over mpi", "stop, or transport gloo")),
        ({"restarts": 1}, ("restarts is 1", "restarts: 0")),
        ({"strategy": "local_sgd", "checkpoint_epochs": 1}, ("checkpoints", "without checkpoints")),
        ({"save_weights": True}, ("save_weights", "save_weights: false")),
        ({"processes_per_node": 2}, ("processes_per_node is 2", "processes_per_node: 1")),
        ({"nodes": 1}, ("nodes is 1", "2 to 128")),
        ({"nodes": 129}, ("nodes is 129", "2 to 128")),
        (
            {"strategy": "async_parameter_server", "transport": "rpc", "faults": [RETURNING]},
            ("over rpc", "no return_after"),
        ),
        (
            {"node_speed": [1, 0.5], "nodes": 2, "faults": [RETURNING]},
            ("node_speed", "no return_after of node 1"),
        ),
        (
            {"strategy": "local_sgd", "target_accuracy": 0.9, "faults": [RETURNING]},
            ("target", "no target"),
        ),
    ],
)
def test_obstacles_to_continue(fields: dict[str, Any], named: tuple[str, ...]) -> None:
    continuing = {"strategy": "gossip", "transport": "gloo", "nodes": 3, "on_loss": "continue"}
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({**continuing, **fields})
    (line,) = error_lines(caught.value, dotted)
    assert [part for part in ("on_loss", "continue", "allowed: stop", *named) if part not in line] == []
    for possible in ({}, {"node_speed": {-1: 0.5}}):  # of another node
        assert RunSpec.model_validate({**continuing, **possible, "faults": [RETURNING]}).return_after
