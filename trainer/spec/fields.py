"""The fields of a run, their types and ranges, and what follows from them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import floor
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from trainer.aggregation.base import Aggregation
from trainer.aggregation.mean import MeanAggregation
from trainer.core.event_schema import MAX_FAULTS
from trainer.core.registry import ImportedComponent
from trainer.core.rng import SOURCES, Source
from trainer.core.strategy import Strategy
from trainer.core.trace import TraceMode
from trainer.data.augmentations.base import Augmentation
from trainer.data.base import Dataset, Partitioner
from trainer.losses.base import Loss
from trainer.lr_schedules.base import LrSchedule
from trainer.models.base import Model
from trainer.optimizers.base import Optimizer
from trainer.spec.byzantine import Byzantine, ranges
from trainer.spec.faults import Fault
from trainer.spec.link import Links
from trainer.spec.node_speed import MAX_NODES, NodeSpeed, normal_form, speeds_by_node
from trainer.spec.registries import (
    ATTACKS,
    AUGMENTATIONS,
    DATASETS,
    LOSSES,
    LR_SCHEDULES,
    MODELS,
    OPTIMIZERS,
    PARTITIONERS,
    REGISTRIES,
    STRATEGIES,
    TRANSPORTS,
)

# The resource limits of a node. Runtimes with containers enforce them; `local` cannot.
NODE_LIMITS = ("cpus", "memory_mb", "pids", "shm_mb")

MAX_CPUS = 256.0

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def _known_transport(name: str) -> str:
    TRANSPORTS.load(name)
    return name


def _each_once(sources: list[Source]) -> list[Source]:
    """The sources in one order, so that equal sets are equal fields."""
    if len(set(sources)) < len(sources):
        raise PydanticCustomError(
            "repeated",
            "{sources} has a source twice; allowed: each of {known} at most once",
            {"sources": f"[{', '.join(sources)}]", "known": ", ".join(SOURCES)},
        )
    return [source for source in SOURCES if source in sources]


def with_derived_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Add the fields whose default depends on other fields: transport and threads; normalise node_speed.

    Where those other fields are invalid, nothing is changed: their own checks report the error.
    """
    values = dict(values)
    if "node_speed" in values:
        values["node_speed"] = normal_form(values["node_speed"], values.get("nodes", 1))
    if "transport" not in values and "strategy" in values:
        with suppress(ValidationError, PydanticCustomError):
            values["transport"] = STRATEGIES.parse(values["strategy"]).transports[0]
    cpus, processes = values.get("cpus", 1.0), values.get("processes_per_node", 1)
    numbers = isinstance(cpus, int | float) and isinstance(processes, int)
    if "threads" not in values and numbers and 0 < cpus <= MAX_CPUS and processes > 0:
        values["threads"] = threads_per_rank(cpus, processes)
    return values


def threads_per_rank(cpus: float, processes: int) -> int:
    """Threads for each of `processes` ranks of a node with `cpus` cores: whole cores, at least 1."""
    return max(1, floor(cpus / processes))


