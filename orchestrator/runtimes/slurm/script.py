"""The script of a run's job. Pure."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.slurm.container import PYTHON, SOURCES, check_of_image, wrapped
from orchestrator.shipped import python_path
from orchestrator.sweeps.slurm import SlurmOptions
from trainer.imported.source import CODE
from trainer.spec.run_spec import RunSpec

NOT_SHARED = 66  # exit code of a job that has a node without the shared directory
OWNED = "shardyard "  # begins the comment of a job; the identity of its orchestrator follows
SPARE_MINUTES = 2  # of the time limit, beyond the run's timeout: to start and stop
LAUNCHER_LOG = "launcher"
TOKEN = "token"
SCRIPT = "job.sh"
TOKEN_VARIABLE = "SHARDYARD_TOKEN"


@dataclass(frozen=True)
class Job:
    """A run as a job.

    name: of the job, the same for each attempt of the run. owner: identifies the orchestrator.
    token: content of the file that every node must see. mpirun: its path.
    """

    spec: RunSpec
    paths: RunPaths
    data_dir: Path
    options: SlurmOptions
    name: str
    owner: str
    token: str
    mpirun: Path | None = None


def job_name(paths: RunPaths) -> str:
    """Of a run's job: the names of its sweep's directory and of its own."""
    directory = paths.directory.resolve()
    return f"shardyard/{directory.parent.name}/{directory.name}"


def time_limit(spec: RunSpec, options: SlurmOptions) -> str:
    """Of the job of a run, as sbatch takes it."""
    return options.time or str(math.ceil(spec.timeout_s / 60) + SPARE_MINUTES)


def directives(job: Job) -> list[str]:
    """The options of sbatch."""
    spec, options = job.spec, job.options
    single = spec.topology == "single"  # one process has all ranks
    directory = job.paths.directory.resolve()
    found = [
        f"--job-name={job.name}",
        f"--comment={job.owner}",
        f"--chdir={directory}",
        # `%` begins a pattern
        f"--output={str(job.paths.log(LAUNCHER_LOG).resolve()).replace('%', '%%')}",
        "--open-mode=append",
        "--no-requeue",
        f"--nodes={1 if single else spec.nodes}",
        f"--ntasks-per-node={1 if single else spec.processes_per_node}",
        f"--cpus-per-task={spec.threads * (spec.world_size if single else 1)}",
        f"--time={time_limit(spec, options)}",
    ]
    return [*found, *chosen(options)]


def chosen(options: SlurmOptions) -> list[str]:
    """The options of sbatch that the user has chosen, but for the time limit."""
    named = {name: getattr(options, name) for name in ("partition", "account", "gres", "constraint")}
    return [*(f"--{name}={value}" for name, value in named.items() if value), *(options.arguments or ())]


def render(job: Job) -> str:
    """The script that sbatch gets."""
    lines = ["#!/bin/bash"]
    lines += [f"#SBATCH {shlex.quote(each)}" for each in directives(job)]
    lines += ["", *check_of_path(job.paths.live.resolve() / TOKEN, job.token), ""]
    if job.options.container:
        lines += [*check_of_image(job.options.container), ""]
    lines += exports(environment(job))
    lines += ["", *first_node(), "", shlex.join(["exec", *launcher(job)])]
    return "\n".join(lines) + "\n"


def exports(variables: Mapping[str, str]) -> list[str]:
    """Lines that set variables."""
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def check_of_path(file: Path, token: str) -> list[str]:
    """A step on every node. It needs only bash: Python may lie in a directory that is not shared, too."""
    path, directory = (shlex.quote(str(each)) for each in (file, file.parent.parent))
    complaint = f'echo "shardyard: node $SLURMD_NODENAME does not see" {directory}'
    test = f'[ "$(cat {path} 2>/dev/null)" = {token} ] || {{ {complaint}; exit 1; }}'
    return [
        "# Results and events go through a directory that all nodes share.",
        'srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \\\n'
        f"    bash -c {shlex.quote(test)} ||\n    exit {NOT_SHARED}",
    ]


def first_node() -> list[str]:
    """Where rank 0 is. The name of a node need not be a name of the network; Slurm knows its address."""
    address = "sed -nE 's/.* NodeAddr=(\\S+).*/\\1/p'"
    return [
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f'MASTER_ADDR=$(scontrol --oneliner show node "$first" | {address})',
        "export MASTER_ADDR",
    ]


def environment(job: Job) -> dict[str, str]:
    """The variables of all ranks."""
    spec, paths = job.spec, job.paths
    live = paths.live.resolve()
    found = spec.thread_environment() | {
        "SHARDYARD_SPEC": str(paths.spec.resolve()),
        "SHARDYARD_DATA": str(job.data_dir.resolve()),
        "SHARDYARD_OUT": str(live),
        "SHARDYARD_CONSOLE": f"{paths.directory.resolve()}/node-{{node}}.log",
        "PYTHONPATH": SOURCES if job.options.container else python_path(),
    }
    if spec.has_imports:
        found[CODE] = str(paths.code.resolve())
    if spec.checkpoints:
        found["SHARDYARD_CHECKPOINTS"] = str((paths.checkpoints / "slurm").resolve())
    if spec.topology == "mpi":
        # TCP, as gloo uses, so that transports compare. Ranks name the interface themselves.
        found |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_mpi_yield_when_idle": "1"}
        if job.options.mpi != "pmix":
            found |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return found


def mounts(job: Job) -> dict[Path, bool]:
    """Directories of a run that its containers need, and whether they write there."""
    found = {job.data_dir.resolve(): False, job.paths.directory.resolve(): True}
    if job.spec.has_imports:
        found[job.paths.code.resolve()] = False
    return found


def launcher(job: Job, rank: Sequence[str] = (), step: Sequence[str] = ()) -> Sequence[str]:
    """The command that starts the ranks.

    Args:
        rank: starts one rank; default: a fresh process.
        step: further options of srun.
    """
    spec = job.spec
    contained: Sequence[str] = ()
    if container := job.options.container:
        contained, rank = wrapped(container, mounts(job), (PYTHON, "-m", "trainer"))
    rank = rank or (sys.executable, "-m", "trainer")
    if spec.topology == "mpi" and job.options.mpi != "pmix":
        per_node = f"ppr:{spec.processes_per_node}:node"
        options = ("-n", str(spec.world_size), "--map-by", per_node, "--bind-to", "none")
        return (str(job.mpirun or "mpirun"), *options, *rank)
    ranks = 1 if spec.topology == "single" else spec.world_size
    mpi = "pmix" if spec.topology == "mpi" else "none"
    return (
        "srun",
        f"--ntasks={ranks}",
        "--distribution=block",
        f"--mpi={mpi}",
        "--kill-on-bad-exit=1",
        *step,
        *contained,
        *rank,
    )


def submission(paths: RunPaths) -> list[str]:
    """The command that submits the script."""
    return ["sbatch", "--parsable", str(paths.directory.resolve() / SCRIPT)]
