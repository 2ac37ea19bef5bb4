"""Mistakes in the processes that an agent starts: ranks, rendezvous, environment, command lines."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cluster_support import assigned, index_of
from trainer.launch.environment import read_context
from trainer.node import mpi_rank
from trainer.node.commands import TRAINER, Command, commands, environment
from trainer.node.home import CONTAINER, Home
from trainer.node.rank_assignment import RankAssignment
from trainer.node.site import Site

PID = 4711


def at(assignment: RankAssignment, name: str) -> RankAssignment:
    return replace(assignment, index=index_of(assignment, name))


def started(assignment: RankAssignment, name: str) -> list[Command]:
    return commands(at(assignment, name), CONTAINER, PID)


def variables(topology: str, name: str, **fields: Any) -> dict[str, str]:
    """The environment of the named node's ranks, of two nodes."""
    return environment(at(assigned(topology, 1, 2, **fields), name), CONTAINER, PID)


@pytest.mark.parametrize(
    ("topology", "each", "ranks", "rendezvous"),
    [
        ("ddp", 1, {"node-2": [(0,)], "node-10": [(1,)]}, "10.0.0.2:29500"),
        ("ddp", 2, {"node-2": [(0,), (1,)], "node-10": [(2,), (3,)]}, "10.0.0.2:29500"),
        ("rpc", 1, {"master": [(0,)], "node-2": [(1,)], "node-10": [(2,)]}, "10.0.0.100:29500"),
        ("single", 1, {"node-2": [(0, 1)], "node-10": []}, None),
        ("mpi", 1, {"launcher": [()], "node-2": [], "node-10": []}, None),
    ],
)
def test_every_node_starts_its_ranks(
    topology: str, each: int, ranks: dict[str, list[tuple[int, ...]]], rendezvous: str | None
) -> None:
    assignment = assigned(topology, 10, 2, processes_per_node=each)
    for name, expected in ranks.items():
        found = started(assignment, name)
        assert [command.ranks for command in found] == expected
        for local, command in enumerate(each for each in found if each.ranks):
            assert command.argv == TRAINER
            context = read_context(assignment.spec, command.environment)
            assert (context.rank, context.size) == (command.ranks[0], assignment.spec.world_size)
            if rendezvous:
                assert command.environment["SHARDYARD_RENDEZVOUS"] == f"tcp://{rendezvous}"
                assert command.environment["LOCAL_RANK"] == str(local)
            warm = commands(at(assignment, name), CONTAINER, PID, ["client", "name"])
            assert warm[local] == replace(command, argv=("client", "name"))


@pytest.mark.parametrize("topology", ["ddp", "mpi", "rpc", "single"])
def test_environment_of_every_rank(topology: str) -> None:
    found = variables(topology, "node-1", threads=3)
    threads = {found.pop(name) for name in [*found] if name.endswith("_NUM_THREADS")}
    assert threads == {"3"}
    assert found == {
        "SHARDYARD_SPEC": "/run/shardyard/spec.json",
        "SHARDYARD_OUT": "/run/shardyard/out",
        "SHARDYARD_DATA": "/data",
        "SHARDYARD_CODE": "/code",
        "SHARDYARD_LAUNCHER": {"mpi": "openmpi", "single": "none"}.get(topology, "torchrun"),
        "SHARDYARD_PARENT_PID": str(PID),  # a rank ends with its agent
        # Compose writes the node's name before each line; ranks that share a node add their own.
        "SHARDYARD_PREFIX": "rank {rank} | " if topology == "single" else "",
        **{f"{name}_SOCKET_IFNAME": "eth0" for name in ("GLOO", "NCCL", "TP")},
        **({"SHARDYARD_CONSOLE": "/proc/4711/fd/1"} if topology == "mpi" else {}),
    }


def test_variables_of_some_runs() -> None:
    assignment = assigned("ddp", 1, 2, checkpoint_epochs=1, processes_per_node=2)
    found = environment(assignment, CONTAINER, PID)
    assert found["SHARDYARD_CHECKPOINTS"] == f"/checkpoints/{assignment.spec.key}"
    assert found["SHARDYARD_PREFIX"] == "rank {rank} | "
    for topology, others in (("rpc", "10.0.0.100,10.0.0.1"), ("mpi", "10.0.0.1")):  # not the launcher
        assert variables(topology, "node-2", link={"bandwidth_mbit": 10})["SHARDYARD_LINKED"] == others


