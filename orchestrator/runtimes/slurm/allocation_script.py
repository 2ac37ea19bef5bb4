"""The script of a job that all runs of a sweep share, and the site of each run in it. Pure."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.runtimes.led import shared_site
from orchestrator.runtimes.slurm.options import SlurmOptions
from orchestrator.runtimes.slurm.script import (
    SPARE_MINUTES,
    TOKEN,
    Job,
    check_of_path,
    chosen,
    exports,
    first_node,
    launcher,
    mpi_variables,
)
from orchestrator.shipped import python_path
from trainer.launch.launchers import LAUNCHER
from trainer.node import mpi_rank
from trainer.node.home import PREFIX
from trainer.node.site import Plan, Site
from trainer.spec.run_spec import RunSpec

SILENCE_S = 30.0  # of an agent


@dataclass(frozen=True)
class AllocationJob:
    """A job for the runs of a sweep.

    directory: the directory of its files, which all nodes share. minutes: time limit, unless the options
    have one. owner, token: see `Job`.
    """

    runs: Sequence[RunSpec]
    directory: Path
    options: SlurmOptions
    owner: str
    token: str
    minutes: int


def log_of(number: str) -> str:
    """The log of a job in the directory of its allocation."""
    return f"job-{number}.log"


def time_limit(runs: Sequence[RunSpec], allowed: int | None) -> int:
    """Minutes in which all runs fit if each takes its whole timeout, but not more than is allowed."""
    needed = math.ceil(sum(run.timeout_s for run in runs) / 60) + SPARE_MINUTES
    return needed if allowed is None else min(needed, allowed)


def is_warm(spec: RunSpec, options: SlurmOptions) -> bool:
    """Whether warm nodes can fork the ranks. Those of srun's PMIx are started by srun itself."""
    return not (spec.topology == "mpi" and options.mpi == "pmix")


def tasks(spec: RunSpec) -> int:
    """Tasks of a run on each node. In topology `single` one process has all ranks."""
    return 1 if spec.topology == "single" else spec.processes_per_node


def nodes(spec: RunSpec) -> int:
    """Nodes of a run."""
    return 1 if spec.topology == "single" else spec.nodes


def _cores(spec: RunSpec) -> int:
    """Cores of each task of a run."""
    return spec.threads * (spec.world_size if spec.topology == "single" else 1)


def _tasks_and_cores(runs: Sequence[RunSpec]) -> tuple[int, int]:
    """Tasks on each node, and cores of each task, that fit every run."""
    most = max(map(tasks, runs))
    return most, math.ceil(max(tasks(run) * _cores(run) for run in runs) / most)


def directives(job: AllocationJob) -> list[str]:
    """The options of sbatch."""
    directory = job.directory.resolve()
    per_node, cores = _tasks_and_cores(job.runs)
    return [
        f"--job-name=shardyard/{directory.parent.name}",
        f"--comment={job.owner}",
        f"--chdir={directory}",
        f"--output={str(directory).replace('%', '%%')}/{log_of('%j')}",  # `%` begins a pattern
        "--open-mode=append",
        "--no-requeue",
        f"--nodes={max(map(nodes, job.runs))}",
        f"--ntasks-per-node={per_node}",
        f"--cpus-per-task={cores}",
        f"--time={job.options.time or job.minutes}",
        *chosen(job.options),
    ]


def render(job: AllocationJob) -> str:
    """The script of the job: the coordinator, which runs on the first node."""
    directory = job.directory.resolve()
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {shlex.quote(each)}" for each in directives(job)),
        "",
        *check_of_path(directory / TOKEN, job.token),
        "",
        # An agent is a step, and so are the ranks of mpirun beside it. srun reads the second variable.
        *exports({"PYTHONPATH": python_path(), "SLURM_OVERLAP": "1"}),
        "",
        *first_node(),
        "",
        shlex.join(["exec", *_node("lead", plan(job).model_dump_json(exclude_defaults=True))]),
    ]
    return "\n".join(lines) + "\n"


def plan(job: AllocationJob) -> Plan:
    """What the coordinator leads: one agent on each node, with all cores of the job there."""
    per_node, cores = _tasks_and_cores(job.runs)
    step = ["srun", "--nodes=1", "--ntasks=1", f"--cpus-per-task={per_node * cores}", "--mpi=none"]
    # Other nodes need the address of the first one alone.
    at_first = ["bash", "-c", f'exec "$@" "$MASTER_ADDR" {home(job.token)}', "bash"]
    return Plan(
        count=max(map(nodes, job.runs)),
        agent=[*step, "--relative={number}", *at_first, *_node("agent", "node")],
        launcher=_node("agent", "launcher", "localhost"),
        channel=str(job.directory.resolve()),
    )


def _node(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "trainer.node", *arguments]


def home(token: str) -> str:
    """The files of a node's agent, as bash writes it. Machines may have several nodes of Slurm."""
    return f'"/tmp/{PREFIX}{token[:16]}-$SLURM_JOB_ID-$SLURMD_NODENAME"'


def site(job: Job, token: str) -> Site:
    """The machines of one run in the allocation, with the command that starts the ranks of mpirun."""
    mpi = job.spec.topology == "mpi"
    shim = [sys.executable, "-S", "-E", mpi_rank.__file__]
    rank = ["bash", "-c", f'exec "$@" {home(token)}/rank.json', "bash", *shim]
    step = [f"--nodes={nodes(job.spec)}", f"--ntasks-per-node={tasks(job.spec)}"]
    # srun starts the ranks of its PMIx itself.
    by_srun = {LAUNCHER: "pmix"} if mpi and job.options.mpi == "pmix" else {}
    return shared_site(
        job.paths,
        job.data_dir,
        "slurm",
        interface="",
        mpirun=[*launcher(job, rank, step)] if mpi else [],
        silence_s=SILENCE_S,
        variables={**mpi_variables(job), **by_srun},
    )
