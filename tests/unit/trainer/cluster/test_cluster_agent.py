"""Mistakes of an agent: events that are late, processes that outlive it, wrong files, causes, commands."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.runtimes.docker.live import LiveRecord
from tests.unit.cluster_support import FIELDS, assigned, index_of
from tests.unit.conftest import event, rank_fields
from tests.unit.loopback_cluster import (
    DONE,
    RESULT,
    STARTS,
    FakeAgent,
    LoopbackCluster,
    Script,
    exits,
    keeps_training,
    plays,
    receive,
    report_success,
    sends,
    terminate_this_process,
    trace_file,
    wait_for_shutdown,
    weights_file,
)
from trainer.cluster import agent as module
from trainer.cluster import mpi_rank
from trainer.cluster.agent import Agent
from trainer.cluster.commands import TRAINER, Command
from trainer.cluster.protocol import Connection
from trainer.cluster.rank_assignment import AssignmentError, RankAssignment
from trainer.cluster.run_record import membership_of
from trainer.core.events import Event, EventReader
from trainer.core.membership import Membership
from trainer.core.trace import trace_path
from trainer.spec.run_spec import RunSpec
from trainer.warm.client import UNAVAILABLE
from trainer.warm.process import START_S, ParentError


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory that stands in for /run/shardyard."""
    home = tmp_path / "home"
    for name in ("HOME", "OUT", "SPEC", "MEMBERSHIP", "SSH", "HOSTS"):
        path = getattr(module, name)
        monkeypatch.setattr(module, name, home / path.relative_to("/run/shardyard"))
    monkeypatch.setattr(mpi_rank, "COMMAND", home / mpi_rank.COMMAND.relative_to("/run/shardyard"))
    (home / "ssh").mkdir(parents=True)
    return home


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, cluster: LoopbackCluster, home: Path) -> LoopbackCluster:
    """A cluster where `node-1` is a real agent whose process is a shell script."""
    run_scripted = cluster.run_agent

    async def run_agent(name: str, address: str, script: Script) -> None:
        if name != "node-1":
            await run_scripted(name, address, script)
            return

        async def connect(self: Agent) -> Connection:
            return (await cluster.connect(address, b"")).connection

        monkeypatch.setattr(Agent, "_connect", connect)
        cluster.codes.append(await Agent("node", "ddp").run())

    cluster.run_agent = run_agent  # type: ignore[method-assign]
    return cluster


Shell = Callable[[str], None]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Let the process of the agent's ranks be such a script."""

    def script(text: str) -> None:
        def commands(assignment: RankAssignment, pid: int, trainer: Sequence[str]) -> list[Command]:
            assert (pid, trainer) == (os.getpid(), TRAINER)
            return [Command(("sh", "-c", text), {"ROLE": "test"}, assignment.agent.ranks)]

        monkeypatch.setattr(module, "commands", commands)

    return script


async def real(_: FakeAgent) -> None: ...


def lines(*events: Event) -> str:
    return "".join(event.to_line() + "\n" for event in events)


FIELDS_OF = {"start": {"pid": 7}, "train_start": {"parameters": 1}, "result": rank_fields()}


def writes(home: Path, *kinds: str) -> str:
    """Shell that writes events of rank 0."""
    (home / "lines").write_text(lines(*(event(kind, **FIELDS_OF.get(kind, {})) for kind in kinds)))
    return f"cat {home}/lines >> {home}/out/rank-0.jsonl"


def runs_until_sigterm(home: Path, trap: str = "exit 143") -> str:
    """Shell that writes its PID, and what it does on SIGTERM."""
    return (
        f"trap '{trap}' TERM; echo $$ > {home}/new; mv {home}/new {home}/pid; while :; do sleep 0.02; done"
    )


def has_ended(home: Path) -> bool:
    """Whether the process of the shell has ended that wrote its PID."""
    return not Path(f"/proc/{int((home / 'pid').read_text())}").exists()


