"""Mistakes in the nodes' own network, with warm parents that fail, with ranks that are lost and return."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator import cli
from orchestrator.errors import InputError
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.launch_plan import LaunchPlan, Process
from orchestrator.runtimes.local import namespace
from orchestrator.runtimes.local.lost_ranks import LostRanks
from orchestrator.runtimes.local.namespace import NamespaceError, PrivateNetwork
from orchestrator.runtimes.local.runtime import LocalCluster, LocalRun, LocalRuntime
from tests.support.processes import wait_until
from tests.unit.conftest import event
from trainer.spec.output_limits import OutputLimits
from trainer.spec.run_spec import RunSpec
from trainer.warm.process import ParentError

REASON = "no namespaces on this machine"


def run(transport: str) -> RunSpec:
    return RunSpec.model_validate({"strategy": "one_shot", "transport": transport, "nodes": 2})


@pytest.fixture
def impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that permits no namespace."""

    def refuse() -> list[int]:
        raise NamespaceError(REASON)

    monkeypatch.setattr(namespace, "_created", refuse)


@pytest.fixture
def private() -> Iterator[PrivateNetwork]:
    created = PrivateNetwork()
    if reason := created.unavailable_reason:
        pytest.skip(reason)
    yield created
    created.close()


def inside(private: PrivateNetwork, code: str) -> str:
    """What code prints in the namespace."""
    command = [*private.prefix, sys.executable, "-S", "-c", f"import os, socket\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_namespace_has_a_loopback_interface_and_the_callers_user_only(private: PrivateNetwork) -> None:
    name = f"shardyard-test-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as outside,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        abstract.bind(f"\0{name}")
        abstract.listen()
        code = f"""
listener = socket.create_server(("127.0.0.1", 0))
socket.create_connection(listener.getsockname())
print([name for _, name in socket.if_nameindex()], os.getuid(), os.getgid(), os.getppid())
print(os.strerror(socket.socket().connect_ex({outside.getsockname()})))
print(os.strerror(socket.socket(socket.AF_UNIX).connect_ex("\\0{name}")))
"""
        own, *others = inside(private, code).splitlines()
    assert own == f"['lo'] {os.getuid()} {os.getgid()} {os.getpid()}"
    assert others == ["Connection refused"] * 2


def test_namespace_ends_with_its_descriptors(private: PrivateNetwork) -> None:
    paths = [option.partition("=")[2] for option in private.prefix if "=/proc/" in option]
    assert paths
    assert all(os.readlink(path).startswith(("net:", "user:")) for path in paths)
    for _ in range(2):
        private.close()
        assert not any(Path(path).exists() for path in paths)
    assert inside(private, "print('a new one')") == "a new one"
    assert [found.status for found in LocalRuntime().findings()] == ["ok"]


def test_namespace_that_cannot_be_created_or_entered_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, private: PrivateNetwork
) -> None:
    assert private.prefix
    monkeypatch.setattr(namespace.shutil, "which", lambda command: "/no/nsenter")
    other = PrivateNetwork()
    assert (other.prefix, "/no/nsenter" in str(other.unavailable_reason)) == ([], True)
    other.close()
    executable = tmp_path / "python"
    executable.write_text("#!/bin/sh\necho first >&2; echo cannot create it >&2; exit 1\n")
    executable.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(executable))
    monkeypatch.setattr(namespace, "_setting", lambda name: "0")
    expected = "cannot create it; kernel.unprivileged_userns_clone is 0; user.max_user_namespaces is 0"
    assert PrivateNetwork().unavailable_reason == expected


@pytest.mark.usefixtures("impossible")
def test_run_that_would_let_others_in_is_refused(tmp_path: Path) -> None:
    runtime = LocalRuntime(cold=True)
    for transport in ("rpc", "mpi"):
        refusal = str(runtime.unsupported_reason(run(transport)))
        assert refusal.startswith("other users")
        for named in (f"transport {transport}", REASON, "--shared-network"):
            assert named in refusal
        plan = runtime.plan(run(transport), RunPaths(tmp_path), tmp_path)
        with pytest.raises(InputError, match=REASON):
            runtime.create(plan).run(plan)
        assert list(tmp_path.iterdir()) == []
    for transport in ("gloo", "memory"):
        assert runtime.unsupported_reason(run(transport)) is None
    (found,) = runtime.findings()
    assert found.status == "note"
    assert f"{REASON}; rpc and mpi need --shared-network" in found.detail


