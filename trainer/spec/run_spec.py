"""RunSpec: everything that defines one training, checked before anything starts. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from math import floor
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from trainer.core.strategy import Strategy
from trainer.data.augmentations.base import Augmentation
from trainer.data.base import Dataset, Partitioner
from trainer.models.base import Model
from trainer.optimizers.base import Optimizer
from trainer.spec.checks import CHECKS
from trainer.spec.registries import (
    AUGMENTATIONS,
    DATASETS,
    MODELS,
    OPTIMIZERS,
    PARTITIONERS,
    REGISTRIES,
    STRATEGIES,
    TRANSPORTS,
)

# Fields that say what a node may use. Runtimes with containers enforce them, `local` cannot.
NODE_LIMITS = ("cpus", "memory_mb", "pids", "shm_mb")

MOST_CPUS = 256.0

# Fields that say how a run is carried out, not what is computed: they are no part of its identity.
_NOT_IDENTITY = {"timeout_s", "restarts"}

# Fields that change nothing where one batch is taken at a time.
_PACE = {"lr_scaling", "warm_up_epochs"}

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def _known_transport(name: str) -> str:
    TRANSPORTS.load(name)
    return name


def with_derived_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a run with those whose default follows from others: transport and threads.

    Where the others are no good, theirs stay absent: the fields' own checks say what is wrong.
    """
    values = dict(values)
    if "transport" not in values and "strategy" in values:
        with suppress(ValidationError, PydanticCustomError):
            values["transport"] = STRATEGIES.parse(values["strategy"]).transports[0]
    cpus, processes = values.get("cpus", 1.0), values.get("processes_per_node", 1)
    numbers = isinstance(cpus, int | float) and isinstance(processes, int)
    if "threads" not in values and numbers and 0 < cpus <= MOST_CPUS and processes > 0:
        values["threads"] = threads_per_rank(cpus, processes)
    return values


def threads_per_rank(cpus: float, processes: int) -> int:
    """Threads for each of `processes` ranks in a node that may use `cpus` cores: whole ones, at least 1."""
    return max(1, floor(cpus / processes))


