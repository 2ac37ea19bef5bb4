"""The nodes' own network: a namespace with loopback only, and the refusal of runs that need one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator import cli
from orchestrator.errors import InputError
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.local import namespace
from orchestrator.runtimes.local.namespace import NamespaceError, PrivateNetwork
from orchestrator.runtimes.local.runtime import LocalRuntime
from trainer.spec.run_spec import RunSpec

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
    command = [*private.prefix, sys.executable, "-c", f"import os, socket\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_namespace_has_a_working_loopback_interface_only(private: PrivateNetwork) -> None:
    code = """
listener = socket.create_server(("127.0.0.1", 0))
socket.create_connection(listener.getsockname())
print([name for _, name in socket.if_nameindex()])
"""
    assert inside(private, code) == "['lo']"


def test_ports_and_abstract_sockets_outside_do_not_exist_inside(private: PrivateNetwork) -> None:
    name = f"shardyard-test-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        abstract.bind(f"\0{name}")
        abstract.listen()
        code = f"""
port = socket.socket().connect_ex({listener.getsockname()})
print(os.strerror(port), os.strerror(socket.socket(socket.AF_UNIX).connect_ex("\\0{name}")))
"""
        assert inside(private, code) == "Connection refused Connection refused"


def test_user_group_and_process_id_stay_the_same(private: PrivateNetwork) -> None:
    code = "print(os.getuid(), os.getgid(), os.getppid())"
    assert inside(private, code) == f"{os.getuid()} {os.getgid()} {os.getpid()}"


def test_namespace_ends_with_its_descriptors(private: PrivateNetwork) -> None:
    paths = [option.partition("=")[2] for option in private.prefix if "=/proc/" in option]
    assert paths
    assert all(os.readlink(path).startswith(("net:", "user:")) for path in paths)
    private.close()
    assert not any(Path(path).exists() for path in paths)
    private.close()
    assert inside(private, "print('a new one')") == "a new one"


def test_reason_is_the_last_line_of_the_process_that_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    executable = tmp_path / "python"
    executable.write_text("#!/bin/sh\necho first >&2; echo cannot create it >&2; exit 1\n")
    executable.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(executable))
    monkeypatch.setattr(namespace, "_setting", lambda name: "0")
    failed = PrivateNetwork()
    assert failed.prefix == []
    assert failed.unavailable_reason == (
        "cannot create it; kernel.unprivileged_userns_clone is 0; user.max_user_namespaces is 0"
    )


def test_namespace_that_cannot_be_entered_is_not_used(
    monkeypatch: pytest.MonkeyPatch, private: PrivateNetwork
) -> None:
    monkeypatch.setattr(namespace.shutil, "which", lambda command: "/no/nsenter")
    other = PrivateNetwork()
    assert other.prefix == []
    assert "/no/nsenter" in str(other.unavailable_reason)
    other.close()


@pytest.mark.usefixtures("impossible")
@pytest.mark.parametrize("transport", ["rpc", "mpi"])
def test_run_that_would_let_others_in_is_refused(transport: str, tmp_path: Path) -> None:
    runtime, spec = LocalRuntime(cold=True), run(transport)
    refusal = str(runtime.unsupported_reason(spec))
    assert refusal.startswith("other users")
    assert f"transport {transport}" in refusal
    assert REASON in refusal
    assert "--shared-network" in refusal
    plan = runtime.plan(spec, RunPaths(tmp_path), tmp_path)
    with pytest.raises(InputError, match=REASON):
        runtime.create(plan).run(plan)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("impossible")
@pytest.mark.parametrize("transport", ["gloo", "memory"])
def test_other_runs_need_no_network_of_their_own(transport: str) -> None:
    assert LocalRuntime().unsupported_reason(run(transport)) is None


@pytest.mark.parametrize("transport", ["rpc", "mpi", "gloo"])
def test_shared_network_permits_every_run_and_creates_no_namespace(
    monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setattr(namespace, "_created", lambda: pytest.fail("created a namespace"))
    runtime = LocalRuntime(shared_network=True)
    assert runtime.unsupported_reason(run(transport)) is None
    plan = runtime.plan(run(transport), RunPaths(Path()), Path())
    assert not any("nsenter" in argument for process in plan.processes for argument in process.argv)


@pytest.mark.parametrize("command", [["sweep"], ["lab", "parallel_sgd", "--quick"]])
def test_option_of_the_command_line(command: list[str], private: PrivateNetwork) -> None:
    for options, entered in (([], True), (["--shared-network"], False)):
        arguments = [*command, "--runtime", "local", "--dry-run", "-v", *options]
        done = CliRunner().invoke(cli.app, arguments)
        assert done.exit_code == 0, done.output
        commands = [line for line in done.output.splitlines() if line.startswith(("  node", "  mpirun: "))]
        assert commands
        assert all(("nsenter" in line) is entered for line in commands)


@pytest.mark.usefixtures("impossible")
def test_doctor_says_why_nodes_share_the_network() -> None:
    (found,) = LocalRuntime().findings()
    assert found.status == "note"
    assert REASON in found.detail
    assert "--shared-network" in found.detail


def test_doctor_reports_a_private_network(private: PrivateNetwork) -> None:
    (found,) = LocalRuntime().findings()
    assert found.status == "ok"
