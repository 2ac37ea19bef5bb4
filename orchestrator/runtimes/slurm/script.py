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
from orchestrator.runtimes.slurm.options import REQUEUES, SlurmOptions
from orchestrator.runtimes.slurm.times import seconds_of
from orchestrator.shipped import python_path
from trainer.core.user_code import CODE
from trainer.spec.run_spec import RunSpec
from trainer.training.stopping import FINISHED, REQUEST, SAVED

NOT_SHARED = 66  # exit code of a job that has a node without the shared directory
OWNED = "shardyard "  # begins the comment of a job; the identity of its orchestrator follows
TOO_OFTEN = 69  # of a job that was requeued more often than allowed
NOT_REQUEUED = 70  # of a job that has stopped at a checkpoint and cannot be requeued
SPARE_MINUTES = 2  # of the time limit, beyond the run's timeout: to start and stop
WARNING_S = 120.0  # before the time limit, or a quarter of it; Slurm may be 60 s early
STOP = "stop"
EVERY_NODE = 'srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1'
LAUNCHER_LOG = "launcher"
NEAR_LIMIT = "its time limit"
PREEMPTED = "shardyard: preempted"
TOKEN = "token"
SCRIPT = "job.sh"
TOKEN_VARIABLE = "SHARDYARD_TOKEN"


@dataclass(frozen=True)
class Job:
    """A run as a job.

    name: the name of the job, the same for each attempt of the run. owner: identifies the orchestrator.
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
    """The name of a run's job: the names of its sweep's directory and of its own."""
    directory = paths.directory.resolve()
    return f"shardyard/{directory.parent.name}/{directory.name}"


def time_limit(spec: RunSpec, options: SlurmOptions) -> str:
    """The time limit of the job of a run, as sbatch takes it."""
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
        *_requeueing(job),
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


def allowed_requeues(spec: RunSpec, options: SlurmOptions) -> int:
    """How often Slurm may start the run again: only a run with checkpoints continues."""
    if not spec.checkpoints:
        return 0
    return REQUEUES if options.requeues is None else options.requeues


def _requeueing(job: Job) -> list[str]:
    """Whether Slurm requeues the job, and when it warns the job of its time limit."""
    if not allowed_requeues(job.spec, job.options):
        return ["--no-requeue"]
    limit_s = seconds_of(time_limit(job.spec, job.options))
    return ["--requeue", f"--signal=B:USR1@{round(min(WARNING_S, limit_s / 4))}"]


def render(job: Job) -> str:
    """The script that sbatch gets."""
    lines = ["#!/bin/bash"]
    lines += [f"#SBATCH {shlex.quote(each)}" for each in directives(job)]
    lines += ["", *check_of_path(job.paths.live.resolve() / TOKEN, job.token), ""]
    if job.options.container:
        lines += [*check_of_image(job.options.container), ""]
    lines += exports(environment(job))
    lines += ["", *first_node(), ""]
    if allowed := allowed_requeues(job.spec, job.options):
        lines += _stopped_and_requeued(job, allowed)
    else:
        lines += [shlex.join(["exec", *launcher(job)])]
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
        f"{EVERY_NODE} \\\n    bash -c {shlex.quote(test)} ||\n    exit {NOT_SHARED}",
    ]


def _stopped_and_requeued(job: Job, allowed: int) -> list[str]:
    """The ranks of a run with checkpoints, which Slurm may stop and start again."""
    return [
        "# The run continues after its time limit, preemption or the failure of a node.",
        "export SHARDYARD_REQUEUES=${SLURM_RESTART_COUNT:-0}",
        '[ "$SHARDYARD_REQUEUES" -eq 0 ] || echo "shardyard: requeue $SHARDYARD_REQUEUES"',
        f'[ "$SHARDYARD_REQUEUES" -le {allowed} ] || exit {TOO_OFTEN}',
        f"export SHARDYARD_STOP={shlex.quote(str(job.paths.live.resolve() / STOP))}",
        'rm -rf "$SHARDYARD_STOP"',
        f"""trap 'mkdir -p "$SHARDYARD_STOP" && echo "{NEAR_LIMIT}" >"$SHARDYARD_STOP/{REQUEST}"' USR1""",
        f"{shlex.join(launcher(job))} &",
        'while wait "$!"; code=$?; kill -0 "$!" 2>/dev/null; do :; done',
        f'if [ -e "$SHARDYARD_STOP/{SAVED}" ]; then',
        f'    echo "shardyard: stopped at a checkpoint: $(cat "$SHARDYARD_STOP/{REQUEST}")"',
        f'elif [ ! -e "$SHARDYARD_STOP/{FINISHED}" ] &&',
        '    scontrol -o show job "$SLURM_JOB_ID" | grep -q " PreemptTime=[0-9]"; then',
        f'    echo "{PREEMPTED}"  # mpirun ends at once, and with exit code 0',
        "else",
        "    # Slurm requeues the job of a node that has failed, but it may notice minutes later.",
        f'    [ -e "$SHARDYARD_STOP/{FINISHED}" ] || until {EVERY_NODE} true; do sleep 5; done',
        '    exit "$code"',
        "fi",
        f'scontrol requeue "$SLURM_JOB_ID" || exit {NOT_REQUEUED}',
        "exec sleep 60  # Slurm ends this script",
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
        "SHARDYARD_END_WITH_PARENT": "1",  # srun does not notice the loss of a slurmstepd
        "PYTHONPATH": SOURCES if job.options.container else python_path(),
    }
    if spec.has_imports:
        found[CODE] = str(paths.code.resolve())
    if spec.checkpoints:
        found["SHARDYARD_CHECKPOINTS"] = str((paths.checkpoints / "slurm").resolve())
    return found | mpi_variables(job)


def mpi_variables(job: Job) -> dict[str, str]:
    """The variables of Open MPI; none for other topologies."""
    if job.spec.topology != "mpi":
        return {}
    # TCP, as gloo uses, so that transports compare. Ranks name the interface themselves.
    found = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_mpi_yield_when_idle": "1"}
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


def submission(directory: Path) -> list[str]:
    """The command that submits the script in a directory."""
    return ["sbatch", "--parsable", str(directory.resolve() / SCRIPT)]
