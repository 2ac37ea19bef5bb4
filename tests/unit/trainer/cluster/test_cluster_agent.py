"""An agent with real processes and a coordinator on loopback. No container."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.runtimes.docker.live import LiveRecord
from tests.unit import loopback_cluster
from tests.unit.cluster_support import FIELDS, assigned, index_of
from tests.unit.conftest import event, rank_fields
from tests.unit.loopback_cluster import (
    FakeAgent,
    LoopbackCluster,
    Script,
    keeps_training,
    trace_file,
    weights_file,
)
from trainer.cluster import agent as module
from trainer.cluster import mpi_rank
from trainer.cluster.agent import Agent
from trainer.cluster.commands import TRAINER, Command
from trainer.cluster.protocol import Connection
from trainer.cluster.rank_assignment import AssignmentError, RankAssignment
from trainer.core.events import Event, EventReader
from trainer.core.membership import Membership
from trainer.core.trace import trace_path
from trainer.spec.run_spec import RunSpec
from trainer.warm.client import UNAVAILABLE
from trainer.warm.process import START_S, ParentError

ignore_sigterm = pytest.fixture(autouse=True)(loopback_cluster.ignore_sigterm)


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
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path) -> LoopbackCluster:
    """A cluster where `node-1` is a real agent whose process is a shell script."""
    cluster = LoopbackCluster(monkeypatch, tmp_path)
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


def script(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def commands(assignment: RankAssignment, pid: int, trainer: Sequence[str]) -> list[Command]:
        assert (pid, trainer) == (os.getpid(), TRAINER)
        return [Command(("sh", "-c", text), {"ROLE": "test"}, assignment.agent.ranks)]

    monkeypatch.setattr(module, "commands", commands)


async def real(_: FakeAgent) -> None: ...


def writes(home: Path, *kinds: str) -> str:
    """Shell that writes events of rank 0."""
    fields: dict[str, dict[str, Any]] = {"start": {"pid": 7}, "result": rank_fields()}
    fields["train_start"] = {"parameters": 1}
    lines = "".join(event(kind, **fields.get(kind, {})).to_line() + "\n" for kind in kinds)
    (home / "lines").write_text(lines)
    return f"cat {home}/lines >> {home}/out/rank-0.jsonl"


def test_events_and_weights_arrive_before_exit_codes(
    cluster: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = weights_file(module.CHUNK_BYTES // 4)  # two chunks
    (home / "weights").write_bytes(weights)
    wrote = writes(home, "start", "result", "done")
    run = RunSpec.model_validate({**FIELDS["ddp"], "nodes": 1, "save_weights": True})
    trace = trace_file(run.key, 0, records=1000)  # two chunks
    trace_path(home, 0).write_bytes(trace)
    command = f"cp {home}/weights {home}/out/weights.npy && cp {trace_path(home, 0)} {home}/out && {wrote}"
    script(monkeypatch, f"test $ROLE = test && {command}")
    assert cluster.run({"node-1": real}, save_weights=True, trace="steps") == 0
    assert cluster.kinds(0) == ["start", "result", "done"]
    assert trace_path(cluster.directory, 0).read_bytes() == trace
    assert (cluster.directory / "weights.npy").read_bytes() == weights
    assert cluster.codes == [0]
    (usage,) = (cluster.directory / "usage.jsonl").read_text().splitlines()
    assert json.loads(usage)["name"] == "node-1"
    assert json.loads((home / "spec.json").read_text())["strategy"]["name"] == "ddp"
    # While it waits for ranks, the health check passes without it; from then on it does not.
    assert (home / "alive").stat().st_mtime < time.time() + 1


def test_files_of_an_earlier_start_are_not_sent(
    cluster: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "out").mkdir()
    (home / "out" / "rank-0.jsonl").write_text(event("failed", cause="long ago").to_line() + "\n")
    (home / "out" / "weights.npy").write_text("old")
    script(monkeypatch, writes(home, "start", "result", "done"))
    assert cluster.run({"node-1": real}) == 0
    assert not (cluster.directory / "weights.npy").exists()


def test_signal_of_a_killed_rank_is_reported(
    cluster: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, f"{writes(home, 'start')}; kill -9 $$")
    assert cluster.run({"node-1": real, "node-2": keeps_training}) == 1
    assert cluster.causes == {"node-1": "rank 0 was killed by SIGKILL"}
    assert cluster.codes == [1]


def test_rank_without_space_for_events_is_reported(
    cluster: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> SimpleNamespace:
        assert path == home / "out"
        return SimpleNamespace(f_bavail=2, f_frsize=4096)

    monkeypatch.setattr(os, "statvfs", full)
    script(monkeypatch, f"{writes(home, 'start')}; exit 1")
    assert cluster.run({"node-1": real, "node-2": keeps_training}) == 1
    assert cluster.kinds(0) == ["start", "failed"]
    assert "/run/shardyard" in cluster.causes["node-1"]


@pytest.mark.parametrize("deaf", [False, True])
def test_shutdown_terminates_the_processes(
    cluster: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    async def fails(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        while not (home / "pid").exists() or not (home / "pid").read_text().endswith("\n"):
            await asyncio.sleep(0.01)
        await agent.exit(1)
        await agent.wait_for_shutdown()

    monkeypatch.setattr(module, "TERMINATE_S", 0.2)
    trap = "trap '' TERM" if deaf else "trap 'exit 143' TERM"
    script(monkeypatch, f"{trap}; echo $$ > {home}/pid; while :; do sleep 0.02; done")
    assert cluster.run({"node-1": real, "node-2": fails}) == 1
    assert cluster.causes == {"node-2": "ended with exit code 1"}
    with pytest.raises(ProcessLookupError):
        os.kill(int((home / "pid").read_text()), 0)


class Mute:
    """A connection to a coordinator that is cut off the network after it has sent these messages."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._left = [*messages]
        self.aborted = False

    async def send(self, kind: str, **_: Any) -> None: ...

    async def receive(self) -> dict[str, Any]:
        if not self._left:
            await asyncio.Event().wait()
        return self._left.pop(0)

    def abort(self) -> None:
        self.aborted = True

    async def close(self) -> None: ...


