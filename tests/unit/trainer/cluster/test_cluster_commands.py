"""Mistakes in the processes that an agent starts: ranks, rendezvous, environment, command lines."""

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
    TRAINER,
    Command,
    commands,
    environment,
    hosts,
    mpirun,
)
from trainer.cluster.rank_assignment import RankAssignment
from trainer.launch.environment import read_context

PID = 4711


def at(assignment: RankAssignment, name: str) -> RankAssignment:
    return replace(assignment, index=index_of(assignment, name))


def started(assignment: RankAssignment, name: str) -> list[Command]:
    return commands(at(assignment, name), PID)


def variables(topology: str, name: str, **fields: Any) -> dict[str, str]:
    """The environment of the named node's ranks, of two nodes."""
    return environment(at(assigned(topology, 1, 2, **fields), name), PID)


@pytest.mark.parametrize(
    ("topology", "fields", "ranks", "rendezvous"),
    [
        ("ddp", {}, {"node-2": [(0,)], "node-10": [(1,)]}, "10.0.0.2:29500"),
        (
            "ddp",
            {"processes_per_node": 2},
            {"node-2": [(0,), (1,)], "node-10": [(2,), (3,)]},
            "10.0.0.2:29500",
        ),
        ("rpc", {}, {"master": [(0,)], "node-2": [(1,)], "node-10": [(2,)]}, "10.0.0.100:29500"),
        ("single", {}, {"node-2": [(0, 1)], "node-10": []}, None),
        ("mpi", {}, {"launcher": [()], "node-2": [], "node-10": []}, None),
    ],
)
def test_every_node_starts_its_ranks(
    topology: str, fields: dict[str, Any], ranks: dict[str, list[tuple[int, ...]]], rendezvous: str | None
) -> None:
    assignment = assigned(topology, 10, 2, **fields)
    for name, expected in ranks.items():
        found = started(assignment, name)
        assert [command.ranks for command in found] == expected
        for local, command in enumerate(found):
            if topology == "mpi":
                assert command.argv == mpirun(assignment)
                continue
            assert command.argv == TRAINER
            context = read_context(assignment.spec, command.environment)
            assert (context.rank, context.size) == (command.ranks[0], assignment.spec.world_size)
            if rendezvous:
                assert command.environment["SHARDYARD_RENDEZVOUS"] == f"tcp://{rendezvous}"
                assert command.environment["LOCAL_RANK"] == str(local)
            warm = commands(at(assignment, name), PID, ["client", "name"])
            assert warm[local] == replace(command, argv=("client", "name"))


# The environment of every rank


