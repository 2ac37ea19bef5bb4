"""Mistakes in faults: when, where, how often and how long they act, and what a run may ask for."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from orchestrator.execution.faults import contradicts, repeated_steps
from orchestrator.execution.run_result import _resumed
from orchestrator.sweeps.validation import dotted, error_lines
from tests.unit.conftest import PROJECT, FakeTime, event
from trainer.core.clock import Clock
from trainer.core.context import NodeContext
from trainer.core.events import Event
from trainer.spec.run_spec import RunSpec
from trainer.torchrun_restarts.attempts import Attempts
from trainer.training.faults import FaultError, FaultInjector, RealMeans
from trainer.training.packet_loss import PacketLoss, connections, service_ports


def spec(*faults: Any, **fields: Any) -> RunSpec:
    given = {"strategy": "all_reduce", "transport": "gloo", "nodes": 3, "faults": [*faults], **fields}
    return RunSpec.model_validate(given)


def fault_of(action: str, at: Any = None, **fields: Any) -> dict[str, Any]:
    """A fault of node 1, at the start of an epoch unless it says when."""
    return {action: {"node": 1, **fields}, "at": at or {"epoch": 1}}


KILL, RETURNING = fault_of("kill"), fault_of("kill", return_after=2)
CUT = fault_of("cut_off", node=0, seconds=1)
CONTINUE = ("on_loss", "continue", "allowed: stop")
SERVED = {"strategy": "async_parameter_server", "transport": "rpc", "on_loss": "continue"}
SLOWER = {"faults": [RETURNING], "node_speed": [1, 0.5], "nodes": 2}


@pytest.mark.parametrize(
    ("fault", "fields", "named"),
    [
        ({"at": {"epoch": 1}}, {}, ("faults[0]", "none", "kill, pause, slow, cut_off, drop")),
        ({**KILL, "pause": {"node": 0, "seconds": 1}}, {}, ("faults[0]", "kill and pause", "exactly one")),
        # Checks across fields
        (fault_of("kill", node=3), {}, ("faults: ", "fault 0, kill", "node is 3", "0 to 2")),
        (fault_of("kill", {"epoch": 4}), {}, ("faults: ", "at.epoch is 4", "1 to 3")),
        (fault_of("kill", {"second": 601}), {}, ("faults: ", "at.second is 601", "600")),
        (fault_of("pause", seconds=601), {}, ("seconds is 601", "timeout_s", "600")),
        (RETURNING, {}, ("return_after is 2", "continue")),
        (CUT, {"transport": "nccl"}, ("faults", "nccl", "kill, pause, slow")),
        # Runs that continue without a lost node
        (None, {"strategy": "all_reduce"}, (*CONTINUE, "all_reduce", "one of", "gossip", "local_sgd")),
        (None, {"transport": "mpi"}, (*CONTINUE, "gossip", "over mpi", "stop, or transport gloo")),
        (None, {"restarts": 1}, (*CONTINUE, "restarts is 1", "restarts: 0")),
        (RETURNING, SERVED, (*CONTINUE, "over rpc", "no return_after")),
        (None, SLOWER, (*CONTINUE, "node_speed", "no return_after of node 1")),
        (None, {"strategy": "local_sgd", "target_accuracy": 0.9, "faults": [RETURNING]}, ("no target",)),
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
    faults = [fault_of("kill", {"random": {"steps": [5, 14], "seed": seed}}) for seed in range(32)]
    first, second = ([each.at.drawn_step for each in spec(*faults, seed=run).faults] for run in (0, 1))
    assert first == second
    assert {*first} == {*range(5, 15)}


# The injector


def injector(
    directory: Path, *faults: Any, at: FakeTime | None = None, **changed: Any
) -> tuple[FaultInjector, list[Any]]:
    """That of rank 1, on fake time from 100 s on; and in order what it writes, and what it does.

    changed: what it does instead of noting it.
    """
    done: list[Any] = []

    def lose_packets(share: float) -> Callable[[], None]:
        done.append(("lose", share))
        return lambda: done.append("restored")

    means = {
        "kill": lambda: done.append("kill"),
        "pause": lambda seconds: done.append(("pause", seconds)),
        "sleep": lambda seconds: done.append(("sleep", round(seconds, 3))),
        "lose_packets": lose_packets,
    }
    writer: Any = SimpleNamespace(write=lambda _, **fields: done.append(fields))
    writer.write_quietly = writer.write
    (directory / "kept").mkdir(exist_ok=True)  # the output is that of an attempt
    context = NodeContext(1, 3, "gloo", directory, out_dir=directory, checkpoint_dir=directory / "kept")
    clock = Clock(wall=at or FakeTime(), cpu=lambda: 0.0)
    clock.start()
    acts: Any = SimpleNamespace(**{**means, **changed})
    return FaultInjector(context, spec(*faults), writer, clock, acts), done


def train(faults: FaultInjector) -> None:
    """Call the injector as a session does, in 3 epochs of 4 steps."""
    faults.started(0)
    for step in range(12):
        if step % 4 == 0:
            faults.at_epoch(1 + step // 4)
        faults.before_step(step)
        faults.after_step()
    faults.ended()


def written(fault: int, action: str, epoch: int, step: int) -> dict[str, Any]:
    return {"fault": fault, "action": action, "epoch": epoch, "step": step, "second": 0, "earlier": False}


def test_faults_are_reported_and_act_at_their_moment_on_their_node(tmp_path: Path) -> None:
    faults, done = injector(
        tmp_path,
        fault_of("kill", {"epoch": 2}),
        fault_of("pause", {"step": 7}, seconds=2),
        fault_of("pause", {"step": 7}, seconds=3, node=2),
        fault_of("pause", {"step": 70}, seconds=4),
        fault_of("drop", {"random": {"steps": [9, 9]}}, share=0.5),
    )
    train(faults)
    assert done == [
        *(written(0, "kill", 2, 4), "kill"),
        *(written(1, "pause", 2, 6), ("pause", 2)),
        *(written(4, "drop", 3, 8), ("lose", 0.5), "restored"),
    ]


def test_a_fault_acts_once_and_lasting_ones_return_after_a_restart(tmp_path: Path) -> None:
    cut, drop = fault_of("cut_off", {"step": 3}, seconds=50), fault_of("drop", {"step": 2}, share=0.5)
    faults = (fault_of("pause", {"epoch": 2}, seconds=2), drop, cut, KILL)
    first, _ = injector(tmp_path, *faults)
    train(first)
    again, done = injector(tmp_path, *faults)
    train(again)
    earlier = [written(0, "pause", 2, 4), written(1, "drop", 1, 1), written(2, "cut_off", 1, 2)]
    earlier.append(written(3, "kill", 1, 0))
    pause, lost, cut_off, killed = ({**each, "earlier": True} for each in earlier)
    assert done == [pause, lost, ("lose", 0.5), cut_off, killed, "restored"]
    (mark, *_) = sorted(tmp_path.glob("kept/*"))
    mark.write_text('{"fault": "0"}')
    with pytest.raises(FaultError, match=f"{mark}: cannot be read .*; remove it"):
        injector(tmp_path, *faults)[0].started(0)


def test_a_fault_after_seconds_acts_in_a_thread_and_not_after_training(tmp_path: Path) -> None:
    fired = threading.Event()
    soon, late = fault_of("pause", {"second": 0.01}, seconds=2), fault_of("kill", {"second": 500})
    cut = fault_of("cut_off", seconds=0.01)
    faults, done = injector(tmp_path, soon, late, cut, pause=lambda _: fired.set())
    faults.started(0)
    faults.at_epoch(1)
    assert fired.wait(10)
    faults._timers[-1].join(10)
    assert [each for each in done if not isinstance(each, dict)] == [("lose", 1.0), "restored"]
    faults.ended()
    assert "kill" not in done


def test_slow_node_sleeps_in_proportion_to_its_work(tmp_path: Path) -> None:
    """Factors multiply, each for its time, and what is no work is not slowed down."""
    twice = fault_of("slow", {"step": 2}, factor=3, seconds=5), fault_of("slow", {"step": 3}, factor=2)
    at = FakeTime()
    faults, done = injector(tmp_path, *twice, at=at)
    faults.started(0)
    for step in range(5):
        faults.before_step(step)
        for phase, seconds in (("compute", 1.0), ("evaluate", 1.5)):
            with faults._clock.phase(phase):
                at.pass_(seconds)
            if phase == "compute":
                faults.after_step()
    assert [each[1] for each in done if isinstance(each, tuple)] == [2.0, 5.0, 1.0, 1.0]


def test_an_impossible_fault_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unconnected(_: float) -> None:
        raise OSError("no TCP connection")

    monkeypatch.setattr(FaultInjector, "_path", lambda *_: None)  # also of a run that keeps no files
    faults, _ = injector(tmp_path, fault_of("cut_off", {"step": 1}, seconds=1), lose_packets=unconnected)
    with pytest.raises(FaultError, match=r"fault 0, cut_off of node 1 at step 1.*no TCP connection"):
        train(faults)


def test_slices_are_lost_if_the_number_drawn_is_below_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: Any = SimpleNamespace(random=lambda: 0.3)
    for share, loses in ((0.2, [False]), (0.4, [False, True]), (1.0, [True])):
        loss, done = PacketLoss([], random=drawn), list[bool]()
        monkeypatch.setattr(loss, "_lose", done.append)
        slices = iter([False] * 5 + [True])
        monkeypatch.setattr(loss._stopped, "wait", lambda _, slices=slices: next(slices))
        loss.start(share)
        loss.stop()
        assert done == loses


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_packets_are_lost_on_connections_between_ranks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on sockets that listen, of UDP, or of a service, which has the port of one end."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
        socket.socket(type=socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.connect(server.getsockname())
        every = (client, accepted, server, datagrams)
        port, own = (each.getsockname()[1] for each in (server, client))
        for services, both in (((), 255), ((1,), 255), ((port,), 0), ((own,), 0)):  # 0: no limit
            loss = PacketLoss(connections(services))
            loss.start(1.0)
            limits = [each.getsockopt(socket.IPPROTO_IP, 21) for each in every]
            loss.stop()
            assert limits == [both, both, 0, 0]
    uris = {"PMIX_SERVER_URI2": "prte.0;tcp4://10.0.0.2,127.0.0.1:4711\n", "OTHER_URI": "tcp://a:4712"}
    assert service_ports("tcp://node0:29500", uris) == {29500, 4711}
    monkeypatch.setattr("trainer.training.faults.connections", lambda _: [])
    with pytest.raises(OSError, match="no TCP connection"):
        RealMeans(NodeContext(1, 3, "gloo", Path())).lose_packets(0.5)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_the_helper_ends_with_the_process_that_it_has_stopped() -> None:
    command = [sys.executable, "-c", "from trainer.training.pause import pause; pause(300)"]
    with subprocess.Popen(command, cwd=PROJECT) as process:
        found, deadline = psutil.Process(process.pid), time.monotonic() + 20
        while found.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
            time.sleep(0.01)
        (helper,) = found.children()
        process.kill()
    psutil.wait_procs([helper], timeout=10)
    assert not helper.is_running() or helper.status() == psutil.STATUS_ZOMBIE


# What events say


def events(kind: str, **fields: Any) -> list[Event]:
    return [event(kind, rank, **fields) for rank in range(3)]


def fault(rank: int = 1, number: int = 0, **fields: Any) -> Event:
    return event(
        "fault",
        rank,
        **{"fault": number, "action": "kill", "epoch": 2, "step": 37, "second": 1.5, **fields},
    )


STEP = event("step", epoch=2, step=5, steps=20)
RESUMED = events("resumed", epoch=1, step=0, age_s=1.0, times=2, steps_taken=20)


def test_steps_after_the_checkpoint_are_repeated_by_each_restart() -> None:
    found = Attempts(3)
    for number, each in enumerate([[fault(), STEP], [*RESUMED, fault(earlier=True), STEP], RESUMED]):
        for one in [*events("start", pid=7, attempt=number), *each]:
            found.add(one)
    assert repeated_steps(found) == 17 + 5
    for started_at in (-1.0, -0.5):  # of a command that is as old as the checkpoint, or younger
        (flag,) = _resumed(found, started_at, "all times")
        assert flag.endswith("; all times cover the last command only") is (started_at > -1.0)


def test_events_of_other_faults_contradict_the_spec() -> None:
    assert not contradicts(spec(KILL), fault())
    for odd in (fault(fault=1), fault(rank=2), fault(action="drop"), fault(rank=9)):
        assert contradicts(spec(KILL), odd)
