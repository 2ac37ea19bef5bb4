"""A job of two nodes and a few seconds that tries what can start the ranks of transport mpi."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from orchestrator.identity import identity
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.local.processes import mpirun
from orchestrator.runtimes.slurm import commands
from orchestrator.runtimes.slurm.commands import MPI, SlurmError
from orchestrator.runtimes.slurm.options import SlurmOptions
from orchestrator.runtimes.slurm.script import OWNED, Job, directives, environment, first_node, launcher
from trainer.core.processes import end_with_parent
from trainer.spec.run_spec import RunSpec

LAUNCHES = {"mpirun": "mpirun", "pmix": "srun --mpi=pmix"}  # by the value of `mpi`
SPEC = RunSpec.model_validate({"strategy": "all_reduce", "transport": "mpi", "nodes": 2})
ALLOCATION_S = 10  # in which two nodes must be free
RANKS_S = 30  # in which ranks must start, add a number over the network, and end
MARK = "shardyard-trial"
RANK = f"""
import os
from trainer.launch.interface import interface_variables
from trainer.spec.run_spec import RunSpec
spec = RunSpec.model_validate_json('''{SPEC.model_dump_json(exclude_defaults=True)}''')
os.environ.update(interface_variables(spec, os.environ))
from mpi4py import MPI
raise SystemExit(MPI.COMM_WORLD.allreduce(1) != {SPEC.world_size})
"""
# The options of sbatch that salloc knows and a trial needs.
OPTIONS = ("--comment", "--nodes", "--ntasks-per-node", "--cpus-per-task", "--time")


def try_launches(options: SlurmOptions) -> dict[str, str | None]:
    """Why a launch does not start ranks, by the value of `mpi`; None if it does.

    Args:
        options: the options of the site, such as its partition and account.

    Raises:
        SlurmError: there was no trial: two nodes are not free, or the cluster refuses it.
    """
    absent = {"mpirun": None if mpirun() else "there is no mpirun", "pmix": commands.pmix_trouble()}
    tried = [launch for launch, reason in absent.items() if reason is None]
    if not tried:
        return absent
    output = _run(allocation(options, script(options, tried)))
    return {**absent, **outcomes(output, tried)}


def _job(options: SlurmOptions) -> Job:
    nowhere = RunPaths(Path("/"))
    return Job(SPEC, nowhere, Path("/"), options, "shardyard/doctor", OWNED + identity(), "", mpirun())


def allocation(options: SlurmOptions, text: str) -> list[str]:
    """The command that gets two nodes and runs a script."""
    own = directives(_job(_short(options)))
    chosen = {"--" + name for name in ("partition", "account", "gres", "constraint")}
    wanted = [each for each in own if each.partition("=")[0] in {*OPTIONS, *chosen}]
    return [
        *("salloc", "--quiet", "--job-name=shardyard/doctor", f"--immediate={ALLOCATION_S}"),
        *(*wanted, *(options.arguments or ()), "bash", "-c", text),
    ]


def _short(options: SlurmOptions) -> SlurmOptions:
    """The options with a time limit that suffices for a trial."""
    return options.model_copy(update={"time": "2", "arguments": None})


def script(options: SlurmOptions, launches: list[str]) -> str:
    """Start ranks by each launch, and print its exit code."""
    lines = first_node()
    for launch in launches:
        job = replace(_job(options), options=SlurmOptions.model_validate({"mpi": launch}))
        ranks = shlex.join(["timeout", str(RANKS_S), *launcher(job)[:-2], "-c", RANK])
        values = {
            name: value for name, value in environment(job).items() if not name.startswith("SHARDYARD_")
        }
        exports = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
        lines += ["(", *exports, f"{ranks} </dev/null", ") 2>&1", f'printf "\\n%s\\n" "{MARK} {launch} $?"']
    return "\n".join(lines)


def outcomes(output: str, launches: list[str]) -> Mapping[str, str | None]:
    """Why a launch has failed, by its name; None if it has not."""
    found: dict[str, str | None] = dict.fromkeys(launches, "the trial ended before it")
    parts = re.split(rf"^{MARK} (\w+) (\d+)$", output, flags=re.MULTILINE)
    for said, launch, code in zip(parts[::3], parts[1::3], parts[2::3], strict=False):
        lines = [line.strip(" -*") for line in said.splitlines() if line.strip(" -*")]
        late = f"its ranks do not end within {RANKS_S} s"
        reason = next(filter(MPI.search, lines), lines[-1] if lines else f"exit code {code}")
        found[launch] = {"0": None, "124": late}.get(code, reason)
    return found


def _run(argv: list[str]) -> str:
    """What a command of Slurm prints. It ends with this process's interest in it. Raises SlurmError."""
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=commands.environment(),
        preexec_fn=partial(end_with_parent, signal.SIGTERM),  # salloc then gives its allocation back
    ) as running:
        try:
            output, errors = running.communicate(timeout=ALLOCATION_S + len(LAUNCHES) * (RANKS_S + 5))
        except subprocess.TimeoutExpired:
            raise SlurmError("salloc does not end") from None
        finally:
            if running.poll() is None:
                running.terminate()
    if MARK not in output:
        raise SlurmError(commands.message_of(errors) or f"salloc exited with code {running.returncode}")
    return output