class RunFields(BaseModel):
    """The fields of a run. RunSpec adds the checks across fields and the run key."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    strategy: Annotated[Strategy, STRATEGIES] = Field(description="how ranks train one model together")
    transport: Annotated[str, AfterValidator(_known_transport)] = Field(
        "",
        description="how ranks communicate; default: the first transport of the strategy",
        json_schema_extra={"enum": list(TRANSPORTS.entries)},
    )
    nodes: int = Field(1, ge=1, le=MAX_NODES, description="number of nodes")
    processes_per_node: int = Field(1, ge=1, le=64, description="number of ranks on each node")
    dataset: Annotated[Dataset, DATASETS] = Field(
        "digits", validate_default=True, description="training and test images"
    )
    partitioner: Annotated[Partitioner, PARTITIONERS] = Field(
        "random_partition",
        validate_default=True,
        description="how training samples are partitioned among replicas",
    )
    augmentation: Annotated[Augmentation, AUGMENTATIONS] = Field(
        "none", validate_default=True, description="random changes of training images"
    )
    model: Annotated[Model, MODELS] = Field("lenet", validate_default=True, description="the network")
    loss: Annotated[Loss, LOSSES] = Field(
        "nll", validate_default=True, description="what training minimises, and which answers are right"
    )
    optimizer: Annotated[Optimizer, OPTIMIZERS] = Field(
        "sgd", validate_default=True, description="how a gradient becomes a step"
    )
    lr: float = Field(0.05, gt=0, le=100, description="learning rate")
    lr_scaling: Literal["none", "linear", "sqrt"] = Field(
        "none", description="scaling of lr with the number P of replicas: lr × P (linear) or lr × √P (sqrt)"
    )
    warm_up_epochs: int = Field(
        0,
        ge=0,
        le=10_000,
        description="epochs of linear warm-up: to the scaled rate, or to lr with lr_scaling none",
    )
    lr_schedule: Annotated[LrSchedule, LR_SCHEDULES] = Field(
        "constant", validate_default=True, description="the learning rate over the steps of the training"
    )
    batch_size: int = Field(
        32, ge=1, le=65536, description="samples per step, of each replica or of the run: see batch_per"
    )
    batch_per: Literal["rank", "run"] = Field(
        "rank",
        description="rank: each replica takes batch_size samples per step; run: batch_size is the global "
        "batch, shared evenly among the replicas",
    )
    accumulate: int = Field(
        1,
        ge=1,
        le=65536,
        description="micro-batches into which each replica splits its batch; more need less memory for "
        "activations",
    )
    clip_norm: float | None = Field(
        None,
        gt=0,
        description="largest norm of the gradient; one with a larger norm is scaled down; null: no limit",
    )
    precision: Literal["float32", "bf16"] = Field(
        "float32",
        description="number format of layers in training: float32, or bf16 where torch's autocast uses it",
    )
    recompute: Literal["none", "selective", "full"] = Field(
        "none",
        description="what runs again in the backward pass, and so is not stored: nothing (none), the "
        "attention between its linear layers (selective), or each block of the model (full)",
    )
    epochs: int = Field(3, ge=1, le=10_000, description="passes of each replica over its samples")
    target_accuracy: float | None = Field(
        None, gt=0, le=1, description="test accuracy (0 to 1) that ends training; null: train all epochs"
    )
    patience: int = Field(
        1, ge=1, le=10_000, description="consecutive epochs that must reach target_accuracy"
    )
    seed: int = Field(0, ge=0, lt=2**32, description="seed of the randomness in the run, see vary")
    vary: Annotated[list[Source], AfterValidator(_each_once)] = Field(
        [*SOURCES],
        description="what the seed varies: initial weights (init), the partition (split), the order of "
        "samples with dropout and augmentation (order); the others are the same for every seed",
        json_schema_extra={"uniqueItems": True},
    )
    threads: int = Field(
        1,
        ge=1,
        le=256,
        description="torch threads per rank; default: max(1, floor(cpus / processes_per_node))",
    )
    cpus: float = Field(
        1.0, gt=0, le=MAX_CPUS, description="CPU quota of a node in cores; not enforced by runtime local"
    )
    node_speed: NodeSpeed = Field(
        None,
        description="speed of each node relative to the fastest: [1, 1, 0.5], or {2: 0.5} for the slower "
        "ones, where -1 is the last node; null: all nodes are equally fast",
    )
    memory_mb: int = Field(
        2048, ge=64, description="memory limit of a node in MiB; not enforced by runtime local"
    )
    pids: int = Field(
        512, ge=16, description="limit of processes and threads in a node; not enforced by runtime local"
    )
    shm_mb: int = Field(
        256, ge=16, description="size of a node's /dev/shm in MiB; not enforced by runtime local"
    )
    link: Links | None = Field(
        None,
        description="bandwidth, latency, jitter and loss between nodes; enforced by runtime docker; "
        "null: those of the machine",
    )
    restarts: int = Field(
        0, ge=0, le=100, description="restarts of all ranks by torchrun after failures; topology ddp only"
    )
    checkpoint_epochs: int | None = Field(
        None, ge=1, description="epochs between checkpoints; an interrupted run resumes from the last one"
    )
    checkpoint_steps: int | None = Field(
        None, ge=1, description="steps between checkpoints; excludes checkpoint_epochs"
    )
    faults: list[Fault] = Field(
        [], max_length=MAX_FAULTS, description="faults that are injected into nodes: an action, and `at`"
    )
    on_loss: Literal["stop", "continue"] = Field(
        "stop", description="what the other nodes do when one is lost: stop, or continue without it"
    )
    byzantine: Byzantine | None = Field(
        None,
        description="nodes that attack the aggregation of the strategy, and how they do it; null: none",
    )
    noise_scale: bool = Field(
        False,
        description="measure the gradient noise scale, if ranks average gradients, in two passes over the "
        "gradient in each step",
    )
    save_weights: bool = Field(False, description="save the final weights as weights.npy beside the result")
    trace: TraceMode = Field(
        "steps",
        description="what each rank records of its work and exchanges: nothing (none), one record of work "
        "between two exchanges (steps), or one per interval of the clock (full)",
    )
    debug: bool = Field(
        False,
        description="compare the ranks' exchanges before each one, and fail where they differ; slower",
    )
    timeout_s: float = Field(600, gt=0, le=7 * 86400, description="seconds after which the run is stopped")

    @model_validator(mode="before")
    @classmethod
    def _add_derived_defaults(cls, values: Any) -> Any:
        return with_derived_defaults(values) if isinstance(values, Mapping) else values

    @property
    def has_links(self) -> bool:
        """Whether the run requests links and has any: a single node has none."""
        return self.link is not None and self.nodes > 1

    @property
    def size_label(self) -> str:
        """`3 nodes`, or `8 ranks (2 × 4)` with several ranks per node."""
        if self.processes_per_node == 1:
            return f"{self.nodes} node{'' if self.nodes == 1 else 's'}"
        return f"{self.world_size} ranks ({self.nodes} × {self.processes_per_node})"

    def name_of(self, field: str) -> str:
        """The registered name of a component field, e.g. `name_of("strategy")`."""
        return REGISTRIES[field].name_of(getattr(self, field))

    @property
    def has_imports(self) -> bool:
        """Whether some component is a user's, so that nodes need its code."""
        return any(isinstance(getattr(self, field), ImportedComponent) for field in REGISTRIES)

    @property
    def topology(self) -> str:
        """How the nodes are wired and their ranks launched. Follows from the transport."""
        return TRANSPORTS.load(self.transport).topology

    @property
    def world_size(self) -> int:
        """The number of ranks. Ranks fill one node after the other, as with torchrun and mpirun."""
        return self.nodes * self.processes_per_node

    @property
    def num_replicas(self) -> int:
        """The number of model replicas, each with its own partition of the samples."""
        return self.strategy.replicas(self.world_size)

    @property
    def replicas_in_step(self) -> int:
        """The number of replicas that take part in a step; the fewest if rounds differ in it."""
        rounds = self.strategy.rounds
        return rounds.participation.fewest(self.num_replicas) if rounds else self.num_replicas

    @property
    def batch_per_replica(self) -> int:
        """Samples per step of each replica."""
        return self.batch_size // self.num_replicas if self.batch_per == "run" else self.batch_size

    @property
    def batch_multiplier(self) -> int:
        """The global batch size as a multiple of `batch_size`."""
        return self.num_replicas if self.batch_per == "rank" else 1

    @property
    def checkpoints(self) -> bool:
        """Whether the run writes checkpoints."""
        return self.checkpoint_epochs is not None or self.checkpoint_steps is not None

    @property
    def return_after(self) -> dict[int, float]:
        """Seconds after which a killed node comes back, by the number of the fault that kills it."""
        return {
            number: fault.kill.return_after
            for number, fault in enumerate(self.faults)
            if fault.kill and fault.kill.return_after is not None
        }

    @property
    def on_gpu(self) -> bool:
        """Whether ranks compute on GPUs. Follows from the transport."""
        return TRANSPORTS.load(self.transport).device != "cpu"

    @property
    def node_speeds(self) -> list[float]:
        """The speed of each node, > 0 and at most 1, relative to the fastest."""
        return speeds_by_node(self.node_speed, self.nodes)

    @property
    def slower_nodes(self) -> dict[int, float]:
        """The speeds of the nodes that are slower than the fastest, by node."""
        return {node: speed for node, speed in enumerate(self.node_speeds) if speed < 1}

    def is_slower(self, rank: int) -> bool:
        """Whether the rank is on a node that is slower than the fastest."""
        return self.node_of(rank) in self.slower_nodes

    def node_of(self, rank: int) -> int:
        """The number of the rank's node."""
        return rank // self.processes_per_node

    def container_cpus(self, node: int) -> float:
        """The CPU quota of a node in containers, in cores."""
        return round(self.cpus * self.node_speeds[node], 6)  # no excess from floating-point rounding

    def throttle_cpus(self, node: int) -> float:
        """The CPU quota of a slower node of local processes, in cores.

        The faster ones have no quota there: each of their threads can have a core, whatever `cpus` is.
        """
        return round(self.processes_per_node * self.threads * self.node_speeds[node], 6)

    def threads_for(self, rank: int) -> int:
        """Torch threads of the rank; on a slower node at most the default of its quota."""
        if not self.is_slower(rank):
            return self.threads
        quota = self.container_cpus(self.node_of(rank))
        return min(self.threads, threads_per_rank(quota, self.processes_per_node))

    def thread_environment(self, rank: int = 0) -> dict[str, str]:
        """The environment variables that set the thread counts of numerical libraries.

        Two ranks with two threads each on two cores ran 3 to 25 times slower than with one thread.
        """
        return dict.fromkeys(THREAD_VARIABLES, str(self.threads_for(rank)))

    @property
    def oversubscribed(self) -> bool:
        """Whether some rank has less than a core, so that ranks must sleep while they wait.

        One answer for all ranks, because they must wait in the same way.
        """
        slowest = min(self.node_speeds)
        throttled = slowest < 1 and slowest * self.threads < 1
        return throttled or slowest * self.cpus < self.processes_per_node

    @property
    def aggregation(self) -> Aggregation | None:
        """The aggregation of the strategy; None if it has no such parameter."""
        return getattr(self.strategy, "aggregation", None)

    @property
    def aggregates_by_value(self) -> bool:
        """Whether what an aggregation does depends on the values of the vectors."""
        return self.byzantine is not None or not isinstance(self.aggregation, MeanAggregation | None)

    @property
    def byzantine_nodes(self) -> list[int]:
        """The numbers of the Byzantine nodes, ascending."""
        return self.byzantine.numbers(self.nodes) if self.byzantine else []

    @property
    def byzantine_ranks(self) -> list[int]:
        """The ranks on Byzantine nodes, ascending."""
        nodes = self.byzantine_nodes
        return [rank for rank in range(self.world_size) if self.node_of(rank) in nodes] if nodes else []

    @property
    def byzantine_label(self) -> str:
        """`Byzantine nodes 3 and 5 to 7: sign_flip(scale=2.0)`; empty without any."""
        if self.byzantine is None:
            return ""
        attack = ATTACKS.label(self.byzantine.attack, exclude_defaults=True)
        nodes = self.byzantine_nodes
        return f"Byzantine node{'s' if len(nodes) > 1 else ''} {ranges(nodes)}: {attack}"

    @property
    def ranks_are_threads(self) -> bool:
        """Whether several ranks share one Python interpreter, and so slow each other down."""
        return self.topology == "single" and not self.strategy.forks and self.world_size > 1
