"""Mistakes of an agent: events that are late, processes that outlive it, wrong files, causes, commands."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.cluster_support import assigned, index_of
from tests.unit.conftest import event, rank_fields
from tests.unit.loopback_cluster import terminate_this_process, trace_file, weights_file
from trainer.core.events import EventReader
from trainer.core.membership import Membership
from trainer.core.trace import trace_path
from trainer.node import agent as module
from trainer.node import mpi_rank, serving
from trainer.node.agent import Agent
from trainer.node.commands import TRAINER, Command
from trainer.node.home import Home
from trainer.node.rank_assignment import AssignmentError, RankAssignment
from trainer.node.run_record import membership_of
from trainer.node.site import CONTAINERS, Site
from trainer.warm.client import UNAVAILABLE
from trainer.warm.process import START_S, ParentError

Patch = pytest.MonkeyPatch
Shell = Callable[[str], None]
Messages = list[dict[str, Any]]


@pytest.fixture
def home(monkeypatch: Patch, tmp_path: Path) -> Path:
    """The directory that stands in for /run/shardyard, for `module.Agent`."""
    home = Home(tmp_path / "home")
    for owner in (module, serving):
        monkeypatch.setattr(owner, "CONTAINER", home)
        monkeypatch.setattr(owner, "Agent", partial(Agent, home=home))
    home.ssh.mkdir(parents=True)
    return home.path


@pytest.fixture
def shell(monkeypatch: Patch) -> Shell:
    """Let the process of the agent's ranks be such a script."""

    def commands(
        text: str, assignment: RankAssignment, home: Home, pid: int, trainer: Sequence[str]
    ) -> list[Command]:
        assert pid == os.getpid()
        assert trainer in (TRAINER, Parent.command)
        return [Command(("sh", "-c", text), {"ROLE": "test"}, assignment.agent.ranks)]

    return lambda text: monkeypatch.setattr(module, "commands", partial(commands, text))


class Scripted:
    """A connection over which messages arrive, one in `every_s`, and which ends after `last`."""

    def __init__(self, *messages: dict[str, Any], every_s: float = 0.0, last: Any = None) -> None:
        self._left, self._every_s, self._last = [*messages], every_s, last
        self.sent: Messages = []
        self.aborted = False

    async def send(self, kind: str, body: bytes | None = None, **fields: Any) -> None:
        self.sent.append({"kind": kind, **fields} | ({} if body is None else {"body": body}))

    async def receive(self) -> dict[str, Any] | None:
        await asyncio.sleep(self._every_s)
        if not self._left and self._last:
            await self._last(self)
        return self._left.pop(0) if self._left else None

    def abort(self) -> None:
        self.aborted = True

    async def close(self) -> None: ...

    def of(self, kind: str) -> Messages:
        """The messages of this kind that were sent."""
        return [each for each in self.sent if each["kind"] == kind]

    @property
    def events(self) -> list[str]:
        """The kinds of the events that were sent."""
        lines = b"\n".join(each["body"] for each in self.of("events")).splitlines()
        return [json.loads(line)["kind"] for line in lines]


def until_sent(kind: str) -> Callable[[Scripted], Awaitable[None]]:
    """The end of a connection, once a message or an event of this kind has been sent."""
    return lambda connection: until(lambda: connection.of(kind) or kind in connection.events)


def connects_to(monkeypatch: Patch, *connections: Any) -> None:
    """Let agents have these connections, one after the other."""
    left = [*connections]

    async def connect(self: Agent) -> Any:
        return left.pop(0)

    monkeypatch.setattr(Agent, "_connect", connect)


FIELDS_OF: dict[str, dict[str, Any]] = {
    "start": {"pid": 7},
    "train_start": {"parameters": 1},
    "result": rank_fields(),
    "fault": {"fault": 0, "action": "kill", "epoch": 1, "step": 0, "second": 0.5},
}


def lines(*kinds: str, **fields: Any) -> str:
    """Events of rank 0 with these fields."""
    return "".join(event(kind, **FIELDS_OF.get(kind, {}), **fields).to_line() + "\n" for kind in kinds)


def writes(home: Path, *kinds: str) -> str:
    """Shell that writes events of rank 0."""
    (home / "lines").write_text(lines(*kinds))
    return f"cat {home}/lines >> {home}/out/rank-0.jsonl"


