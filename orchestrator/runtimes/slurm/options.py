"""Options of Slurm jobs: `slurm:` in a sweep file, and a file for all sweeps of a site."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from orchestrator.errors import InputError
from orchestrator.sweeps.validation import dotted, error_lines
from orchestrator.sweeps.yaml import read_yaml

SITE_FILE = Path("shardyard") / "slurm.yml"  # in the user's directory of configuration files
TIME = r"^([0-9]{1,9}(:[0-9]{2}){0,2}|[0-9]{1,9}-[0-9]{1,9}(:[0-9]{2}){0,2})$"
# sbatch reads these variables, and they take precedence over the options in a script.
VARIABLES = {
    "partition": "SBATCH_PARTITION",
    "account": "SBATCH_ACCOUNT",
    "time": "SBATCH_TIMELIMIT",
    "gres": "SBATCH_GRES",
    "constraint": "SBATCH_CONSTRAINT",
}
# What Shardyard sets itself, and without which it cannot find or follow its jobs.
OWN = (
    *("array", "chdir", "comment", "cpus-per-task", "dependency", "error", "export", "help", "input"),
    *(
        "job-name",
        "no-requeue",
        "nodes",
        "ntasks",
        "ntasks-per-node",
        "open-mode",
        "output",
        "parsable",
        "requeue",
    ),
    *("signal", "test-only", "version", "wait", "wrap"),
)
REQUEUES = 10
MAX_REQUEUES = 100
ARGUMENT = re.compile(r"--([a-z][a-z0-9-]*)(=[\x21-\x7e]+)?", re.ASCII)

# Words of printable characters: they end up in a line of the job script.
ImageName = Annotated[str, StringConstraints(pattern=r"^[\x21-\x2c\x2e-\x7e][\x21-\x7e]{0,299}$")]
Word = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,200}$")]


def _check_argument(text: str) -> str:
    match = ARGUMENT.fullmatch(text)
    if not match:
        raise ValueError("Input should be an option of sbatch in its long form: --NAME or --NAME=VALUE")
    if match[1] in OWN:
        raise ValueError(f"Input should not be --{match[1]}, which Shardyard sets")
    if match[1].startswith("container"):
        raise ValueError(
            f"Input should not be --{match[1]}: the key `container` names the image of the ranks"
        )
    return text


class Container(BaseModel):
    """The image that ranks run in, and what runs it on the nodes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    engine: Literal["apptainer", "pyxis"] = Field(
        description="apptainer: `apptainer exec` in each step; pyxis: `srun --container-image`"
    )
    image: ImageName = Field(
        description="the trainer image, as the engine names it: a file that all nodes see, or an address"
    )


class SlurmOptions(BaseModel):
    """Options of the jobs of a sweep. What is not set is left to the site file, then to Slurm."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    allocation: Literal["run", "sweep"] | None = Field(
        default=None,
        description="a job for each run (default), or one for the whole sweep, with warm nodes",
    )
    partition: Word | None = Field(default=None, description="partition, or several separated by commas")
    account: Word | None = Field(default=None, description="account that is charged")
    time: Annotated[str, StringConstraints(pattern=TIME)] | None = Field(
        default=None,
        description="time limit of each job in quotes, such as '30' (minutes) or '1:00:00'; default: the "
        "run's timeout_s and two minutes; with allocation: sweep, the sum over all runs and two minutes, "
        "but not more than the partition allows",
    )
    gres: Word | None = Field(default=None, description="generic resources of each node, such as gpu:1")
    constraint: Word | None = Field(default=None, description="features that nodes must have")
    mpi: Literal["mpirun", "pmix"] | None = Field(
        default=None, description="what starts ranks of transport mpi: mpirun (default), or srun --mpi=pmix"
    )
    container: Container | None = Field(
        default=None,
        description="run ranks in containers of the trainer image, such as {engine: apptainer, "
        "image: /shared/trainer.sif}",
    )
    requeues: int | None = Field(
        default=None,
        ge=0,
        le=MAX_REQUEUES,
        description=f"how often a run with checkpoints is requeued; default: {REQUEUES}",
    )
    arguments: list[Annotated[str, AfterValidator(_check_argument)]] | None = Field(
        default=None, description="more options of sbatch, such as --exclusive"
    )

    def over(self, site: SlurmOptions) -> SlurmOptions:
        """These options, and those of the site where these are not set."""
        return SlurmOptions(**{**site.model_dump(exclude_none=True), **self.model_dump(exclude_none=True)})


def site_path() -> Path:
    """The site file of this user, whether it exists or not."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / SITE_FILE


def read_site_file(path: Path) -> SlurmOptions:
    """The options in a site file; none without a file.

    Raises:
        InputError: names file, key, value and what is allowed.
    """
    if not path.exists():
        return SlurmOptions()
    content, _ = read_yaml(path)
    keys = list(SlurmOptions.model_fields)
    if not isinstance(content, dict):
        raise InputError(f"{path}: must be a mapping with the keys {', '.join(keys)}")
    try:
        return SlurmOptions.model_validate(content)
    except ValidationError as error:
        lines = error_lines(error, lambda at: f"{path}: {dotted(at)}", lambda _: keys)
        raise InputError("\n".join(lines)) from error


def read_variables(env: Mapping[str, str]) -> SlurmOptions:
    """The options that variables of sbatch name.

    Raises:
        InputError: names variable, value and what is allowed.
    """
    content = {key: env[name] for key, name in VARIABLES.items() if env.get(name)}
    try:
        return SlurmOptions.model_validate(content)
    except ValidationError as error:
        lines = error_lines(error, lambda at: VARIABLES[str(at[0])])
        raise InputError("\n".join(lines)) from error