def test_agent_that_is_cut_off_ends_its_processes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assignment = {"kind": "assignment", **assigned("ddp", 1).to_message(0)}
    connection = Mute(assignment, *[{"kind": "alive"}] * 3)

    async def connect(self: Agent) -> Any:
        return connection

    monkeypatch.setattr(Agent, "_connect", connect)
    monkeypatch.setattr(module, "COORDINATOR_SILENCE_S", 0.3)
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    script(monkeypatch, f"trap 'exit 143' TERM; echo $$ > {home}/pid; while :; do sleep 0.02; done")
    assert run_agent() == 1
    assert connection.aborted
    with pytest.raises(ProcessLookupError):
        os.kill(int((home / "pid").read_text()), 0)


def test_agent_that_the_coordinator_answers_is_not_cut_off(
    cluster: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COORDINATOR_SILENCE_S": 0.5, "LOOK_S": 0.02, "BEAT_S": 0.05}.items():
        monkeypatch.setattr(module, name, value)
    script(monkeypatch, f"sleep 1; {writes(home, 'start', 'result', 'done')}")
    assert cluster.run({"node-1": real}) == 0


def test_agent_reports_a_rank_that_is_suspended(
    cluster: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it goes on."""
    monkeypatch.setattr(module, "BEAT_S", 0.05)
    start = event("start", pid=1).to_line().replace('"pid": 1', '"pid": %d')
    began = f"printf '{start}\\n' $$ >> {home}/out/rank-0.jsonl"
    script(monkeypatch, f"{began}; kill -STOP $$; {writes(home, 'result', 'done')}")
    record = LiveRecord(cluster.directory)

    async def continues(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        while not (suspended := record.suspended):
            await asyncio.sleep(0.02)
        os.kill(suspended[0], signal.SIGCONT)
        while record.suspended:
            await asyncio.sleep(0.02)
        await agent.report_success()
        await agent.exit()
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": real, "node-2": continues}) == 0


# Before ranks are assigned


def run_agent() -> int:
    return asyncio.run(asyncio.wait_for(Agent("node", "ddp").run(), 10))


def test_agent_without_coordinator_times_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(module, "CONNECT_S", 0.15)
    monkeypatch.setattr(asyncio, "open_connection", refuse)
    with pytest.raises(AssignmentError, match="no coordinator"):
        run_agent()
    assert (home / "alive").exists()


def test_agent_stopped_while_it_connects(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        loopback_cluster.terminate_this_process()
        raise OSError("Name or service not known")

    monkeypatch.setattr(asyncio, "open_connection", refuse)
    with pytest.raises(AssignmentError, match="stopped before"):
        run_agent()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"kind": "rejected", "cause": "too late"}, "too late"),
        ({"kind": "shutdown"}, "the coordinator cancelled the run; its log says why"),
        (None, "the coordinator has ended"),
    ],
)
def test_agent_without_assignment_reports_the_cause(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: dict[str, Any] | None,
    reason: str,
) -> None:
    class Answer:
        async def send(self, kind: str, **_: Any) -> None:
            assert kind == "hello"

        async def receive(self) -> dict[str, Any] | None:
            return answer

        async def close(self) -> None: ...

    async def connect(self: Agent) -> Any:
        return Answer()

    monkeypatch.setattr(Agent, "_connect", connect)
    assert module.main("node", "ddp") == 1
    assert capsys.readouterr().err == f"node: {reason}\n"


# Warm containers


class Parent:
    """A fake warm parent. reasons: why it is replaced before each run."""

    pid = 4711
    command = ("client", "name")

    def __init__(self, *reasons: str | None, failure: str | None = None) -> None:
        self.ensured = 0
        self.waited_s: list[float] = []
        self._reasons, self._failure = reasons, failure

    def ensure(self) -> str | None:
        self.ensured += 1
        return self._reasons[self.ensured - 1]

    def refuse_waiting(self) -> None: ...

    def failure(self, within_s: float = 0.0) -> str | None:
        self.waited_s.append(within_s)
        return self._failure


@dataclass
class Served:
    """What a warm agent did until the coordinator was gone."""

    code: int
    hellos: list[dict[str, Any]]
    kept: list[set[int]]  # processes, after each run
    cleaned: list[str | None]  # what was left, after each run
    parent: Parent


Serve = Callable[..., Served]


@pytest.fixture
def serve(home: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Let a warm agent get these answers, one for each of its connections."""

    def run(role: str, parent: Parent, *answers: dict[str, Any] | None, clean: Any = None) -> Served:
        left = [*answers]
        served = Served(-1, [], [], [], parent)

        class Answers:
            cleaned = False

            async def send(self, kind: str, **fields: Any) -> None:
                if kind == "clean":
                    self.cleaned = True
                    served.cleaned.append(fields["left"])
                else:
                    assert kind == "hello"
                    served.hellos.append(fields)

            async def receive(self) -> dict[str, Any] | None:
                return None if self.cleaned else left.pop(0)

            async def close(self) -> None: ...

        async def connect(self: Agent) -> Any:
            return Answers()

        monkeypatch.setattr(Agent, "_connect", connect)
        monkeypatch.setattr(module, "ParentProcess", lambda *_: parent)
        take = served.kept.append
        monkeypatch.setattr(module, "settings", lambda pids: dict.fromkeys(pids))
        monkeypatch.setattr(module, "remove_traces", clean or (lambda kept, _: take({*kept})))
        monkeypatch.setattr(module, "RETRY_S", 0.0)
        served.code = module.main(role, "ddp", warm=True)
        assert left == []
        return served

    return run


def test_warm_agent_takes_runs_until_the_coordinator_is_gone(serve: Serve) -> None:
    surplus, rejected = {"kind": "shutdown"}, {"kind": "rejected", "cause": "too late"}
    served = serve("node", Parent(None, "it grew", None), surplus, rejected, None)
    assert served.code == 0
    assert [hello["replaced"] for hello in served.hellos] == [None, "it grew", None]
    assert served.kept == [{os.getpid(), Parent.pid}]
    assert served.cleaned == [None]


def test_health_check_passes_while_the_warm_parent_starts(
    serve: Serve, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_s: list[float] = []

    def ensure(self: Parent) -> None:
        left_s.append((home / "alive").stat().st_mtime - time.time())

    def clean(kept: Any, refuse_forks: Any) -> None:
        (home / "alive").unlink()

    monkeypatch.setattr(Parent, "ensure", ensure)
    serve("node", Parent(), {"kind": "shutdown"}, None, clean=clean)
    assert len(left_s) == 2
    assert min(left_s) > 2 * START_S


def test_launcher_needs_no_warm_parent(serve: Serve) -> None:
    served = serve("launcher", Parent(), {"kind": "shutdown"}, None)
    assert (served.code, served.parent.ensured) == (0, 0)


def test_warm_agent_without_a_parent_fails(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: Parent) -> None:
        raise ParentError("it did not start")

    monkeypatch.setattr(Parent, "ensure", fail)
    assert serve("node", Parent()).code == 1
    assert capsys.readouterr().err == "node: it did not start\n"


def test_warm_agent_reports_what_it_cannot_remove(serve: Serve) -> None:
    def fail(kept: Any, refuse_forks: Any) -> str:
        return "a process"

    served = serve("node", Parent(None, None), {"kind": "shutdown"}, None, clean=fail)
    assert served.cleaned == ["a process"]


def warm(parent: Parent) -> Agent:
    return Agent("node", "ddp", parent)  # type: ignore[arg-type]


@pytest.mark.parametrize("parent", [Parent(), None], ids=["warm", "cold"])
def test_signal_to_a_warm_container_is_reported_for_its_ranks(home: Path, parent: Parent | None) -> None:
    """The engine sends one to a cold container when its run is over."""
    (home / "out").mkdir(parents=True, exist_ok=True)
    agent = Agent("node", "ddp", parent)  # type: ignore[arg-type]
    agent._stop(signal.SIGTERM)
    agent._report_signal([2, 3])
    found = [(each.rank, each.kind, each.fields["signal"]) for each in EventReader(home / "out").new()]
    assert found == ([(2, "died", "SIGTERM"), (3, "died", "SIGTERM")] if parent else [])


def test_ranks_are_started_by_the_warm_parent_s_client() -> None:
    assert warm(Parent())._trainer == Parent.command
    assert Agent("node", "ddp")._trainer == TRAINER


def test_loss_of_the_warm_parent() -> None:
    killed = Parent(failure="was killed by SIGKILL")
    assert warm(killed)._loss({0: -9}) == "was killed by SIGKILL"
    assert killed.waited_s == [0.0]
    assert warm(killed)._loss({0: UNAVAILABLE}) == "was killed by SIGKILL"
    assert killed.waited_s[1] > 0  # its exit may be seen later than the broken connection


def test_rank_that_was_not_forked_is_a_loss() -> None:
    assert warm(Parent())._loss({0: 0, 1: UNAVAILABLE})
    assert warm(Parent())._loss({0: 1, 1: -9}) is None
    assert Agent("node", "ddp")._loss({0: 1}) is None


# Open MPI


def write_files(name: str) -> None:
    """Write the files of an agent of an MPI run."""
    assignment = assigned("mpi", 10, 2)
    role = "launcher" if name == "launcher" else "node"
    Agent(role, "mpi")._write_files(replace(assignment, index=index_of(assignment, name)))


def test_launcher_writes_known_hosts(home: Path) -> None:
    write_files("launcher")
    known = (home / "ssh" / "known_hosts").read_text()
    assert known == "[10.0.0.2]:2222 key-2\n[10.0.0.10]:2222 key-10\n"
    assert (home / "hosts").read_text() == "10.0.0.2 slots=1\n10.0.0.10 slots=1\n"
    assert f"UserKnownHostsFile {home}/ssh/known_hosts" in (home / "ssh" / "config").read_text()
    assert not (home / "ssh" / "authorized_keys").exists()


def test_node_authorizes_only_the_launcher(home: Path) -> None:
    write_files("node-10")
    key = (home / "ssh" / "authorized_keys").read_text()
    assert key == 'restrict,from="10.0.0.100" key-of-launcher\n'
    assert not (home / "ssh" / "known_hosts").exists()
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


def test_rank_without_assignment_times_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_rank, "ASSIGNMENT_S", 0.05)
    start = time.monotonic()
    with pytest.raises(SystemExit, match="no rank assignment"):
        mpi_rank.main()
    assert time.monotonic() - start < 5


def test_node_serves_ssh_until_shutdown_or_sshd_exits(home: Path) -> None:
    class Sshd:
        returncode: int | None = None
        terminated = False

        def poll(self) -> int | None:
            return self.returncode

        def terminate(self) -> None:
            self.terminated = True

    async def serve(code: int | None) -> tuple[Any, Sshd]:
        agent = Agent("node", "mpi")
        sshd = Sshd()
        sshd.returncode = code
        agent._sshd = sshd  # type: ignore[assignment]
        asyncio.get_running_loop().call_later(0.05, agent._shutdown.set)
        return await agent._serve_ssh(()), sshd

    ended, _ = asyncio.run(serve(255))
    assert ended == ({}, "sshd ended with exit code 255")
    ended, sshd = asyncio.run(serve(None))
    assert ended == ({}, None)
    assert sshd.terminated


def test_node_ends_the_ranks_of_mpirun_and_waits_for_their_reports(home: Path, tmp_path: Path) -> None:
    report, up = tmp_path / "report", tmp_path / "up"
    ends = f"trap 'sleep 0.3; echo ended > {report}; exit' TERM; touch {up}; while :; do sleep 0.05; done"
    rank = subprocess.Popen(["sh", "-c", ends])
    try:
        while not up.exists():
            time.sleep(0.01)
        agent = Agent("node", "mpi")
        agent._pids = {0: rank.pid, 1: 2**22 + 1}  # no process has the second number
        agent._shutdown.set()
        asyncio.run(agent._serve_ssh(()))
    finally:
        rank.kill()
        rank.wait()
    assert report.read_text() == "ended\n"


# Runs that continue without a lost rank

CONTINUES: dict[str, Any] = {
    "strategy": "gossip",
    "transport": "gloo",
    "on_loss": "continue",
    "faults": [{"kill": {"node": 0, "return_after": 0.05}, "at": {"epoch": 1}}],
}
LATER = 4e9  # events are sorted by time, and the agent writes one of its own between these
FAULT = event("fault", fault=0, action="kill", epoch=1, step=0, second=0.5)
STARTS = [event("start", pid=7), event("train_start", parameters=1)]
ENDS = [event("result", time=LATER, **rank_fields()), event("done", time=LATER)]
AGAIN = event("start", time=LATER, pid=8, incarnation=1)
WAITS = event("waiting", time=LATER, incarnation=1)
TRAINS_AGAIN = event("train_start", time=LATER, parameters=1)


def lines(*events: Event) -> str:
    return "".join(event.to_line() + "\n" for event in events)


def dies_and_returns(home: Path, *again: str) -> str:
    """Shell of rank 0, which its fault kills; started again, it does the rest."""
    (home / "first").write_text(lines(*STARTS, FAULT))
    (home / "second").write_text(lines(AGAIN, WAITS, TRAINS_AGAIN, *ENDS))
    out = f"{home}/out/rank-0.jsonl"
    return "; ".join(
        [
            f"if [ -z $SHARDYARD_INCARNATION ]; then cat {home}/first >> {out}; sleep 0.1; kill -9 $$; fi",
            f"echo $SHARDYARD_INCARNATION >> {home}/started",
            *(again or [f"cat {home}/second >> {out}"]),
        ]
    )


def memberships(home: Path) -> dict[int, int]:
    """The incarnations of the ranks that are alive, by the file that this agent's ranks read."""
    return Membership.read(home / "membership.json").incarnations("member", "waiting")


async def trains(agent: FakeAgent) -> None:
    """The other rank of the run, which finishes when rank 0 has returned."""
    await agent.receive_assignment()
    await agent.send_event("start", pid=7)
    await agent.send_event("train_start", parameters=1)
    incarnations: dict[int, int] = {}
    while incarnations != {0: 1, 1: 0}:
        message = await agent.receive()
        assert message is not None
        incarnations = {
            member["rank"]: member["incarnation"]
            for member in message["ranks"]
            if member["state"] != "lost"
        }
    await agent.send_event("result", **rank_fields())
    await agent.send_event("done")
    await agent.exit()
    await agent.wait_for_shutdown()


def test_agent_starts_a_killed_rank_again(
    cluster: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, dies_and_returns(home))
    assert cluster.run({"node-1": real, "node-2": trains}, **CONTINUES) == 0
    assert cluster.kinds(0) == [
        *("start", "train_start", "fault", "died"),
        *("start", "waiting", "train_start", "result", "done"),
    ]
    assert (home / "started").read_text().split() == ["1"]
    assert cluster.codes == [0]


def test_ranks_see_who_is_alive(
    cluster: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start, after a loss of another rank, and after its return."""
    seen = []

    async def watch(expected: dict[int, int]) -> None:
        async with asyncio.timeout(5):
            while memberships(home) != expected:
                await asyncio.sleep(0.01)
        seen.append(expected)

    async def returns(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        async with asyncio.timeout(5):
            while not (home / "membership.json").exists():
                await asyncio.sleep(0.01)
        await watch({0: 0, 1: 0})
        async with asyncio.timeout(5):
            while not (cluster.directory / "rank-0.jsonl").exists() or len(cluster.kinds(0)) < 2:
                await asyncio.sleep(0.01)
        for kind, fields in {"start": {"pid": 7}, "train_start": {"parameters": 1}}.items():
            await agent.send_event(kind, **fields)
        await agent.send_event("died", cause="killed by SIGKILL", signal="SIGKILL")
        await watch({0: 0})
        await agent.send_event("start", pid=8, incarnation=1)
        await agent.send_event("waiting", incarnation=1)
        await watch({0: 0, 1: 1})
        (home / "go").touch()
        while (message := await agent.receive()) and message["kind"] != "shutdown":
            pass
        await agent.send_event("terminated", cause="stopped by SIGTERM")
        await agent.exit(143)

    first, last = writes(home, "start", "train_start"), f"{home}/last"
    Path(last).write_text(lines(*ENDS))
    wait = f"until [ -e {home}/go ]; do sleep 0.02; done; cat {last} >> {home}/out/rank-0.jsonl"
    script(monkeypatch, f"{first}; {wait}")
    assert cluster.run({"node-1": real, "node-2": returns}, **CONTINUES) == 0
    assert len(seen) == 3


def test_killed_rank_is_not_started_again_after_shutdown(
    cluster: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def finishes(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_event("start", pid=7)
        await agent.send_event("train_start", parameters=1)
        await agent.receive()
        await agent.send_event("result", **rank_fields())
        await agent.send_event("done")
        await agent.exit()
        await agent.wait_for_shutdown()

    late = [{"kill": {"node": 0, "return_after": 60}, "at": {"epoch": 1}}]
    script(monkeypatch, dies_and_returns(home))
    assert cluster.run({"node-1": real, "node-2": finishes}, **{**CONTINUES, "faults": late}) == 0
    assert cluster.kinds(0) == ["start", "train_start", "fault", "died"]
    assert not (home / "started").exists()


def test_rank_that_has_returned_ends_at_shutdown(
    cluster: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the others to let it join, and they have finished."""
    (home / "again").write_text(lines(AGAIN, WAITS))
    waits = f"echo $$ > {home}/pid; cat {home}/again >> {home}/out/rank-0.jsonl; exec sleep 60"
    script(monkeypatch, dies_and_returns(home, waits))
    assert cluster.run({"node-1": real, "node-2": trains}, **CONTINUES) == 0
    assert cluster.kinds(0) == ["start", "train_start", "fault", "died", "start", "waiting"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((home / "pid").read_text()), 0)
