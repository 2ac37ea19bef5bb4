"""Launchers: the variables with which each says which rank a process is, and where the ranks meet.

A launcher is one entry of LAUNCHERS. Nothing is assumed where a variable is missing: no localhost, and no
world of one rank.
"""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Literal

Env = Mapping[str, str]
Names = tuple[str, ...]

LAUNCHER = "SHARDYARD_LAUNCHER"  # names the launcher; unset: it is detected
ALONE = "none"  # its value for a process that has all ranks of its run
PORT = 29500  # where a pod or a virtual machine has all ports for itself
NODELIST_PORTS = range(20000, 30000)  # below those that Linux gives to clients
MAX_HOSTS = 100_000  # in a range of a nodelist


class LaunchError(Exception):
    """A variable of the environment is missing or contradicts the spec. The message names it."""


@dataclass(frozen=True)
class Launcher:
    """The variables of a launcher. Of several for one value, the first that is set counts.

    Attributes:
        starts: a process for each rank, or one for each node.
        number: the number of the rank or node, from 0.
        count: the number of ranks or nodes.
        local_rank: the rank within the node.
        ranks_per_node: the ranks of each node, if it starts nodes.
        hosts: the host of rank 0, and how to read it from the value.
        ports: the port on which rank 0 listens.
        port: the same, if none of them is set.
        job: number of the job, from which a port follows; for machines that jobs share.
        gpus_per_node: how many GPUs a node has.
        mpi: whether its ranks can be those of MPI.
    """

    starts: Literal["ranks", "nodes"]
    number: Names
    count: Names
    local_rank: Names = ()
    ranks_per_node: Names = ()
    hosts: tuple[tuple[str, Callable[[str], str]], ...] = ()
    ports: Names = ("MASTER_PORT",)
    port: int | None = None
    job: Names = ()
    gpus_per_node: Names = ()
    mpi: bool = False

    @property
    def host_names(self) -> Names:
        return tuple(name for name, _ in self.hosts)


def one_host(text: str) -> str:
    """The host of a variable that holds one."""
    return text.strip()


def first_line(text: str) -> str:
    """The first host of a list with one in each line."""
    return text.strip().partition("\n")[0].strip()


def expand_nodelist(text: str) -> Iterator[str]:
    """The hosts of a Slurm nodelist: `node[1-3,7],x01` is node1, node2, node3, node7, x01.

    Raises:
        ValueError: it is not a nodelist.
    """
    # A comma in brackets separates ranges; others separate hosts.
    for entry in re.split(r",(?![^\[]*\])", text.strip()):
        parts = re.split(r"\[([^\[\]]+)\]", entry)
        if not re.fullmatch(r"[\w.:-]+", "".join(parts[::2]) or "-", re.ASCII) or not entry:
            raise ValueError(f"{entry!r} is not a host or a range of hosts")
        choices = [[*_numbers(part)] if place % 2 else [part] for place, part in enumerate(parts)]
        yield from map("".join, product(*choices))