async def until(reached: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not reached():
            await asyncio.sleep(0.01)


def test_events_and_files_of_this_run_arrive_before_exit_codes(
    cluster: LoopbackCluster, home: Path, shell: Shell
) -> None:
    (home / "out").mkdir()
    (home / "out" / "rank-0.jsonl").write_text(lines(event("failed", cause="of an earlier start")))
    weights = weights_file(module.CHUNK_BYTES // 4)  # two chunks
    (home / "weights").write_bytes(weights)
    key = RunSpec.model_validate({**FIELDS["ddp"], "nodes": 1, "save_weights": True}).key
    trace = trace_file(key, 0, records=1000)  # two chunks
    trace_path(home, 0).write_bytes(trace)
    command = f"cp {home}/weights {home}/out/weights.npy && cp {trace_path(home, 0)} {home}/out"
    shell(f"test $ROLE = test && {command} && {writes(home, 'start', 'result', 'done')}")
    assert cluster.run({"node-1": real}, save_weights=True, trace="steps") == 0
    assert cluster.kinds(0) == ["start", "result", "done"]
    assert trace_path(cluster.directory, 0).read_bytes() == trace
    assert (cluster.directory / "weights.npy").read_bytes() == weights
    assert cluster.codes == [0]
    assert json.loads((cluster.directory / "usage.jsonl").read_text())["name"] == "node-1"
    assert json.loads((home / "spec.json").read_text())["strategy"]["name"] == "ddp"
    # While it waits for ranks, the health check passes without it; from then on it does not.
    assert (home / "alive").stat().st_mtime < time.time() + 1


@pytest.mark.parametrize(
    ("end", "blocks", "kind", "cause"),
    [("kill -9 $$", 2**20, "died", "killed by SIGKILL"), ("exit 1", 2, "failed", "/run/shardyard is full")],
    ids=["killed", "without space for events"],
)
def test_end_of_a_rank_is_reported(
    cluster: LoopbackCluster,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    shell: Shell,
    end: str,
    blocks: int,
    kind: str,
    cause: str,
) -> None:
    disk = SimpleNamespace(f_bavail=blocks, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", {home / "out": disk}.__getitem__)
    shell(f"{writes(home, 'start')}; {end}")
    assert cluster.run({"node-1": real, "node-2": keeps_training}) == 1
    assert cluster.kinds(0) == ["start", kind]
    assert cause in cluster.causes["node-1"]
    assert cluster.codes == [1]


@pytest.mark.parametrize("trap", ["", "exit 143"], ids=["ignores SIGTERM", "exits"])
def test_shutdown_ends_the_processes(
    cluster: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell, trap: str
) -> None:
    monkeypatch.setattr(module, "TERMINATE_S", 0.2)
    fails = plays(lambda _: until((home / "pid").exists), exits(1), wait_for_shutdown)
    shell(runs_until_sigterm(home, trap))
    assert cluster.run({"node-1": real, "node-2": fails}) == 1
    assert cluster.causes == {"node-2": "ended with exit code 1"}
    assert has_ended(home)


class Scripted:
    """A connection over which these messages arrive; then it ends, or nothing more arrives."""

    def __init__(self, *messages: dict[str, Any], ends: bool = True) -> None:
        self._left, self._ends = [*messages], ends
        self.sent: list[dict[str, Any]] = []
        self.aborted = False

    async def send(self, kind: str, **fields: Any) -> None:
        self.sent.append({"kind": kind, **fields})

    async def receive(self) -> dict[str, Any] | None:
        if not self._left and not self._ends:
            await asyncio.Event().wait()
        return self._left.pop(0) if self._left else None

    def abort(self) -> None:
        self.aborted = True

    async def close(self) -> None: ...


def connects_to(monkeypatch: pytest.MonkeyPatch, *connections: Scripted) -> None:
    """Let agents have these connections, one after the other."""
    left = [*connections]

    async def connect(self: Agent) -> Any:
        return left.pop(0)

    monkeypatch.setattr(Agent, "_connect", connect)


def run_agent() -> int:
    return asyncio.run(asyncio.wait_for(Agent("node", "ddp").run(), 10))


def test_agent_that_is_cut_off_ends_its_processes(
    home: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    assignment = {"kind": "assignment", **assigned("ddp", 1).to_message(0)}
    connection = Scripted(assignment, *[{"kind": "alive"}] * 3, ends=False)
    connects_to(monkeypatch, connection)
    monkeypatch.setattr(module, "COORDINATOR_SILENCE_S", 0.3)
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    shell(runs_until_sigterm(home))
    assert run_agent() == 1
    assert connection.aborted
    assert has_ended(home)


def test_agent_that_the_coordinator_answers_is_not_cut_off(
    cluster: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    for name, value in {"COORDINATOR_SILENCE_S": 0.4, "LOOK_S": 0.02, "BEAT_S": 0.05}.items():
        monkeypatch.setattr(module, name, value)
    shell(f"sleep 0.7; {writes(home, 'start', 'result', 'done')}")
    assert cluster.run({"node-1": real}) == 0


def test_agent_reports_a_rank_that_is_suspended(
    cluster: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    """Until it goes on."""
    monkeypatch.setattr(module, "BEAT_S", 0.05)
    start = event("start", pid=1).to_line().replace('"pid": 1', '"pid": %d')
    began = f"printf '{start}\\n' $$ >> {home}/out/rank-0.jsonl"
    shell(f"{began}; kill -STOP $$; {writes(home, 'result', 'done')}")
    record = LiveRecord(cluster.directory)

    async def continue_it(_: FakeAgent) -> None:
        await until(lambda: record.suspended)
        os.kill(record.suspended[0], signal.SIGCONT)
        await until(lambda: not record.suspended)

    continues = plays(continue_it, report_success, exits(), wait_for_shutdown)
    assert cluster.run({"node-1": real, "node-2": continues}) == 0


# Before ranks are assigned


@pytest.mark.parametrize(("stopped", "cause"), [(False, "no coordinator"), (True, "stopped before")])
def test_agent_without_coordinator_ends(
    home: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool, cause: str
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        if stopped:
            terminate_this_process()
        raise OSError("Name or service not known")

    if not stopped:
        monkeypatch.setattr(module, "CONNECT_S", 0.15)
    monkeypatch.setattr(asyncio, "open_connection", refuse)
    with pytest.raises(AssignmentError, match=cause):
        run_agent()
    assert (home / "alive").exists()


def test_agent_without_assignment_reports_the_cause(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rejected = {"kind": "rejected", "cause": "too late"}
    connects_to(monkeypatch, Scripted(rejected), Scripted({"kind": "shutdown"}), Scripted())
    assert [module.main("node", "ddp") for _ in range(3)] == [1, 1, 1]
    assert capsys.readouterr().err.splitlines() == [
        "node: too late",
        "node: the coordinator cancelled the run; its log says why",
        "node: the coordinator has ended",
    ]


# Warm containers


class Parent:
    """A fake warm parent. reasons: why it is replaced before each run."""

    pid = 4711
    command = ("client", "name")

    def __init__(self, *reasons: str | None, failure: str | None = None) -> None:
        self.waited_s: list[float] = []
        self._reasons, self._failure = [*reasons], failure

    def ensure(self) -> str | None:
        if not self._reasons:
            raise ParentError("it did not start")
        return self._reasons.pop(0)

    def refuse_waiting(self) -> None: ...

    def failure(self, within_s: float = 0.0) -> str | None:
        self.waited_s.append(within_s)
        return self._failure


def warm(parent: Parent | None) -> Agent:
    return Agent("node", "ddp", parent)  # type: ignore[arg-type]


SURPLUS = {"kind": "shutdown"}
Serve = Callable[..., tuple[int, list[list[dict[str, Any]]]]]


@pytest.fixture
def serve(home: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Let a warm agent get these answers, then no coordinator. Returns its code, and what it has sent."""

    def run(
        role: str, parent: Parent, *answers: dict[str, Any], clean: Any = lambda *_: None
    ) -> tuple[int, list[list[dict[str, Any]]]]:
        connections = [*map(Scripted, answers), Scripted()]
        connects_to(monkeypatch, *connections)
        monkeypatch.setattr(module, "ParentProcess", lambda *_: parent)
        monkeypatch.setattr(module, "settings", lambda pids: dict.fromkeys(pids))
        monkeypatch.setattr(module, "remove_traces", clean)
        monkeypatch.setattr(module, "RETRY_S", 0.0)
        return module.main(role, "ddp", warm=True), [each.sent for each in connections]

    return run


def test_warm_agent_takes_runs_until_the_coordinator_is_gone(serve: Serve) -> None:
    kept: list[set[int]] = []

    def clean(keep: dict[int, Any], _: Any) -> str:
        kept.append({*keep})
        return "a process"

    parent = Parent(None, "it grew", None)
    code, sent = serve("node", parent, SURPLUS, {"kind": "rejected", "cause": "too late"}, clean=clean)
    assert code == 0
    hellos = [{"kind": "hello", "public_keys": {}, "replaced": why} for why in (None, "it grew", None)]
    assert sent == [[hellos[0], {"kind": "clean", "left": "a process"}], [hellos[1]], [hellos[2]]]
    assert kept == [{os.getpid(), Parent.pid}]


def test_health_check_passes_while_the_warm_parent_starts(
    serve: Serve, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_s: list[float] = []

    def ensure(self: Parent) -> None:
        left_s.append((home / "alive").stat().st_mtime - time.time())

    monkeypatch.setattr(Parent, "ensure", ensure)
    serve("node", Parent(), SURPLUS, clean=lambda *_: (home / "alive").unlink())
    assert len(left_s) == 2
    assert min(left_s) > 2 * START_S


def test_only_nodes_need_a_warm_parent(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve("launcher", Parent(), SURPLUS)[0] == 0
    capsys.readouterr()
    assert serve("node", Parent())[0] == 1
    assert capsys.readouterr().err == "node: it did not start\n"


@pytest.mark.parametrize("parent", [Parent(), None], ids=["warm", "cold"])
def test_signal_to_a_warm_container_is_reported_for_its_ranks(home: Path, parent: Parent | None) -> None:
    """The engine sends one to a cold container when its run is over."""
    (home / "out").mkdir(parents=True, exist_ok=True)
    agent = warm(parent)
    agent._stop(signal.SIGTERM)
    agent._report_signal([2, 3])
    found = [(each.rank, each.kind, each.fields["signal"]) for each in EventReader(home / "out").new()]
    assert found == ([(2, "died", "SIGTERM"), (3, "died", "SIGTERM")] if parent else [])
    assert agent._trainer == (Parent.command if parent else TRAINER)


def test_loss_of_the_warm_parent() -> None:
    killed = Parent(failure="was killed by SIGKILL")
    assert warm(killed)._loss({0: -9}) == "was killed by SIGKILL"
    assert killed.waited_s == [0.0]
    assert warm(killed)._loss({0: UNAVAILABLE}) == "was killed by SIGKILL"
    assert killed.waited_s[1] > 0  # its exit may be seen later than the broken connection
    assert warm(Parent())._loss({0: 0, 1: UNAVAILABLE})  # that was not forked
    assert warm(Parent())._loss({0: 1, 1: -9}) is None
    assert warm(None)._loss({0: 1}) is None


# Open MPI


def test_files_of_an_mpi_run_let_only_the_launcher_reach_the_nodes(home: Path) -> None:
    def write_files(role: str, name: str) -> set[str]:
        assignment = assigned("mpi", 10, 2)
        Agent(role, "mpi")._write_files(replace(assignment, index=index_of(assignment, name)))
        return {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}

    written = write_files("launcher", "launcher")
    assert written == {"spec.json", "ssh/known_hosts", "ssh/config", "hosts"}
    known = (home / "ssh" / "known_hosts").read_text()
    assert known == "[10.0.0.2]:2222 key-2\n[10.0.0.10]:2222 key-10\n"
    assert (home / "hosts").read_text() == "10.0.0.2 slots=1\n10.0.0.10 slots=1\n"
    assert f"UserKnownHostsFile {home}/ssh/known_hosts" in (home / "ssh" / "config").read_text()
    assert write_files("node", "node-10") - written == {"ssh/authorized_keys", "rank.json"}
    key = (home / "ssh" / "authorized_keys").read_text()
    assert key == 'restrict,from="10.0.0.100" key-of-launcher\n'
    rank = json.loads((home / "rank.json").read_text())
    assert rank["environment"]["SHARDYARD_CONSOLE"] == f"/proc/{os.getpid()}/fd/1"
    assert rank["argv"] == [*TRAINER]


def test_environment_of_the_node_overrides_that_of_ssh(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *arguments: executed.append(arguments))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("SHARDYARD_OUT", "of the shell")
    command = {"argv": ["/bin/trainer", "of", "a", "rank"], "environment": {"SHARDYARD_OUT": "/out"}}
    (home / "rank.json").write_text(json.dumps(command))
    mpi_rank.main()
    ((program, argv, environment),) = executed
    assert (program, argv) == ("/bin/trainer", ["/bin/trainer", "of", "a", "rank"])
    assert (environment["OMPI_COMM_WORLD_RANK"], environment["SHARDYARD_OUT"]) == ("1", "/out")
    (home / "rank.json").unlink()
    monkeypatch.setattr(mpi_rank, "ASSIGNMENT_S", 0.05)
    with pytest.raises(SystemExit, match="no rank assignment"):
        mpi_rank.main()


@pytest.mark.parametrize("code", [255, None], ids=["sshd exits", "shutdown"])
def test_node_serves_ssh_until_shutdown_or_sshd_exits(home: Path, code: int | None) -> None:
    terminated: list[bool] = []
    sshd = SimpleNamespace(returncode=code, poll=lambda: code, terminate=lambda: terminated.append(True))

    async def serve() -> Any:
        agent = Agent("node", "mpi")
        agent._sshd = sshd  # type: ignore[assignment]
        asyncio.get_running_loop().call_later(0.05, agent._shutdown.set)
        return await agent._serve_ssh(())

    assert asyncio.run(serve()) == ({}, f"sshd ended with exit code {code}" if code else None)
    assert bool(terminated) == (code is None)


def test_node_ends_the_ranks_of_mpirun_and_waits_for_their_reports(home: Path, tmp_path: Path) -> None:
    report = tmp_path / "report"
    ends = runs_until_sigterm(home, f"sleep 0.2; echo ended > {report}; exit")
    rank = subprocess.Popen(["sh", "-c", ends])
    try:
        asyncio.run(until((home / "pid").exists))
        agent = Agent("node", "mpi")
        agent._pids = {0: rank.pid, 1: 2**22 + 1}  # no process has the second number
        agent._shutdown.set()
        asyncio.run(agent._serve_ssh(()))
    finally:
        rank.kill()
        rank.wait()
    assert report.read_text() == "ended\n"


# Runs that continue without a lost rank


def continues(after_s: float = 0.05) -> dict[str, Any]:
    """A run that starts rank 0 again once its fault has killed it."""
    kill = {"kill": {"node": 0, "return_after": after_s}, "at": {"epoch": 1}}
    return {"strategy": "gossip", "transport": "gloo", "on_loss": "continue", "faults": [kill]}


LATER = 4e9  # events are sorted by time, and the agent writes one of its own between these
FAULT = event("fault", fault=0, action="kill", epoch=1, step=0, second=0.5)
ENDS = [event("result", time=LATER, **rank_fields()), event("done", time=LATER)]
AGAIN = [event("start", time=LATER, pid=8, incarnation=1), event("waiting", time=LATER, incarnation=1)]
BEGINS = [STARTS, sends("train_start", parameters=1)]
FINISHES = [RESULT, DONE, exits(), wait_for_shutdown]


def dies_and_returns(home: Path, *again: str) -> str:
    """Shell of rank 0, which its fault kills; started again, it does the rest."""
    starts = [event(kind, **FIELDS_OF[kind]) for kind in ("start", "train_start")]
    trains_again = event("train_start", time=LATER, parameters=1)
    (home / "first").write_text(lines(*starts, FAULT))
    (home / "second").write_text(lines(*AGAIN, trains_again, *ENDS))
    out = f"{home}/out/rank-0.jsonl"
    return "; ".join(
        [
            f"if [ -z $SHARDYARD_INCARNATION ]; then cat {home}/first >> {out}; sleep 0.1; kill -9 $$; fi",
            f"echo $SHARDYARD_INCARNATION >> {home}/started",
            *(again or [f"cat {home}/second >> {out}"]),
        ]
    )


async def until_rank_0_returns(agent: FakeAgent) -> None:
    alive: set[tuple[int, int]] = set()
    while alive != {(0, 1), (1, 0)}:
        ranks = (await agent.receive() or {})["ranks"]
        alive = {(each["rank"], each["incarnation"]) for each in ranks if each["state"] != "lost"}


TRAINS = plays(*BEGINS, until_rank_0_returns, *FINISHES)


def test_agent_starts_a_killed_rank_again(cluster: LoopbackCluster, home: Path, shell: Shell) -> None:
    shell(dies_and_returns(home))
    assert cluster.run({"node-1": real, "node-2": TRAINS}, **continues()) == 0
    again = ["start", "waiting", "train_start", "result", "done"]
    assert cluster.kinds(0) == ["start", "train_start", "fault", "died", *again]
    assert (home / "started").read_text().split() == ["1"]
    assert cluster.codes == [0]


def test_ranks_read_who_is_alive(home: Path) -> None:
    def incarnations() -> dict[int, int]:
        return Membership.read(home / "membership.json").incarnations("member", "waiting")

    agent, assignment = Agent("node", "ddp"), assigned("ddp", 1, 2, **continues())
    agent._write_files(assignment)
    assert incarnations() == {0: 0, 1: 0}
    tracker = membership_of(assignment)
    assert tracker
    for each in [
        *(event("train_start", rank, parameters=1) for rank in (0, 1)),
        event("died", 1, cause=""),
    ]:
        tracker.add(each)
    news: Any = Scripted({"kind": "membership", **tracker.current.model_dump()})
    asyncio.run(agent._wait_for_shutdown(news))
    assert incarnations() == {0: 0}


def test_killed_rank_is_not_started_again_after_shutdown(
    cluster: LoopbackCluster, home: Path, shell: Shell
) -> None:
    shell(dies_and_returns(home))
    finishes = plays(*BEGINS, receive, *FINISHES)
    assert cluster.run({"node-1": real, "node-2": finishes}, **continues(60)) == 0
    assert cluster.kinds(0) == ["start", "train_start", "fault", "died"]
    assert not (home / "started").exists()


def test_rank_that_has_returned_ends_at_shutdown(
    cluster: LoopbackCluster, home: Path, shell: Shell
) -> None:
    """It waits for the others to let it join, and they have finished."""
    (home / "again").write_text(lines(*AGAIN))
    waits = f"echo $$ > {home}/pid; cat {home}/again >> {home}/out/rank-0.jsonl; exec sleep 60"
    shell(dies_and_returns(home, waits))
    assert cluster.run({"node-1": real, "node-2": TRAINS}, **continues()) == 0
    assert cluster.kinds(0) == ["start", "train_start", "fault", "died", "start", "waiting"]
    assert has_ended(home)
