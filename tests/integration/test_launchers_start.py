"""Mistakes about ranks that a launcher starts, and not Shardyard: by its variables alone they must meet.

Also where nodes have networks of their own: over the link between them, and no other.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import PROJECT, environment
from trainer.core.events import EventReader
from trainer.launch.launchers import LAUNCHERS, NODELIST_PORTS, PORT, free_port
from trainer.spec.run_spec import RunSpec

RANK = [sys.executable, "-m", "trainer"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def variables_of(launcher: str, rank: int, port: int) -> dict[str, str]:
    """The variables of rank `rank` of 2, on this machine."""
    match launcher:
        case "slurm":
            return {
                "SLURM_PROCID": str(rank),
                "SLURM_NTASKS": "2",
                "SLURM_JOB_ID": str(port - NODELIST_PORTS[0]),
                "SLURM_JOB_NODELIST": "127.0.0.[1-2]",
            }
        case "kubernetes":
            master = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
            return {"JOB_COMPLETION_INDEX": str(rank), "NNODES": "2", **master}
    raise AssertionError(launcher)


def train(directory: Path, spec: RunSpec, *ranks: tuple[list[str], dict[str, str]]) -> list[str]:
    """Start processes by command and variables, and wait for all. Returns their output."""
    (directory / "spec.json").write_text(spec.model_dump_json())
    # Without the variables of a launcher that started the tests.
    names = {name for each in LAUNCHERS.values() for name in (*each.number, *each.count)}
    own = {name: value for name, value in environment().items() if name not in names}
    own |= {"SHARDYARD_SPEC": f"{directory}/spec.json", "SHARDYARD_OUT": f"{directory}/out"}
    started = [
        subprocess.Popen(
            command,
            cwd=PROJECT,
            env={**own, "OMP_NUM_THREADS": "1", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command, variables in ranks
    ]
    try:
        return [process.communicate(timeout=120)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


def ended(directory: Path) -> list[tuple[int, str]]:
    """The exit report of each rank."""
    kinds = ("done", "failed", "terminated")
    events = EventReader(directory / "out").new()
    return sorted((each.rank, each.kind) for each in events if each.kind in kinds)


DONE = [(0, "done"), (1, "done")]


def run(**fields: object) -> RunSpec:
    values = {"strategy": "all_reduce", "transport": "gloo", "epochs": 1, "model": "mlp", "timeout_s": 60}
    return RunSpec.model_validate({**values, **fields})


@pytest.mark.parametrize(("launcher", "transport"), [("slurm", "gloo"), ("kubernetes", "rpc")])
def test_one_process_for_each_rank(tmp_path: Path, launcher: str, transport: str) -> None:
    port = free_port()
    processes = [(RANK, variables_of(launcher, rank, port)) for rank in range(2)]
    output = train(tmp_path, run(nodes=2, transport=transport), *processes)
    assert ended(tmp_path) == DONE, "\n".join(output)


@pytest.mark.nightly
def test_torchrun_on_a_node_of_an_indexed_job(tmp_path: Path) -> None:
    """torchrun reads the PET_* variables, and its ranks torchrun's."""
    node = {
        "PET_NNODES": "1",
        "PET_NODE_RANK": "0",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(free_port()),
        "JOB_COMPLETION_INDEX": "0",
    }
    output = train(tmp_path, run(processes_per_node=2), ([*TORCHRUN, "-m", "trainer"], node))
    assert ended(tmp_path) == DONE, "\n".join(output)


# Two nodes in networks of their own

TOOLS = ("ip", "nsenter", "unshare")
HOLD_S = "120"  # a network namespace ends with the process that holds it


def hold() -> subprocess.Popen[bytes]:
    """A process in a network of its own."""
    process = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", f"echo; exec sleep {HOLD_S}"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()  # the namespace exists
    return process


def inside(node: subprocess.Popen[bytes], *command: str) -> list[str]:
    """A command in the network of a node."""
    return ["nsenter", "--target", str(node.pid), "--net", *command]


def works(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0


@pytest.fixture
def nodes() -> Iterator[list[subprocess.Popen[bytes]]]:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(TOOLS)}")
    nodes = [hold(), hold()]
    try:
        first, second = (str(node.pid) for node in nodes)
        ends = f"link0 netns {first} type veth peer link0 netns {second}"
        if not works(["ip", "link", "add", *ends.split()]):
            pytest.skip("the system permits no virtual link between networks")
        for number, node in enumerate(nodes, start=1):
            # a0 leads nowhere, and comes first.
            settings = ["link set lo up", "link add a0 type veth peer a1"]
            for name, network in (("a0", "8"), ("link0", "9")):
                settings.append(f"addr add 10.{network}.0.{number}/24 dev {name}")
                settings.append(f"addr add fd00:{network}::{number}/64 dev {name} nodad")
                settings.append(f"link set {name} up")
            assert all(works(inside(node, "ip", *setting.split())) for setting in settings)
        yield nodes
    finally:
        for node in nodes:
            node.kill()
            node.communicate()


def train_apart(
    directory: Path, nodes: list[subprocess.Popen[bytes]], host: str, **fields: object
) -> list[str]:
    """The output of each rank of a run. host: the address of the first node."""
    launcher = {"SHARDYARD_LAUNCHER": "kubernetes", "NNODES": "2", "MASTER_ADDR": host}
    own = [{**launcher, "JOB_COMPLETION_INDEX": str(rank)} for rank in range(2)]
    commands = [inside(node, *RANK) for node in nodes]
    return train(directory, run(nodes=2, **fields), *zip(commands, own, strict=True))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("transport", "host"), [("gloo", "10.9.0.1"), ("gloo", "fd00:9::1"), ("rpc", "10.9.0.1")]
)
def test_ranks_meet_over_the_route_to_the_first_node(
    tmp_path: Path, nodes: list[subprocess.Popen[bytes]], transport: str, host: str
) -> None:
    output = train_apart(tmp_path, nodes, host, transport=transport)
    assert ended(tmp_path) == DONE, "\n".join(output)


@pytest.mark.nightly
def test_all_ranks_name_nodes_that_a_firewall_keeps_apart(
    tmp_path: Path, nodes: list[subprocess.Popen[bytes]]
) -> None:
    """The first node lets the others connect to its store only, so gloo could wait for them forever."""
    if shutil.which("iptables") is None:
        pytest.skip("needs iptables")
    rule = f"iptables -A INPUT -p tcp --syn ! --dport {PORT} -j DROP"
    if not works(inside(nodes[0], *rule.split())):
        pytest.skip("the system permits no firewall in a network of its own")
    output = train_apart(tmp_path, nodes, "10.9.0.1", timeout_s=10)
    assert all("node 1 does not reach node 0 at 10.9.0.1" in each for each in output), "\n".join(output)