class RunSpec(BaseModel):
    """One training with everything fixed. Components are a name or `{name: ..., parameter: ...}`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    strategy: Annotated[Strategy, STRATEGIES] = Field(description="how ranks train one model together")
    transport: Annotated[str, AfterValidator(_known_transport)] = Field(
        "",
        description="what carries the bytes; default: the first transport of the strategy",
        json_schema_extra={"enum": list(TRANSPORTS.entries)},
    )
    nodes: int = Field(1, ge=1, le=1024, description="nodes that take part in the run")
    processes_per_node: int = Field(1, ge=1, le=64, description="ranks in each node")
    dataset: Annotated[Dataset, DATASETS] = Field(
        "digits", validate_default=True, description="training and test samples"
    )
    partitioner: Annotated[Partitioner, PARTITIONERS] = Field(
        "random_partition", validate_default=True, description="which samples each rank trains on"
    )
    augmentation: Annotated[Augmentation, AUGMENTATIONS] = Field(
        "none", validate_default=True, description="random changes of training images"
    )
    model: Annotated[Model, MODELS] = Field("lenet", validate_default=True, description="the network")
    optimizer: Annotated[Optimizer, OPTIMIZERS] = Field(
        "sgd", validate_default=True, description="how gradients update the weights"
    )
    lr: float = Field(0.05, gt=0, le=100, description="learning rate")
    lr_scaling: Literal["none", "linear", "sqrt"] = Field(
        "none",
        description="linear: lr × P; sqrt: lr × √P; P is the number of batches of batch_size that all "
        "nodes together process at a time",
    )
    warm_up_epochs: int = Field(
        0, ge=0, le=10_000, description="epochs in which the learning rate grows from 1/P of it"
    )
    batch_size: int = Field(
        32, ge=1, le=65536, description="samples per step, of each rank or of the run (batch_per)"
    )
    batch_per: Literal["rank", "run"] = Field(
        "rank",
        description="rank: batch_size counts for each training rank, or for all that hold one copy of the "
        "model; run: for the run, divided evenly",
    )
    epochs: int = Field(3, ge=1, le=10_000, description="passes of each rank over its samples")
    target_accuracy: float | None = Field(
        None,
        gt=0,
        le=1,
        description="test accuracy at which training ends early; null: none",
    )
    patience: int = Field(
        1, ge=1, le=10_000, description="consecutive epochs that must reach target_accuracy"
    )
    seed: int = Field(0, ge=0, lt=2**32, description="seed of all random numbers in the run")
    threads: int = Field(
        1,
        ge=1,
        le=256,
        description="torch threads per rank; default: whole cores of its share of cpus, at least 1",
    )
    cpus: float = Field(
        1.0,
        gt=0,
        le=MOST_CPUS,
        description="CPU limit of a node, in cores; runtime local does not enforce it",
    )
    bottleneck_cpus: float | None = Field(
        None,
        gt=0,
        le=MOST_CPUS,
        description="CPU limit of the last node, to make it slower than the others; null: as the others",
    )
    memory_mb: int = Field(
        2048, ge=64, description="memory limit of a node in MiB; runtime local does not enforce it"
    )
    pids: int = Field(
        512,
        ge=16,
        description="limit of processes and threads in a node; runtime local does not enforce it",
    )
    shm_mb: int = Field(
        256, ge=16, description="size of a node's /dev/shm in MiB; runtime local does not enforce it"
    )
    restarts: int = Field(
        0,
        ge=0,
        le=100,
        description="how often torchrun may restart all ranks after the loss of one; topology ddp only",
    )
    checkpoint_epochs: int | None = Field(
        None,
        ge=1,
        description="epochs between checkpoints; a killed run resumes from the last one",
    )
    checkpoint_steps: int | None = Field(
        None, ge=1, description="steps between checkpoints; excludes checkpoint_epochs"
    )
    save_weights: bool = Field(False, description="keep the final weights as weights.npy beside the result")
    timeout_s: float = Field(600, gt=0, le=7 * 86400, description="seconds after which the run is stopped")

    @model_validator(mode="before")
    @classmethod
    def _add_derived_defaults(cls, values: Any) -> Any:
        return with_derived_defaults(values) if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _fits_together(self) -> RunSpec:
        for check in CHECKS:
            if validation_error := check(self):
                raise validation_error
        return self

    @property
    def size_label(self) -> str:
        """`3 nodes`, or `8 ranks (2 × 4)` where nodes have several."""
        if self.processes_per_node == 1:
            return f"{self.nodes} node{'' if self.nodes == 1 else 's'}"
        return f"{self.world_size} ranks ({self.nodes} × {self.processes_per_node})"

    def name_of(self, field: str) -> str:
        """The registered name of a component field, e.g. `name_of("strategy")`."""
        return REGISTRIES[field].name_of(getattr(self, field))

    @property
    def topology(self) -> str:
        """How the nodes are wired: it follows from the transport."""
        return TRANSPORTS.load(self.transport).topology

    @property
    def world_size(self) -> int:
        """How many ranks there are; they fill one node after the other, as with torchrun and mpirun."""
        return self.nodes * self.processes_per_node

    @property
    def num_replicas(self) -> int:
        """Into how many parts the samples go: one for each copy of the model."""
        return self.strategy.replicas(self.world_size)

    @property
    def batch_per_replica(self) -> int:
        """Samples per step from each part."""
        return self.batch_size // self.num_replicas if self.batch_per == "run" else self.batch_size

    @property
    def batch_multiplier(self) -> int:
        """How many batches of `batch_size` all parts together take at a time."""
        return self.num_replicas if self.batch_per == "rank" else 1

    @property
    def checkpoints(self) -> bool:
        """Whether the run takes any."""
        return self.checkpoint_epochs is not None or self.checkpoint_steps is not None

    @property
    def on_gpu(self) -> bool:
        """Whether every rank computes on a GPU: that follows from the transport too."""
        return TRANSPORTS.load(self.transport).device != "cpu"

    def is_bottleneck(self, rank: int) -> bool:
        """Whether the rank is in the node that is slower than the others, which is the last one."""
        return self.bottleneck_cpus is not None and rank // self.processes_per_node == self.nodes - 1

    def cpus_for(self, rank: int) -> float:
        """Cores that the rank's node may use."""
        slow = self.bottleneck_cpus
        return slow if slow is not None and self.is_bottleneck(rank) else self.cpus

    def threads_for(self, rank: int) -> int:
        """Torch threads of the rank: a node that is held back has no more than such a node would have."""
        if not self.is_bottleneck(rank):
            return self.threads
        return min(self.threads, threads_per_rank(self.cpus_for(rank), self.processes_per_node))

    def thread_environment(self, rank: int = 0) -> dict[str, str]:
        """What the rank's process is told in its environment, so that no library thinks otherwise.

        Two ranks with two threads each on two cores ran 3 to 25 times slower than with one.
        """
        return dict.fromkeys(_THREAD_VARIABLES, str(self.threads_for(rank)))

    @property
    def oversubscribed(self) -> bool:
        """Whether a rank has less than a core, so that waiting must not use it up.

        One answer for all ranks: how they wait is agreed between them.
        """
        return min(self.cpus_for(0), self.cpus_for(self.world_size - 1)) < self.processes_per_node

    @property
    def ranks_are_threads(self) -> bool:
        """Whether several ranks share one interpreter, and so hinder each other."""
        return self.topology == "single" and not self.strategy.forks and self.world_size > 1

    def canonical(self) -> dict[str, Any]:
        """What is computed, without defaults: equal for equal work, whatever a later version adds."""
        fields: dict[str, Any] = {}
        for field, value in self:
            info = type(self).model_fields[field]
            if field in REGISTRIES:
                dumped = REGISTRIES[field].dump(value, exclude_defaults=True)
                if dumped != {"name": info.default}:
                    fields[field] = dumped
            elif field == "threads":
                if value != threads_per_rank(self.cpus, self.processes_per_node):
                    fields[field] = value
            elif field in _PACE and self.batch_multiplier == 1:
                continue
            elif field not in _NOT_IDENTITY and value != info.default:
                fields[field] = value
        return fields

    @property
    def key(self) -> str:
        """The stable run key: the same run has the same key in every sweep, order and version."""
        digest = sha256(json.dumps(self.canonical(), sort_keys=True).encode()).hexdigest()[:8]
        ranks = f"n{self.nodes}" + (f"x{self.processes_per_node}" if self.processes_per_node > 1 else "")
        return f"{self.name_of('strategy')}-{self.transport}-{ranks}-s{self.seed}-{digest}"