def runs_until_sigterm(home: Path, trap: str = "exit 143") -> str:
    """Shell that writes its PID, and does this on SIGTERM."""
    begin = f"trap '{trap}' TERM; echo $$ > {home}/new; mv {home}/new {home}/pid"
    return f"{begin}; while :; do sleep 0.02; done"


def has_ended(home: Path) -> bool:
    """Whether the process of the shell has ended that wrote its PID."""
    return not Path(f"/proc/{int((home / 'pid').read_text())}").exists()


async def until(reached: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not reached():
            await asyncio.sleep(0.01)


def run_agent() -> int:
    return asyncio.run(asyncio.wait_for(module.Agent("node", "ddp").run(), 10))


def assignment_of(*ordinals: int, site: Site = CONTAINERS, **fields: Any) -> dict[str, Any]:
    """The message that assigns rank 0."""
    assignment = replace(assigned("ddp", *ordinals, **fields), site=site)
    return {"kind": "assignment", **assignment.to_message(0)}


def test_events_and_files_of_this_run_are_sent_before_exit_codes(
    home: Path, monkeypatch: Patch, shell: Shell
) -> None:
    (home / "out").mkdir()
    (home / "out" / "rank-0.jsonl").write_text(lines("failed", cause="of an earlier run"))
    files = {
        "weights": weights_file(module.MAX_BODY_BYTES // 4),
        "trace": trace_file("run", 0, records=2000),
    }
    for kind, content in files.items():  # of two parts
        (home / kind).write_bytes(content)
    copies = f"cp {home}/weights {home}/out/weights.npy && cp {home}/trace {trace_path(home / 'out', 0)}"
    shell(f"test $ROLE = test && {copies} && {writes(home, 'start', 'result', 'done')}")
    connection = Scripted(assignment_of(1), last=until_sent("exit"))
    connects_to(monkeypatch, connection)
    assert run_agent() == 0
    kinds = ["events", "weights", "weights", "trace", "trace", "exit"]
    assert [each["kind"] for each in connection.sent if each["kind"] in kinds] == kinds
    assert connection.events == ["start", "result", "done"]
    for kind, content in files.items():
        assert b"".join(each["body"] for each in connection.of(kind)) == content
        assert [each["last"] for each in connection.of(kind)] == [False, True]
    assert json.loads((home / "spec.json").read_text())["strategy"]["name"] == "ddp"
    # While it waits for ranks, the health check passes without it; from then on it does not.
    assert (home / "alive").stat().st_mtime < time.time() + 1


@pytest.mark.parametrize(
    ("trap", "code", "cut_off"), [("", -9, False), ("exit 143", 143, False), ("exit 143", 143, True)]
)
def test_processes_end_with_the_run_and_without_a_coordinator(
    home: Path, monkeypatch: Patch, shell: Shell, trap: str, code: int, cut_off: bool
) -> None:
    for name, value in {"TERMINATE_S": 0.2, "COORDINATOR_SILENCE_S": 0.3, "LOOK_S": 0.02}.items():
        monkeypatch.setattr(module, name, value)
    full_disk = SimpleNamespace(f_bavail=2, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", {home / "out": full_disk}.__getitem__)
    answers = [{"kind": "alive"}] * 8  # for longer than the limit
    last = until_sent("never") if cut_off else None
    assignment = assignment_of(1, site=Site(silence_s=0.15))
    connection = Scripted(assignment, *answers, every_s=0.05, last=last)
    connects_to(monkeypatch, connection)
    shell(runs_until_sigterm(home, trap))
    assert run_agent() == 1
    assert has_ended(home)
    assert connection.aborted == cut_off
    (ended,) = connection.of("exit")
    assert (ended["codes"], ended["full"]) == ({0: code}, str(home))


def test_agent_reports_processes_that_are_suspended(home: Path) -> None:
    agent, connection = module.Agent("launcher", "mpi"), Scripted()
    with subprocess.Popen(["sleep", "60"]) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        agent._pids = {3: process.pid, 4: os.getpid()}
        agent._processes = [(Command((), {}, ()), process)]  # type: ignore[list-item]
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(agent._beat(connection), 0.05))  # type: ignore[arg-type]
        process.kill()
    assert connection.sent == [{"kind": "alive", "suspended": [3], "mpirun": process.pid}]


# Before ranks are assigned


@pytest.mark.parametrize(("stopped", "cause"), [(False, "no coordinator"), (True, "stopped before")])
def test_agent_without_coordinator_ends(home: Path, monkeypatch: Patch, stopped: bool, cause: str) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        if stopped:
            terminate_this_process()
        raise OSError("Name or service not known")

    monkeypatch.setattr(module, "CONNECT_S", 60 if stopped else 0.15)
    monkeypatch.setattr(asyncio, "open_connection", refuse)
    with pytest.raises(AssignmentError, match=cause):
        run_agent()
    assert (home / "alive").exists()


# Warm containers


class Parent:
    """A fake warm parent. reasons: why it is replaced before each run."""

    pid = 4711
    command = ("client", "name")

    def __init__(self, *reasons: str | None, failure: str | None = None) -> None:
        self.waited_s: list[float] = []
        self._reasons, self._failure = [*reasons], failure

    def ensure(self) -> str | None:
        # It takes a while, in which the health check passes.
        assert module.CONTAINER.alive.stat().st_mtime > time.time() + 2 * START_S
        return self._reasons.pop(0)

    def refuse_waiting(self) -> None: ...

    def failure(self, within_s: float = 0.0) -> str | None:
        self.waited_s.append(within_s)
        return self._failure


def warm(parent: Parent | None) -> Agent:
    return module.Agent("node", "ddp", parent, clean_up=parent and (lambda: None))  # type: ignore[arg-type]


SURPLUS = {"kind": "shutdown"}


def serve(monkeypatch: Patch, role: str, parent: Parent, *answers: Any) -> tuple[int, list[Messages]]:
    """Let a warm agent get these answers, then no coordinator. Returns its code, and what it has sent."""
    connections = [*map(Scripted, answers), Scripted()]
    connects_to(monkeypatch, *connections)
    monkeypatch.setattr(serving, "ParentProcess", lambda *_: parent)
    monkeypatch.setattr(serving, "settings", lambda pids: dict.fromkeys(pids))
    monkeypatch.setattr(serving, "remove_traces", lambda kept, _: f"{[*kept]} were kept")
    monkeypatch.setattr(serving, "RETRY_S", 0.0)
    return serving.serve_container(role, "ddp", warm=True), [each.sent for each in connections]


def test_warm_agent_takes_runs_until_the_coordinator_is_gone(home: Path, monkeypatch: Patch) -> None:
    parent, rejected = Parent(None, "it grew", None), {"kind": "rejected", "cause": "too late"}
    code, sent = serve(monkeypatch, "node", parent, SURPLUS, rejected)
    hellos = [{"kind": "hello", "public_keys": {}, "replaced": why} for why in (None, "it grew", None)]
    clean = {"kind": "clean", "left": f"{[os.getpid(), Parent.pid]} were kept"}
    assert (code, sent) == (0, [[hellos[0], clean], [hellos[1]], [hellos[2]]])


@pytest.mark.parametrize("parent", [Parent(), None], ids=["warm", "cold"])
def test_signal_to_a_warm_container_is_reported_for_its_ranks(home: Path, parent: Parent | None) -> None:
    """The engine sends one to a cold container when its run is over."""
    (home / "out").mkdir()
    agent = warm(parent)
    agent._stop(signal.SIGTERM)
    agent._report_signal([2, 3])
    found = [(each.rank, each.kind, each.fields["signal"]) for each in EventReader(home / "out").new()]
    assert found == ([(2, "died", "SIGTERM"), (3, "died", "SIGTERM")] if parent else [])
    assert agent._trainer == (Parent.command if parent else TRAINER)


def test_loss_of_the_warm_parent(home: Path) -> None:
    killed = Parent(failure="was killed by SIGKILL")
    assert warm(killed)._loss({0: -9}) == "was killed by SIGKILL"
    assert killed.waited_s == [0.0]
    assert warm(killed)._loss({0: UNAVAILABLE}) == "was killed by SIGKILL"
    assert killed.waited_s[1] > 0  # its exit may be seen later than the broken connection
    assert warm(Parent())._loss({0: 0, 1: UNAVAILABLE})  # that was not forked
    assert warm(Parent())._loss({0: 1, 1: -9}) is None


# Outside of containers


class Started(Parent):
    """The warm parent of an agent that is no container, and cannot be started for the second run."""

    def __init__(self, name: str, _: Any) -> None:
        super().__init__(None)
        self.name, self.waits, self.closed = name, 0, False

    def ensure(self) -> str | None:
        if not self._reasons:
            raise ParentError("no memory left")
        return self._reasons.pop(0)

    def wait_until_idle(self) -> None:
        self.waits += 1

    def close(self) -> None:
        self.closed = True


def test_agent_of_a_connection_that_stays_takes_runs_and_removes_its_files(
    tmp_path: Path, monkeypatch: Patch, shell: Shell
) -> None:
    directory, parents, files = tmp_path / "own", list[Started](), list[set[str]]()

    async def over_stdio(_: Any) -> Scripted:
        return connection

    class Noting(Scripted):
        async def receive(self) -> dict[str, Any] | None:
            files.append({path.name for path in directory.iterdir()})
            return await super().receive()

    def parent(*arguments: Any) -> Started:
        parents.append(Started(*arguments))
        return parents[-1]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serving, "ParentProcess", parent)
    monkeypatch.setattr(serving, "over_stdio", over_stdio)
    shell("exit 0")
    begin, late = {"kind": "begin", "warm": True}, {"kind": "alive"}
    run = [begin, assignment_of(1)]
    connection = Noting(*run, SURPLUS, late, begin, SURPLUS, every_s=0.05)
    assert serving.serve_stream("node", "10.0.0.1", directory) == 0
    first, second = connection.of("hello")
    assert (first["address"], first["sources"]) == ("10.0.0.1", serving.own_digest())
    assert 0 < first["port"] < 2**16
    assert (first["refusal"], second["refusal"]) == (None, "no memory left")
    assert [each["usage"] for each in connection.of("exit")] == [None]
    assert connection.of("clean") == [{"kind": "clean", "left": None}] * 2
    assert [files[0], files[3], files[-1]] == [{"lock"}] * 3  # between two runs
    (own,) = parents
    assert (own.name, own.waits, own.closed) == ("own", 2, True)
    assert not directory.exists()


def test_node_that_cannot_start_ranks_says_why(home: Path, monkeypatch: Patch) -> None:
    site = Site(seen={str(home / "missing"): "0" * 64})
    connection = Scripted(assignment_of(1, site=site), last=until_sent("exit"))
    connects_to(monkeypatch, connection)
    assert run_agent() == 1
    (ended,) = connection.of("exit")
    assert (ended["codes"], f"does not see {home}" in ended["cause"]) == ({}, True)


# Open MPI


def test_files_of_an_mpi_run_let_only_the_launcher_reach_the_nodes(home: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("SHARDYARD_CPU_QUOTA", "1")  # of each container

    def write_files(role: str, name: str) -> dict[str, str]:
        assignment = assigned("mpi", 10, 2, processes_per_node=2, node_speed={1: 0.5})
        module.Agent(role, "mpi")._write_files(replace(assignment, index=index_of(assignment, name)))
        return {path.name: path.read_text() for path in home.rglob("*") if path.is_file()}

    files = write_files("launcher", "launcher")
    assert files.keys() == {"spec.json", "known_hosts", "config", "hosts"}
    assert files["known_hosts"] == "[10.0.0.2]:2222 key-2\n[10.0.0.10]:2222 key-10\n"
    assert files["hosts"] == "10.0.0.2 slots=2\n10.0.0.10 slots=2\n"
    assert f"UserKnownHostsFile {home}/ssh/known_hosts" in files["config"]
    faster = json.loads(write_files("node", "node-2")["rank.json"])["environment"]
    added = {name: text for name, text in write_files("node", "node-10").items() if name not in files}
    rank = json.loads(added.pop("rank.json"))
    assert added == {"authorized_keys": 'restrict,from="10.0.0.100" key-of-launcher\n'}
    assert rank["environment"]["SHARDYARD_CONSOLE"] == f"/proc/{os.getpid()}/fd/1"
    assert [each["SHARDYARD_CPU_QUOTA"] for each in (faster, rank["environment"])] == ["1", "0.5"]
    assert rank["argv"] == [*TRAINER]


def test_environment_of_the_node_overrides_that_of_ssh(home: Path, monkeypatch: Patch) -> None:
    executed: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *arguments: executed.extend(arguments))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("SHARDYARD_OUT", "of the shell")
    command = {"argv": ["/bin/trainer", "of", "a", "rank"], "environment": {"SHARDYARD_OUT": "/out"}}
    (home / "rank.json").write_bytes(json.dumps(command).encode())
    mpi_rank.main(home / "rank.json")
    assert executed[:2] == ["/bin/trainer", command["argv"]]
    assert executed[2].items() >= {"OMPI_COMM_WORLD_RANK": "1", "SHARDYARD_OUT": "/out"}.items()


def test_node_ends_the_ranks_of_mpirun_and_waits_for_their_reports(home: Path) -> None:
    trap = f"sleep 0.2; echo ended > {home}/report; exit"
    with subprocess.Popen(["sh", "-c", runs_until_sigterm(home, trap)]) as rank:
        asyncio.run(until((home / "pid").exists))
        agent = module.Agent("node", "mpi")
        agent._pids = {0: rank.pid, 1: 2**22 + 1}  # no process has the second number
        agent._shutdown.set()
        asyncio.run(agent._serve_ssh(()))
        assert (home / "report").exists()
        rank.kill()


# Runs that continue without a lost rank

LATER = 4e9  # events are sorted by time, and the agent writes one of its own between these
BEFORE = ["start", "train_start", "fault"]
AGAIN = ["start", "waiting"]
REST = ["train_start", "result", "done"]


def continues(after_s: float = 0.05) -> dict[str, Any]:
    """A run that starts rank 0 again once its fault has killed it."""
    kill = {"kill": {"node": 0, "return_after": after_s}, "at": {"epoch": 1}}
    return {"strategy": "gossip", "transport": "gloo", "on_loss": "continue", "faults": [kill]}


def dies_and_returns(home: Path, *rest: str) -> str:
    """Shell of rank 0, which its fault kills; started again, it does the rest, or waits to join."""
    (home / "first").write_text(lines(*BEFORE))
    again = lines("start", "waiting", time=LATER, incarnation=1)
    (home / "second").write_text(again + lines(*rest, time=LATER))
    out = f"{home}/out/rank-0.jsonl"
    dies = f"if [ -z $SHARDYARD_INCARNATION ]; then cat {home}/first >> {out}; sleep 0.1; kill -9 $$; fi"
    returns = (
        f"echo $SHARDYARD_INCARNATION >> {home}/started; echo $$ > {home}/pid; cat {home}/second >> {out}"
    )
    return f"{dies}; {returns}; {'exit 0' if rest else 'exec sleep 60'}"


@pytest.mark.parametrize(
    ("after_s", "rest", "last", "events", "code"),
    [
        (0.05, REST, "exit", [*BEFORE, "died", *AGAIN, *REST], 0),
        (0.05, [], "waiting", [*BEFORE, "died", *AGAIN], -15),  # the others have finished
        (60, [], "died", [*BEFORE, "died"], -9),
    ],
    ids=["joins", "waits", "ends before it returns"],
)
def test_agent_starts_a_killed_rank_again(
    home: Path,
    monkeypatch: Patch,
    shell: Shell,
    after_s: float,
    rest: Any,
    last: str,
    events: Any,
    code: int,
) -> None:
    connection = Scripted(assignment_of(1, 2, **continues(after_s)), last=until_sent(last))
    connects_to(monkeypatch, connection)
    shell(dies_and_returns(home, *rest))
    assert run_agent() == (code != 0)
    assert connection.events == events
    assert connection.of("exit")[0]["codes"] == {0: code}
    assert (home / "started").exists() == ("waiting" in events)
    assert after_s > 1 or (home / "started").read_text() == "1\n"


def test_ranks_read_who_is_alive(home: Path) -> None:
    def alive() -> dict[int, int]:
        return Membership.read(home / "membership.json").incarnations("member", "waiting")

    agent = module.Agent("node", "ddp")
    assignment = assigned("ddp", 1, 2, **continues())
    agent._write_files(assignment)
    assert alive() == {0: 0, 1: 0}
    other = membership_of(assigned("ddp", 1, 2, 3, **continues()))
    assert other
    news: Any = Scripted({"kind": "membership", **other.current.model_dump()})
    asyncio.run(agent._wait_for_shutdown(assignment, news))
    assert alive() == {0: 0, 1: 0, 2: 0}