def _numbers(ranges: str) -> Iterator[str]:
    """The numbers of `1-3,007`, with the zeros of the first of each range."""
    for each in ranges.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", each, re.ASCII)
        if not match:
            raise ValueError(f"{each!r} is not a range of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last <= first + MAX_HOSTS:
            raise ValueError(f"{each!r} is not a range of numbers")
        yield from (str(number).zfill(len(match[1])) for number in range(first, last + 1))


def first_of_nodelist(text: str) -> str:
    """The first host of a Slurm nodelist. Raises ValueError."""
    return next(expand_nodelist(text))


SLURM_COUNT = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
# A step may use some nodes of its job only. MASTER_ADDR precedes both: a node's name in Slurm need not be a
# name of the network.
SLURM_HOSTS = (
    ("MASTER_ADDR", one_host),
    ("SLURM_STEP_NODELIST", first_of_nodelist),
    ("SLURM_JOB_NODELIST", first_of_nodelist),
)
MASTER = (("MASTER_ADDR", one_host),)

# From the innermost to the outermost: torchrun may run in a Slurm job, and not the reverse. Of launchers
# that agree, the first says where rank 0 is, if it knows.
LAUNCHERS: Mapping[str, Launcher] = {
    "torchrun": Launcher("ranks", ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), hosts=MASTER),
    "openmpi": Launcher(
        "ranks",
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        hosts=MASTER,
        mpi=True,
    ),
    "pmix": Launcher(  # PMIx has no variable for the number of ranks
        "ranks",
        ("PMIX_RANK",),
        ("OMPI_COMM_WORLD_SIZE", *SLURM_COUNT),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
        hosts=SLURM_HOSTS,
        job=("SLURM_JOB_ID",),
        mpi=True,
    ),
    "slurm": Launcher(
        "ranks",
        ("SLURM_PROCID",),
        SLURM_COUNT,
        ("SLURM_LOCALID",),
        hosts=SLURM_HOSTS,
        job=("SLURM_JOB_ID",),
    ),
    "kubeflow": Launcher(
        "nodes",
        ("PET_NODE_RANK",),
        ("PET_NNODES",),
        ranks_per_node=("PET_NPROC_PER_NODE",),
        hosts=(("PET_MASTER_ADDR", one_host),),
        ports=("PET_MASTER_PORT",),
        port=PORT,
    ),
    "skypilot": Launcher(
        "nodes",
        ("SKYPILOT_NODE_RANK",),
        ("SKYPILOT_NUM_NODES",),
        hosts=(("SKYPILOT_NODE_IPS", first_line),),
        port=PORT,
        gpus_per_node=("SKYPILOT_NUM_GPUS_PER_NODE",),
    ),
    # An Indexed Job sets the index. Its manifest sets the others; MASTER_ADDR is the name that the headless
    # service gives the first pod.
    "kubernetes": Launcher("nodes", ("JOB_COMPLETION_INDEX",), ("NNODES",), hosts=MASTER, port=PORT),
}

# What starts the ranks of a topology where Shardyard itself runs them: it sets torchrun's variables.
STARTED_BY: Mapping[str, str] = {"single": ALONE, "ddp": "torchrun", "rpc": "torchrun", "mpi": "openmpi"}


@dataclass(frozen=True)
class Placement:
    """Where a launcher says that this process is.

    node: number of its node. size: ranks of the run. rank: None if it starts nodes of several ranks.
    """

    name: str
    node: int
    size: int
    rank: int | None
    said: str  # its variables and their values

    def agrees_with(self, other: Placement) -> bool:
        ranks = {rank for rank in (self.rank, other.rank) if rank is not None}
        return (self.node, self.size) == (other.node, other.size) and len(ranks) <= 1


def find_launchers(env: Env, mpi: bool = False) -> list[str]:
    """The launchers that started this process: the one that SHARDYARD_LAUNCHER names, or those that fit.

    A launcher fits if its variables for number and count are set.

    Args:
        mpi: only those that can start MPI ranks; MPI itself uses no other variables.

    Returns:
        Their names, innermost first; none if there are no such variables at all.

    Raises:
        LaunchError: the named launcher is unknown, or a variable of a launcher is missing.
    """
    known = {name: each for name, each in LAUNCHERS.items() if each.mpi or not mpi}
    if named := env.get(LAUNCHER):
        if named == ALONE:
            return []
        if named not in known:
            raise LaunchError(f"{LAUNCHER} is {named!r}; allowed: {', '.join([*known, ALONE])}")
        return [named]
    fitting = [name for name, each in known.items() if is_set(env, each.number) and is_set(env, each.count)]
    # JOB_COMPLETION_INDEX alone is no contradiction: Kubeflow's pods are those of an Indexed Job, too.
    partly = [each for each in known.values() if is_set(env, each.number)]
    if not fitting and partly:
        value_of(env, partly[0].count)
    return fitting