@pytest.mark.parametrize("topology", ["ddp", "mpi", "rpc"])
def test_ranks_of_a_slower_node_wait_for_its_cpu_quota(topology: str) -> None:
    slow = {"cpus": 2, "node_speed": {-1: 0.125}}
    first, last = (variables(topology, name, **slow) for name in ("node-1", "node-2"))
    assert (first.get("SHARDYARD_CPU_QUOTA"), last["SHARDYARD_CPU_QUOTA"]) == (None, "0.25")
    assert (first["OMP_NUM_THREADS"], last["OMP_NUM_THREADS"]) == ("2", "1")


def test_ranks_of_a_continuing_run_read_who_is_alive() -> None:
    assignment = assigned("ddp", 1, 2, strategy="gossip", transport="gloo", on_loss="continue")
    (command,) = started(assignment, "node-2")
    context = read_context(assignment.spec, {**command.environment, "SHARDYARD_INCARNATION": "2"})
    assert (context.membership, context.incarnation) == (CONTAINER.membership, 2)


def test_a_node_sees_its_own_gpus() -> None:
    gpus = assigned("ddp", 1, 2, transport="nccl", processes_per_node=2)
    assert {each.environment["CUDA_VISIBLE_DEVICES"] for each in started(gpus, "node-2")} == {"2,3"}


def test_mpirun_starts_several_ranks_on_each_node() -> None:
    (command,) = started(assigned("mpi", 1, 2, 3, processes_per_node=4), "launcher")
    assert " ".join(command.argv) == (
        f"{sys.prefix}/bin/mpirun --prefix {sys.prefix} --hostfile /run/shardyard/hosts --wdir "
        "/opt/shardyard -n 12 --map-by ppr:4:node --bind-to none --oversubscribe --mca mpi_yield_when_idle "
        "1 --mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include eth0 "
        f"{sys.executable} -S -E {mpi_rank.__file__} /run/shardyard/rank.json"
    )
    settings = {"plm_ssh_agent": "ssh -F /run/shardyard/ssh/config", "plm_ssh_no_tree_spawn": "1"}
    settings |= {"prte_if_include": "eth0", "odls_base_sigkill_timeout": "5"}
    assert command.environment.items() >= {f"PRTE_MCA_{name}": settings[name] for name in settings}.items()


# Outside of containers

SITE = Site(data="/d", code="/c", checkpoints="/k", console="/logs", interface="", variables={"OWN": "1"})


def outside(topology: str, name: str, **fields: Any) -> Command:
    """The process that the named agent starts there."""
    assignment = replace(at(assigned(topology, 1, 2, checkpoint_epochs=1), name), site=SITE)
    (command,) = commands(replace(assignment, **fields), Home(Path("/tmp/own")), PID)
    return command


def test_ranks_outside_of_containers_use_the_paths_of_their_site() -> None:
    found = outside("ddp", "node-2").environment
    expected = {"DATA": "/d", "CODE": "/c", "SPEC": "/tmp/own/spec.json", "OUT": "/tmp/own/out"}
    assert found.items() >= {f"SHARDYARD_{name}": path for name, path in expected.items()}.items()
    assert found["SHARDYARD_CHECKPOINTS"].startswith("/k/")
    # Without an interface, ranks find each other by an address; each has a log of its own.
    absent = {"SHARDYARD_RENDEZVOUS", "SHARDYARD_PREFIX", "GLOO_SOCKET_IFNAME"}
    assert not absent & found.keys()
    assert (found["MASTER_ADDR"], found["MASTER_PORT"], found["OWN"]) == ("10.0.0.1", "29500", "1")


def test_mpirun_of_a_site_starts_ranks_without_ssh() -> None:
    command = outside("mpi", "launcher", site=SITE.model_copy(update={"mpirun": ["srun", "--mpi=pmix"]}))
    assert command.argv == ("srun", "--mpi=pmix")
    assert command.environment["SHARDYARD_CONSOLE"] == "/logs/node-{node}.log"
    assert [name for name in command.environment if name.startswith("PRTE_MCA_")] == [
        "PRTE_MCA_odls_base_sigkill_timeout"
    ]