def test_shared_network_permits_every_run_and_creates_no_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace, "_created", lambda: pytest.fail("created a namespace"))
    runtime = LocalRuntime(shared_network=True)
    for transport in ("rpc", "mpi", "gloo"):
        assert runtime.unsupported_reason(run(transport)) is None
        plan = runtime.plan(run(transport), RunPaths(Path()), Path())
        assert not any("nsenter" in argument for process in plan.processes for argument in process.argv)


@pytest.mark.parametrize(
    "command", [["sweep", "sweeps/labs/rpc_split.yml"], ["lab", "parallel_sgd", "--quick"]]
)
def test_option_of_the_command_line(command: list[str], private: PrivateNetwork) -> None:
    for options, entered in (([], True), (["--shared-network"], False)):
        arguments = [*command, "--runtime", "local", "--dry-run", "-v", *options]
        done = CliRunner().invoke(cli.app, arguments)
        assert done.exit_code == 0, done.output
        commands = [line for line in done.output.splitlines() if line.startswith(("  node", "  mpirun: "))]
        assert {"nsenter" in line for line in commands} == {entered}


class Parent:
    """A warm parent that fails."""

    def __init__(self, error: BaseException | None = None, unhealthy: str | None = None) -> None:
        self.error, self.unhealthy, self.closed, self.is_running = error, unhealthy, False, True

    def ensure(self) -> None:
        if self.error:
            raise self.error

    def unhealthy_reason(self) -> str | None:
        return self.unhealthy

    def close(self) -> None:
        self.closed, self.is_running = True, False


def test_parent_that_fails_is_named_and_ended() -> None:
    interrupted: Any = Parent(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        LocalCluster(interrupted)
    absent: Any = Parent(ParentError("torch is missing"))
    with pytest.raises(InputError, match="torch is missing; use --cold"):
        LocalCluster(absent)
    grown: Any = Parent(unhealthy="their process grew")
    cluster = LocalCluster(grown)
    assert (cluster.ready(), cluster.failure) == (False, "their process grew")
    cluster.delete()
    assert (interrupted.closed, grown.closed) == (True, True)
    idle: Any = Parent()
    cluster = LocalCluster(idle)
    assert cluster.ready()
    idle.is_running = False  # it has ended after an idle time, which is no failure
    assert (cluster.ready(), cluster.failure) == (False, None)


def test_exit_of_a_rank_that_returns_is_never_reported(tmp_path: Path) -> None:
    """Also not by the look during which it is started again. The ranks are shell scripts."""
    fault = {"kill": {"node": 1, "return_after": 0.1}, "at": {"epoch": 1}}
    fields = {
        "strategy": "gossip",
        "transport": "gloo",
        "nodes": 2,
        "on_loss": "continue",
        "faults": [fault],
    }
    spec, paths = RunSpec.model_validate(fields), RunPaths(tmp_path)
    killed = "[ $SHARDYARD_INCARNATION ] || kill -9 $$; exec sleep 60"
    scripts = {"node 0": "exec sleep 60", "node 1": killed, "throttle": "exec sleep 60"}
    started = [Process(name, ["sh", "-c", each], {}, name) for name, each in scripts.items()]
    plan = LaunchPlan(spec, paths, tmp_path, processes=started)
    paths.live.mkdir()
    for rank in range(2):
        events = [event("start", rank, pid=1), event("train_start", rank, parameters=1)]
        events += [event("fault", 1, fault=0, action="kill", epoch=1, step=0, second=0.5)] * rank
        lines = "".join(each.to_line() + "\n" for each in events)
        (paths.live / f"rank-{rank}.jsonl").write_text(lines)
    local, states = LocalRun(plan, OutputLimits.of(spec), losses=LostRanks(plan, paths.live)), []

    def died() -> bool:
        states.append(local.wait(0.02))
        return any(each.kind == "died" for each in local.new_events())

    try:
        wait_until(died, timeout_s=10)
        after = time.monotonic() + 0.3
        while time.monotonic() < after:
            states.append(local.wait(0.02))
    finally:
        local.stop()
    assert {state.running for state in states} <= {1, 2}
    assert [state.exits for state in states if state.exits] == []
    assert states[-1].running == 2