def nothing_set(mpi: bool = False) -> LaunchError:
    """The error for an environment without the variables of any launcher."""
    known = {name: each.number[0] for name, each in LAUNCHERS.items() if each.mpi or not mpi}
    first, *others = [f"{variable} ({name})" for name, variable in known.items()]
    variable = first.partition(" ")[0]
    return LaunchError(f"{variable} is not set; the launcher sets it. Others set {', '.join(others)}")


def place(name: str, env: Env, ranks_per_node: int) -> Placement:
    """What a launcher says. Raises LaunchError if a variable is missing or not a whole number."""
    launcher = LAUNCHERS[name]
    number, count = integer(env, launcher.number), integer(env, launcher.count)
    names = (set_name(env, launcher.number), set_name(env, launcher.count))
    said = " and ".join(f"{each} is {env[each]}" for each in names if each)
    if launcher.starts == "ranks":
        return Placement(name, number // ranks_per_node, count, number, said)
    rank = number if ranks_per_node == 1 else None
    return Placement(name, number, count * ranks_per_node, rank, said)


def address_of_rank_0(names: list[str], env: Env) -> tuple[str, int]:
    """Host and port where rank 0 listens, as the first launcher says that knows it. Raises LaunchError."""
    for launcher in (LAUNCHERS[name] for name in names):
        if host := _host(launcher, env):
            return host, _port(launcher, env)
    variables = dict.fromkeys(each for name in names for each in LAUNCHERS[name].host_names)
    raise LaunchError(f"{' or '.join(variables)} is not set; it says where rank 0 is")


def host_of_rank_0(names: list[str], env: Env) -> str | None:
    """Its host, if one of these launchers says it. Raises LaunchError for a variable that holds none."""
    return next(filter(None, (_host(LAUNCHERS[name], env) for name in names)), None)


def _host(launcher: Launcher, env: Env) -> str | None:
    for name, first in launcher.hosts:
        if not env.get(name):
            continue
        try:
            host = first(env[name])
        except ValueError as error:
            raise LaunchError(f"{name} is {env[name]!r}: {error}") from None
        if not re.fullmatch(r"[\w.:%-]+", host, re.ASCII):
            raise LaunchError(f"{name} is {env[name]!r}: {host!r} is not a host")
        return host
    return None


def _port(launcher: Launcher, env: Env) -> int:
    if set_name(env, launcher.ports):
        port = integer(env, launcher.ports)
        if not 0 < port < 65536:
            raise LaunchError(f"{set_name(env, launcher.ports)} is {port}; allowed: 1 to 65535")
        return port
    if launcher.port is not None:
        return launcher.port
    if set_name(env, launcher.job):
        return NODELIST_PORTS[integer(env, launcher.job) % len(NODELIST_PORTS)]
    raise LaunchError(f"{' or '.join([*launcher.ports, *launcher.job])} is not set; rank 0 listens there")


def free_port(ports: range = NODELIST_PORTS) -> int:
    """Any free port, for rank 0 on this machine. Raises OSError if none is free."""
    for port in random.sample(ports, len(ports)):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("", port))
            return port
    raise OSError(f"no port of {ports[0]} to {ports[-1]} is free")


def set_name(env: Env, names: Names) -> str | None:
    """The first of these variables that is set."""
    return next((name for name in names if name in env), None)


def is_set(env: Env, names: Names) -> bool:
    return set_name(env, names) is not None


def value_of(env: Env, names: Names) -> str:
    """The value of the first of these variables that is set. Raises LaunchError if none is."""
    name = set_name(env, names)
    if name is None:
        raise LaunchError(f"{' or '.join(names)} is not set; the launcher sets it")
    return env[name]


def integer(env: Env, names: Names) -> int:
    """The value as a whole number. Raises LaunchError."""
    value = value_of(env, names)
    try:
        return int(value)
    except ValueError:
        raise LaunchError(f"{set_name(env, names)} is {value!r}, not a whole number") from None
