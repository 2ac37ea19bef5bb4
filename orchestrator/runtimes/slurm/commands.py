"""The commands of Slurm."""

from __future__ import annotations

import math
import os
import pwd
import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.results.environment import cores as machine_cores
from orchestrator.runtimes.slurm.options import OWN, VARIABLES
from orchestrator.runtimes.slurm.refusals import FORMAT, Partition, parse_partitions
from orchestrator.runtimes.slurm.states import JobState, parse_sacct, parse_scontrol
from orchestrator.runtimes.slurm.times import seconds_of
from orchestrator.shipped import ROOT

COMMANDS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
LIMIT_S = 30.0  # of a command: a busy controller answers late
NO_CONFIGURATION = "establish a configuration source"  # no file, and no cluster in DNS
MPI = re.compile("pmix|\\bmpi\\b", re.IGNORECASE)
VERSION = re.compile(r"\d+\.\d+[\d.]*")


class SlurmError(Exception):
    """A command of Slurm failed. The message is its own."""


@dataclass(frozen=True)
class QueuedJob:
    """A job of this user. owner: the orchestrator that submitted it. directory: its working directory."""

    number: str
    owner: str
    directory: Path


def call(*argv: str, message: re.Pattern[str] | None = None) -> str:
    """What a command prints. Raises SlurmError with its first message that matches, or else its last."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
            errors="replace",
            env=environment(),
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{argv[0]} does not answer within {LIMIT_S:g} s") from None
    except OSError as error:
        raise SlurmError(f"{argv[0]}: {error.strerror or error}") from error
    if done.returncode:
        raise SlurmError(
            message_of(done.stderr, message) or f"{argv[0]} exited with code {done.returncode}"
        )
    return done.stdout


def environment() -> dict[str, str]:
    """The variables for commands of Slurm: none of those that override what a script says."""
    ours = {*VARIABLES.values(), *(f"SBATCH_{name.upper().replace('-', '_')}" for name in OWN)}
    return {name: value for name, value in os.environ.items() if name not in {*ours, "SBATCH_ARRAY_INX"}}


def message_of(stderr: str, pattern: re.Pattern[str] | None = None) -> str:
    """The first line that matches, or else the last error of a command, without its name."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith('Try "')]  # "sbatch --help" for more information
    if not lines:
        return ""
    found = next(filter(pattern.search, lines), lines[-1]) if pattern else lines[-1]
    return re.sub(r"^\w+: ((error|fatal): +)?", "", found)


def unavailable_reason() -> str | None:
    """Why there is no cluster to use; None if a controller answers."""
    hint = "; to try it here: make slurm-cluster" if (ROOT / "slurm" / "cluster").exists() else ""
    if absent := [name for name in COMMANDS if not shutil.which(name)]:
        return f"Slurm is not installed ({', '.join(absent)} missing){hint}"
    try:
        call("sinfo", "--noheader", "--format=%P")
    except SlurmError as error:
        if NO_CONFIGURATION in str(error):
            return f"no slurm.conf is found: set SLURM_CONF to its path{hint}"
        return f"no Slurm controller answers: {error}"
    return None


def version() -> str:
    """Slurm's version. Raises SlurmError."""
    found = VERSION.search(call("sinfo", "--version"))
    return found[0] if found else "unknown"


def partitions() -> list[Partition]:
    """The partitions that this user can see. Raises SlurmError."""
    return parse_partitions(call("sinfo", "--noheader", f"--format={FORMAT}"))


def accounts() -> list[str]:
    """The accounts that this user can charge; none on a cluster without accounting."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
        query = ("show", "associations", f"user={user}", "format=account")
        return call("sacctmgr", "--noheader", "--parsable2", *query).split()
    except (SlurmError, KeyError):
        return []


def pmix_trouble() -> str | None:
    """Why `srun --mpi=pmix` cannot start; None if srun can load it.

    `srun --mpi=list` lists plugins that cannot be loaded. Other errors, such as a missing account, are not
    about MPI.
    """
    try:
        call("srun", "--mpi=pmix", "--test-only", "--ntasks=1", "true", message=MPI)
    except SlurmError as error:
        return str(error) if MPI.search(str(error)) else None
    return None


def submit(argv: Sequence[str]) -> str:
    """Submit a script. Returns the number of its job. Raises SlurmError."""
    return call(*argv).strip().partition(";")[0]  # a cluster's name may follow


def try_submission(options: Sequence[str]) -> None:
    """Let Slurm check a request without submitting it. Raises SlurmError with its reason."""
    call("sbatch", "--test-only", *options, "--output=/dev/null", "--wrap=true")


def state(number: str) -> JobState | None:
    """A job's state; None if Slurm has forgotten it. Raises SlurmError if it does not answer.

    The controller forgets a job some minutes after its end; the accounting, if there is one, does not.
    """
    try:
        if found := parse_scontrol(call("scontrol", "--oneliner", "show", "job", number)):
            return found
    except SlurmError as error:
        if "Invalid job id" not in str(error):
            raise
    try:
        return parse_sacct(
            call(
                *("sacct", "--jobs", number, "--allocations", "--noheader", "--parsable2"),
                "--format=State,Reason,ExitCode,Timelimit",
            )
        )
    except SlurmError:  # a cluster without accounting
        return None


def queued() -> list[QueuedJob]:
    """The jobs of this user that have not ended. Raises SlurmError."""
    found = []
    for line in call("squeue", "--me", "--noheader", "--format=%i|%k|%Z").splitlines():
        number, owner, directory = line.strip().split("|", 2)
        found.append(QueuedJob(number, owner, Path(directory)))
    return found


def cancel(numbers: Sequence[str]) -> None:
    """Cancel jobs. Raises SlurmError, but not for jobs that have ended."""
    if numbers:
        call("scancel", "--quiet", *numbers)


def host_cores() -> float:
    """Cores of all machines of the cluster. Raises SlurmError.

    Nodes may be several daemons of one machine, which may offer more cores than it has.
    """
    cores: dict[str, float] = {}
    for line in call("scontrol", "--oneliner", "show", "nodes").splitlines():
        fields = dict(re.findall(r"\b(NodeHostName|CPUTot)=(\S+)", line))
        if len(fields) == 2:
            host = fields["NodeHostName"]
            offered = float(fields["CPUTot"])
            own = machine_cores() if host == socket.gethostname() else offered
            cores[host] = max(cores.get(host, 0.0), min(offered, own))
    return sum(cores.values())


def longest_minutes(partitions: str | None) -> int | None:
    """The longest time limit that all of these partitions allow; None: any. Raises SlurmError.

    partitions: their names, separated by commas; None: the default partition.
    """
    chosen = ["--partition", partitions] if partitions else []
    limits = []
    for line in call("sinfo", "--noheader", "--format=%P|%l", *chosen).splitlines():
        name, limit = line.strip().split("|")
        if partitions or name.endswith("*"):
            limits.append(seconds_of(limit))
    shortest = min(limits, default=math.inf)
    return None if shortest == math.inf else int(shortest // 60)
