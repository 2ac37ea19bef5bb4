"""What a member starts: pure, from the roster."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.cluster.rank_assignment import Agent, RankAssignment
from trainer.elastic.command import torchrun

HOME = Path("/run/shardyard")  # a tmpfs: what lies here ends with the container
OUT = HOME / "out"  # events and weights of this member's ranks
CHECKPOINTS = Path("/checkpoints")  # mounted; of every run that takes any, by key
SPEC = HOME / "spec.json"
SSH = HOME / "ssh"
ENVIRONMENT = HOME / "environment.json"  # for ranks that mpirun starts
HOSTS = HOME / "hosts"
RENDEZVOUS_PORT = 29500
INTERFACE = "eth0"  # a container has one, on the run's own network
PREFIX = Path(sys.prefix)  # of Open MPI too: its wheel installs beside Python


@dataclass(frozen=True)
class Command:
    """One process. ranks: those that run in it."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    ranks: tuple[int, ...]


def commands(assignment: RankAssignment, pid: int) -> list[Command]:
    """What the member `roster.me` has to start; nothing where others start its ranks or it has none.

    pid: of the member's own process, with which its ranks end.
    """
    me, topology = assignment.me, assignment.spec.topology
    common = environment(assignment, pid)
    if me.role == "launcher":
        return [Command(mpirun(assignment), {**common, **mpirun_environment()}, ())]
    if topology == "mpi":
        return []
    if topology == "single":
        return [Command(TRAINER, common, me.ranks)] if me.ranks else []
    if assignment.spec.restarts:
        return [_agent(assignment, common)]
    meet = {
        "SHARDYARD_RENDEZVOUS": f"tcp://{assignment.holder(0).address}:{RENDEZVOUS_PORT}",
        "WORLD_SIZE": str(assignment.spec.world_size),
    }
    every = {**common, **meet, **_gpus(assignment)}
    return [
        Command(TRAINER, {**every, "RANK": str(rank), "LOCAL_RANK": str(local)}, (rank,))
        for local, rank in enumerate(me.ranks)
    ]


def _agent(assignment: RankAssignment, common: Mapping[str, str]) -> Command:
    """torchrun's agent, which starts this node's ranks; node 0's is where the others meet it."""
    me, spec = assignment.me, assignment.spec
    node = me.ranks[0] // spec.processes_per_node
    argv = torchrun(spec, f"{assignment.holder(0).address}:{RENDEZVOUS_PORT}", f"{HOME}/torchrun")
    told = {"SHARDYARD_NODE": str(node), "SHARDYARD_MEMORY_MB": str(spec.memory_mb)}
    return Command(argv, {**common, **_gpus(assignment), **told}, me.ranks)


def _gpus(assignment: RankAssignment) -> dict[str, str]:
    """Compose shows every replica all GPUs of the machine; a node is to have its own."""
    own = ",".join(str(rank) for rank in assignment.me.ranks)
    return {"CUDA_VISIBLE_DEVICES": own} if assignment.spec.on_gpu else {}


TRAINER = (sys.executable, "-m", "trainer")


def environment(assignment: RankAssignment, pid: int) -> dict[str, str]:
    """Of every rank of this member."""
    # Compose writes the node's name before each line; only ranks that share a node need more.
    alone = len(assignment.me.ranks) == 1
    first = min(assignment.me.ranks, default=0)
    spec = assignment.spec
    slower = any(spec.is_bottleneck(rank) for rank in assignment.me.ranks)
    return {
        **assignment.spec.thread_environment(first),
        "SHARDYARD_SPEC": str(SPEC),
        "SHARDYARD_DATA": "/data",
        "SHARDYARD_OUT": str(OUT),
        "SHARDYARD_PARENT_PID": str(pid),
        "SHARDYARD_PREFIX": "" if alone else "rank {rank} | ",
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "NCCL_SOCKET_IFNAME": INTERFACE,
        "TP_SOCKET_IFNAME": INTERFACE,
        **(
            {"SHARDYARD_CHECKPOINTS": str(CHECKPOINTS / assignment.spec.key)}
            if assignment.spec.checkpoints
            else {}
        ),
        # mpirun would collect its ranks' output; a node's belongs in its own log.
        **({"SHARDYARD_CONSOLE": f"/proc/{pid}/fd/1"} if assignment.spec.topology == "mpi" else {}),
        **({"SHARDYARD_CPU_QUOTA": f"{spec.cpus_for(first):g}"} if slower else {}),
    }


def mpirun(assignment: RankAssignment) -> tuple[str, ...]:
    """The launcher's command: ranks in the order of the hosts file, P to a node."""
    return (
        str(PREFIX / "bin" / "mpirun"),
        *("--prefix", str(PREFIX), "--hostfile", str(HOSTS), "--wdir", "/opt/shardyard"),
        *(
            "-n",
            str(assignment.spec.world_size),
            "--map-by",
            f"ppr:{assignment.spec.processes_per_node}:node",
        ),
        *("--bind-to", "none", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"),
        *("--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", INTERFACE),
        *(sys.executable, "-m", "trainer.cluster", "rank"),
    )


def mpirun_environment() -> dict[str, str]:
    """How Open MPI's runtime reaches the nodes. The launcher alone has a key, so it goes to each itself."""
    return {
        "PRTE_MCA_plm_ssh_agent": f"ssh -F {SSH}/config",
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "PRTE_MCA_prte_if_include": INTERFACE,
        # Seconds from its SIGTERM to its SIGKILL: a rank wants to say its last word.
        "PRTE_MCA_odls_base_sigkill_timeout": "5",
    }


def hosts(assignment: RankAssignment) -> str:
    """Open MPI's hosts file: the nodes in the order of their ranks."""
    nodes = [member for member in assignment.members if member.ranks]
    return "".join(f"{node.address} slots={len(node.ranks)}\n" for node in nodes)


def launcher_of(assignment: RankAssignment) -> Agent:
    return next(member for member in assignment.members if member.role == "launcher")
