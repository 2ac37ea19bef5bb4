"""The script of a job that all runs of a sweep share, and that of each run in it. Pure."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.runtimes.slurm.options import SlurmOptions
from orchestrator.runtimes.slurm.script import (
    SPARE_MINUTES,
    TOKEN,
    Job,
    check_of_path,
    chosen,
    environment,
    exports,
    first_node,
    launcher,
)
from orchestrator.shipped import python_path
from trainer.spec.run_spec import RunSpec
from trainer.warm import client

# Starts the client of the warm parent of its node. trainer/slurm_allocation/node.py gives the parent this
# name.
WARM_RANK = 'exec "$@" "shardyard-$SLURM_JOB_ID-$SLURMD_NODENAME"'


@dataclass(frozen=True)
class AllocationJob:
    """A job for the runs of a sweep.

    directory: the directory of its files, which all nodes share. minutes: time limit, unless the options
    have one. warm: whether it has warm nodes. owner, token: see `Job`.
    """

    runs: Sequence[RunSpec]
    directory: Path
    options: SlurmOptions
    owner: str
    token: str
    minutes: int
    warm: bool


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
    """The script of the job."""
    directory = job.directory.resolve()
    lead = ["exec", sys.executable, "-m", "trainer.slurm_allocation", str(directory)]
    commands = [shlex.join(lead), *([shlex.join(warm_nodes(job))] if job.warm else [])]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {shlex.quote(each)}" for each in directives(job)),
        "",
        *check_of_path(directory / TOKEN, job.token),
        "",
        # A run is a step beside the one of the warm nodes. srun reads the second variable.
        *exports({"PYTHONPATH": python_path(), "SLURM_OVERLAP": "1"}),
        "",
        *first_node(),
        "",
        " \\\n    ".join(commands),
    ]
    return "\n".join(lines) + "\n"


def warm_nodes(job: AllocationJob) -> Sequence[str]:
    """The command that starts one process on each node, with all cores of the job there."""
    count, (per_node, cores) = max(map(nodes, job.runs)), _tasks_and_cores(job.runs)
    return (
        *("srun", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"),
        *(f"--cpus-per-task={per_node * cores}", "--mpi=none", "--kill-on-bad-exit=1"),
        *(sys.executable, "-m", "trainer.slurm_allocation.node"),
    )


def render_run(job: Job, warm: bool) -> str:
    """The script that starts the ranks of one run in the allocation."""
    spec = job.spec
    rank = ["bash", "-c", WARM_RANK, "bash", sys.executable, "-S", "-E", client.__file__] if warm else ()
    step = [f"--nodes={nodes(spec)}", f"--ntasks-per-node={tasks(spec)}", f"--cpus-per-task={_cores(spec)}"]
    lines = ["#!/bin/bash", *exports(environment(job)), shlex.join(["exec", *launcher(job, rank, step)])]
    return "\n".join(lines) + "\n"
