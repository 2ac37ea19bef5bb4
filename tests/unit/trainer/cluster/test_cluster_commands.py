"""The processes that an agent starts: command lines and environment."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.unit.cluster_support import assigned, index_of
from trainer.cluster import mpi_rank
from trainer.cluster.commands import (
    HOSTS,
    INTERFACE,
    MEMBERSHIP,
    OUT,
    PREFIX,
    SPEC,
    Command,
    commands,
    environment,
    hosts,
    launcher_of,
    mpirun,
    mpirun_environment,
)
from trainer.cluster.rank_assignment import RankAssignment
from trainer.launch.environment import read_context

TRAINER = (sys.executable, "-m", "trainer")
PID = 4711


def at(assignment: RankAssignment, name: str) -> RankAssignment:
    return replace(assignment, index=index_of(assignment, name))


def started(assignment: RankAssignment, name: str) -> list[Command]:
    return commands(at(assignment, name), PID)


def test_ddp_starts_a_trainer_per_rank_with_rendezvous_at_rank_0() -> None:
    assignment = assigned("ddp", 10, 2, 5)
    for rank, name in enumerate(["node-2", "node-5", "node-10"]):
        (command,) = started(assignment, name)
        assert command.argv == TRAINER
        assert command.ranks == (rank,)
        assert command.environment["SHARDYARD_RENDEZVOUS"] == "tcp://10.0.0.2:29500"  # rank 0's node
        found = {key: command.environment[key] for key in ("WORLD_SIZE", "RANK", "LOCAL_RANK")}
        assert found == {"WORLD_SIZE": "3", "RANK": str(rank), "LOCAL_RANK": "0"}


@pytest.mark.parametrize("topology", ["ddp", "rpc", "single"])
def test_warm_containers_start_ranks_by_another_command(topology: str) -> None:
    assignment = at(assigned(topology, 1, 2), "node-1")
    (cold,), (warm,) = commands(assignment, PID), commands(assignment, PID, ["client", "name"])
    assert warm == replace(cold, argv=("client", "name"))


def test_local_ranks() -> None:
    found = started(assigned("ddp", 1, 2, processes_per_node=2), "node-2")
    assert [command.ranks for command in found] == [(2,), (3,)]
    assert [(c.environment["RANK"], c.environment["LOCAL_RANK"]) for c in found] == [("2", "0"), ("3", "1")]
    assert {c.environment["WORLD_SIZE"] for c in found} == {"4"}


def test_rpc_master_is_rank_0() -> None:
    assignment = assigned("rpc", 1, 2)
    for rank, name in enumerate(["master", "node-1", "node-2"]):
        (command,) = started(assignment, name)
        assert (command.argv, command.ranks) == (TRAINER, (rank,))
        assert command.environment["RANK"] == str(rank)
        assert command.environment["SHARDYARD_RENDEZVOUS"] == "tcp://10.0.0.100:29500"


def test_single_starts_one_process_for_all_ranks() -> None:
    assignment = assigned("single", 1, 2, 3)
    (command,) = started(assignment, "node-1")
    assert (command.argv, command.ranks) == (TRAINER, (0, 1, 2))
    assert not {"RANK", "WORLD_SIZE", "SHARDYARD_RENDEZVOUS"} & command.environment.keys()
    assert started(assignment, "node-2") == started(assignment, "node-3") == []


def test_only_the_launcher_starts_mpirun() -> None:
    assignment = assigned("mpi", 1, 2)
    assert started(assignment, "node-1") == started(assignment, "node-2") == []
    (command,) = started(assignment, "launcher")
    assert command.argv == mpirun(assignment)
    assert command.ranks == ()


@pytest.mark.parametrize(
    ("topology", "name"), [("ddp", "node-2"), ("rpc", "master"), ("rpc", "node-1"), ("single", "node-1")]
)
def test_trainer_parses_its_environment(topology: str, name: str) -> None:
    for command in started(assigned(topology, 1, 2), name):
        assignment = assigned(topology, 1, 2)
        context = read_context(assignment.spec, command.environment)
        assert context.rank == command.ranks[0]
        assert context.size == assignment.spec.world_size


# The environment of every rank


@pytest.mark.parametrize("topology", ["ddp", "mpi", "rpc", "single"])
def test_environment(topology: str) -> None:
    assignment = assigned(topology, 1, 2, threads=3)
    found = environment(at(assignment, "node-1"), PID)
    assert found["SHARDYARD_SPEC"] == str(SPEC) == "/run/shardyard/spec.json"
    assert found["SHARDYARD_OUT"] == str(OUT)
    assert found["SHARDYARD_DATA"] == "/data"
    assert found["SHARDYARD_PARENT_PID"] == str(PID)  # a rank ends with its agent
    assert found.items() >= assignment.spec.thread_environment().items()
    assert set(assignment.spec.thread_environment().values()) == {"3"}
    interfaces = {name: value for name, value in found.items() if name.endswith("SOCKET_IFNAME")}
    libraries = ("GLOO", "NCCL", "TP")
    assert interfaces == {f"{library}_SOCKET_IFNAME": INTERFACE for library in libraries}
    assert all(isinstance(value, str) for value in found.values())


@pytest.mark.parametrize("topology", ["ddp", "mpi", "rpc"])
def test_ranks_of_a_slower_node_wait_for_its_cpu_quota(topology: str) -> None:
    assignment = assigned(topology, 1, 2, cpus=2, node_speed={-1: 0.125})
    first, last = (environment(at(assignment, name), PID) for name in ("node-1", "node-2"))
    assert (first.get("SHARDYARD_CPU_QUOTA"), last["SHARDYARD_CPU_QUOTA"]) == (None, "0.25")
    assert (first["OMP_NUM_THREADS"], last["OMP_NUM_THREADS"]) == ("2", "1")


def test_each_run_has_its_own_checkpoint_directory() -> None:
    assignment = assigned("ddp", 1, 2, checkpoint_epochs=1)
    assert environment(assignment, PID)["SHARDYARD_CHECKPOINTS"] == f"/checkpoints/{assignment.spec.key}"
    assert "SHARDYARD_CHECKPOINTS" not in environment(assigned("ddp", 1, 2), PID)


@pytest.mark.parametrize("topology", ["ddp", "mpi", "rpc", "single"])
def test_only_ranks_of_mpirun_write_to_the_console_of_their_node(topology: str) -> None:
    console = environment(at(assigned(topology, 1, 2), "node-2"), PID).get("SHARDYARD_CONSOLE")
    assert console == ("/proc/4711/fd/1" if topology == "mpi" else None)


@pytest.mark.parametrize(
    ("topology", "fields", "prefix"),
    [
        ("ddp", {}, ""),  # compose writes the node's name before each line
        ("rpc", {}, ""),
        ("mpi", {}, ""),
        ("mpi", {"processes_per_node": 2}, "rank {rank} | "),
        ("ddp", {"processes_per_node": 2}, "rank {rank} | "),
        ("single", {"nodes": 3}, "rank {rank} | "),
        ("single", {"nodes": 2, "processes_per_node": 2}, "rank {rank} | "),
    ],
)
def test_lines_of_ranks_that_share_a_node_have_a_prefix(
    topology: str, fields: dict[str, Any], prefix: str
) -> None:
    count = () if topology == "single" else (2,)
    assignment = at(assigned(topology, 1, *count, **fields), "node-1")
    assert environment(assignment, PID)["SHARDYARD_PREFIX"] == prefix


def test_ranks_of_a_continuing_run_read_who_is_alive() -> None:
    fields = {"strategy": "gossip", "transport": "gloo"}
    assignment = at(assigned("ddp", 1, 2, on_loss="continue", **fields), "node-2")
    (command,) = commands(assignment, PID)
    assert command.environment["SHARDYARD_MEMBERSHIP"] == str(MEMBERSHIP)
    context = read_context(assignment.spec, command.environment)
    assert (context.membership, context.incarnation) == (MEMBERSHIP, 0)
    again = read_context(assignment.spec, {**command.environment, "SHARDYARD_INCARNATION": "2"})
    assert again.incarnation == 2
    stopping = at(assigned("ddp", 1, 2, **fields), "node-2")
    (command,) = commands(stopping, PID)
    assert "SHARDYARD_MEMBERSHIP" not in command.environment
    assert read_context(stopping.spec, command.environment).membership is None


# Open MPI


@pytest.mark.parametrize(("processes", "world"), [(1, "3"), (4, "12")])
def test_mpirun(processes: int, world: str) -> None:
    assignment = assigned("mpi", 1, 2, 3, processes_per_node=processes)
    argv = mpirun(assignment)
    options = dict(pairwise(argv))
    assert argv[0] == f"{PREFIX}/bin/mpirun"
    assert options["--prefix"] == sys.prefix
    assert options["--hostfile"] == str(HOSTS)
    assert options["-n"] == world
    assert options["--map-by"] == f"ppr:{processes}:node"
    assert options["--bind-to"] == "none"
    assert options["btl_tcp_if_include"] == INTERFACE
    assert argv[-4:] == (sys.executable, "-S", "-E", mpi_rank.__file__)
    assert argv[-4].startswith("/")  # a shell that ssh starts has another PATH
    assert argv[-1].startswith("/")


def test_mpirun_reaches_nodes_by_ssh_from_the_launcher_alone() -> None:
    found = mpirun_environment()
    assert found["PRTE_MCA_plm_ssh_agent"] == "ssh -F /run/shardyard/ssh/config"
    assert found["PRTE_MCA_plm_ssh_no_tree_spawn"] == "1"
    assert found["PRTE_MCA_prte_if_include"] == INTERFACE


def test_hosts_follow_the_order_of_ranks_and_exclude_the_launcher() -> None:
    assert hosts(assigned("mpi", 10, 2, 1)) == "10.0.0.1 slots=1\n10.0.0.2 slots=1\n10.0.0.10 slots=1\n"
    assert hosts(assigned("mpi", 3, processes_per_node=4)) == "10.0.0.3 slots=4\n"


def test_launcher() -> None:
    assert launcher_of(assigned("mpi", 1, 2)).address == "10.0.0.100"


# GPUs


def test_cuda_visible_devices_comes_from_the_node() -> None:
    gpus = assigned("ddp", 1, 2, transport="nccl", processes_per_node=2)
    found = {command.environment["CUDA_VISIBLE_DEVICES"] for command in started(gpus, "node-2")}
    assert found == {"2,3"}
    (command,) = started(assigned("ddp", 1, 2), "node-2")
    assert "CUDA_VISIBLE_DEVICES" not in command.environment