@pytest.mark.parametrize("topology", ["ddp", "mpi", "rpc", "single"])
def test_environment(topology: str) -> None:
    found = variables(topology, "node-1", threads=3)
    assert found["SHARDYARD_SPEC"] == str(SPEC) == "/run/shardyard/spec.json"
    assert (found["SHARDYARD_OUT"], found["SHARDYARD_DATA"]) == (str(OUT), "/data")
    assert found["SHARDYARD_PARENT_PID"] == str(PID)  # a rank ends with its agent
    # Only ranks of mpirun write to the console of their node.
    assert found.get("SHARDYARD_CONSOLE") == ("/proc/4711/fd/1" if topology == "mpi" else None)
    assert {found[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL")} == {"3"}
    assert {found[f"{library}_SOCKET_IFNAME"] for library in ("GLOO", "NCCL", "TP")} == {INTERFACE}
    assert not {"SHARDYARD_CHECKPOINTS", "SHARDYARD_MEMBERSHIP", "SHARDYARD_LINKED"} & found.keys()


@pytest.mark.parametrize("topology", ["ddp", "mpi", "rpc"])
def test_ranks_of_a_slower_node_wait_for_its_cpu_quota(topology: str) -> None:
    first, last = (
        variables(topology, name, cpus=2, node_speed={-1: 0.125}) for name in ("node-1", "node-2")
    )
    assert (first.get("SHARDYARD_CPU_QUOTA"), last["SHARDYARD_CPU_QUOTA"]) == (None, "0.25")
    assert (first["OMP_NUM_THREADS"], last["OMP_NUM_THREADS"]) == ("2", "1")


def test_each_run_has_its_own_checkpoint_directory() -> None:
    assignment = assigned("ddp", 1, 2, checkpoint_epochs=1)
    assert environment(assignment, PID)["SHARDYARD_CHECKPOINTS"] == f"/checkpoints/{assignment.spec.key}"


def test_ranks_of_linked_nodes_know_the_addresses_of_the_others() -> None:
    link = {"bandwidth_mbit": 10}
    assert variables("ddp", "node-2", link=link)["SHARDYARD_LINKED"] == "10.0.0.1"
    assert variables("rpc", "node-2", link=link)["SHARDYARD_LINKED"] == "10.0.0.100,10.0.0.1"


@pytest.mark.parametrize(
    ("topology", "fields", "prefix"),
    [
        ("ddp", {}, ""),  # compose writes the node's name before each line
        ("mpi", {"processes_per_node": 2}, "rank {rank} | "),
        ("single", {}, "rank {rank} | "),
    ],
)
def test_lines_of_ranks_that_share_a_node_have_a_prefix(
    topology: str, fields: dict[str, Any], prefix: str
) -> None:
    assert variables(topology, "node-1", **fields)["SHARDYARD_PREFIX"] == prefix


def test_ranks_of_a_continuing_run_read_who_is_alive() -> None:
    continues = {"strategy": "gossip", "transport": "gloo", "on_loss": "continue"}
    assignment = assigned("ddp", 1, 2, **continues)
    (command,) = started(assignment, "node-2")
    context = read_context(assignment.spec, command.environment)
    assert (context.membership, context.incarnation) == (MEMBERSHIP, 0)
    again = read_context(assignment.spec, {**command.environment, "SHARDYARD_INCARNATION": "2"})
    assert again.incarnation == 2


def test_a_node_sees_its_own_gpus() -> None:
    gpus = assigned("ddp", 1, 2, transport="nccl", processes_per_node=2)
    assert {each.environment["CUDA_VISIBLE_DEVICES"] for each in started(gpus, "node-2")} == {"2,3"}
    (command,) = started(assigned("ddp", 1, 2), "node-2")
    assert "CUDA_VISIBLE_DEVICES" not in command.environment


# Open MPI


def test_mpirun() -> None:
    argv = mpirun(assigned("mpi", 1, 2, 3, processes_per_node=4))
    options = dict(pairwise(argv))
    assert argv[0] == f"{PREFIX}/bin/mpirun"
    expected = {"--prefix": sys.prefix, "--hostfile": str(HOSTS), "-n": "12", "--map-by": "ppr:4:node"}
    expected |= {"--bind-to": "none", "btl_tcp_if_include": INTERFACE}
    assert {name: options[name] for name in expected} == expected
    # A shell that ssh starts has another PATH.
    assert argv[-4:] == (sys.executable, "-S", "-E", mpi_rank.__file__)


def test_mpirun_reaches_nodes_by_ssh_from_the_launcher_alone() -> None:
    (command,) = started(assigned("mpi", 1), "launcher")
    assert command.environment["PRTE_MCA_plm_ssh_agent"] == "ssh -F /run/shardyard/ssh/config"
    assert command.environment["PRTE_MCA_plm_ssh_no_tree_spawn"] == "1"
    assert command.environment["PRTE_MCA_prte_if_include"] == INTERFACE


def test_hosts_follow_the_order_of_ranks_and_exclude_the_launcher() -> None:
    assert hosts(assigned("mpi", 10, 2)) == "10.0.0.2 slots=1\n10.0.0.10 slots=1\n"
    assert hosts(assigned("mpi", 3, processes_per_node=4)) == "10.0.0.3 slots=4\n"
