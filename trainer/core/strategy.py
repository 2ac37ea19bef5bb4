"""Base class of strategies: how ranks train one model together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from trainer.core.participation import Rounds
from trainer.core.registry import Component

# Parameters that several strategies share.
Uneven = Annotated[
    Literal["join", "drop", "pad"],
    Field(
        description="when partitions differ in size: join, a rank without samples left takes part with "
        "weight 0; drop, all stop with the first; pad, it repeats samples until all have finished"
    ),
]
Init = Annotated[
    Literal["broadcast", "independent"], Field(description="initial weights: rank 0's, or each rank's own")
]
Weighting = Annotated[
    Literal["equal", "size"],
    Field(
        description="weights of an average: equal, or size, in proportion to the samples that each rank "
        "has trained on since the last average"
    ),
]
OptimizerState = Annotated[
    Literal["keep", "average", "reset"],
    Field(description="optimizer state (momentum, moments) when weights are averaged"),
]
SplitPoints = Annotated[
    list[str] | None,
    Field(
        description="first block of every pipeline stage but the first; null: those that make the "
        "slowest stage the fastest, by the time of its blocks, measured before training, and of what it "
        "sends at 1 Gbit/s"
    ),
]
# Parts of a model that can run again in a backward pass.
Recompute = Literal["selective", "full"]
# Units after which checkpoints can be taken: at their ends all ranks have equal progress.
Interval = Literal["epochs", "steps"]
# Strategies that others are compared with.
Equal = Literal["serial", "all_reduce"]
# The transports with all operations of a Communicator, the default first. A new one is added here.
ALL_TRANSPORTS = ("mpi", "gloo", "rpc", "memory", "nccl")
CPU_TRANSPORTS = ("gloo", "mpi", "rpc", "memory")
Replicate = Annotated[
    int,
    Field(
        ge=1,
        description="copies of the model, each sharded over neighbouring nodes; it divides their number",
    ),
]
MicroBatches = Annotated[int, Field(ge=1, le=65536, description="micro-batches that a batch is split into")]


def divisor_error(name: str, value: int, ranks: int) -> str | None:
    """Why a parameter does not divide the number of ranks, or None."""
    if ranks % value == 0:
        return None
    divisors = ", ".join(str(each) for each in range(1, ranks + 1) if ranks % each == 0)
    return f"{name} is {value} on {ranks} nodes; allowed: {divisors}"


def order_of_arrival(applied: str) -> str:
    """The caveat of a server that applies what workers push, such as `gradients`, when it arrives."""
    return (
        f"{applied} are applied in order of arrival: with several workers equal seeds give equal weights "
        f"only if {applied} arrive in the same order"
    )


def runs_on(strategy: Strategy, ranks: int) -> bool:
    """Whether a strategy can run on so many ranks."""
    return strategy.min_nodes <= ranks <= (strategy.max_nodes or ranks)


class Strategy(Component):
    """How ranks train one model together. Every rank runs `train`, which is the algorithm."""

    # Transports that it supports; the first is the default.
    transports: ClassVar[Annotated[tuple[str, ...], Field(min_length=1)]]
    # It exchanges everything over its communicator, so that virtual nodes can run it.
    virtual: ClassVar[bool] = True
    # If `virtual` is False: a strategy with the same or similar updates that virtual nodes can run.
    equivalent: ClassVar[str | None] = None
    # The least number of ranks.
    min_nodes: ClassVar[int] = 1
    # The largest number of ranks; None: any.
    max_nodes: ClassVar[int | None] = None
    # The first ranks are servers: they hold the model for the others and train on no samples.
    servers: ClassVar[int] = 0
    # Ranks hold partitions of one model and process the same samples.
    partitions_model: ClassVar[bool] = False
    # It cuts the model between blocks.
    cuts_model: ClassVar[bool] = False
    # False: every rank trains on the whole training set.
    uses_partition: ClassVar[bool] = True
    # The optimizers of its mathematics; empty: any.
    optimizers: ClassVar[tuple[str, ...]] = ()
    # False: each rank has only a part of a layer's gradient.
    full_gradients: ClassVar[bool] = True
    # Ranks divide gradients or optimizer state among them, so each computes less if there are more.
    shards_state: ClassVar[bool] = False
    # False: after an epoch each rank evaluates its own model.
    evaluates_together: ClassVar[bool] = True
    # False: it exchanges values inside a forward pass or leaves the pass to a library, in float32 only.
    autocasts: ClassVar[bool] = True
    # False: it computes gradients and steps by other means than the methods of a replica.
    uses_replica: ClassVar[bool] = True
    # Every parameter that ever gets a gradient must get one in each step, on each rank.
    every_gradient: ClassVar[bool] = False
    # All ranks process every batch together, so layers may communicate.
    synchronous: ClassVar[bool] = False
    # Each step of a replica applies the mean, over all replicas, of the gradients of an earlier backward
    # pass, in the order of passes. So the replica can measure their noise.
    averages_gradients: ClassVar[bool] = False
    # False: no model, no data, no torch (fault_injection).
    trains: ClassVar[bool] = True
    # In topology single, ranks are forked processes instead of threads.
    forks: ClassVar[bool] = False
    # Ranks update one model in shared memory: each step of any rank is an update of it.
    shares_model: ClassVar[bool] = False
    # False: steps exchange nothing over a transport, as with one average at the end or shared memory.
    exchanges_in_steps: ClassVar[bool] = True
    # "epochs", "steps": after these, checkpoints can be taken: all state is in the replica, or in
    # `session.common_state` and `session.own_state`.
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ()
    # Transports over which the other nodes continue when one is lost; empty: they cannot.
    elastic_transports: ClassVar[tuple[str, ...]] = ()
    # False: time spent waiting for other ranks counts as communication.
    attributes_stragglers: ClassVar[bool] = True
    # Between two rounds ranks keep nothing but the average and their optimizer, so absent ranks are alike.
    alike_between_rounds: ClassVar[bool] = False
    # Ranks exchange within a backward pass, inference mode or autocast, whose state belongs to a thread.
    needs_thread: ClassVar[bool] = False
    # Exchanges start within a backward pass: of a cost that is given, ranks must pay a part before each.
    overlaps_backward: ClassVar[bool] = False
    # Why its ranks write no traces; None: they do.
    untraced: ClassVar[str | None] = None
    # False: equal seeds do not give equal weights, as where gradients are applied in order of arrival.
    deterministic: ClassVar[bool] = True
    # False: updates of ranks add up, so ranks with equal samples learn more than one of them does.
    averages: ClassVar[bool] = True
    # What a reader must know before comparing its numbers.
    caveat: ClassVar[str | None] = None
    # The strategy whose final weights it gives, up to rounding: "serial", with the same batches, or
    # "all_reduce", with as many replicas.
    equals: ClassVar[Equal | None] = None
    # Parameters of the layouts that `plan` compares: they differ in time and memory alone.
    layouts: ClassVar[tuple[dict[str, Any], ...]] = ()

    @property
    def sent_per_counted(self) -> Annotated[float, Field(ge=1, le=1000)]:
        """Bytes that gloo sends for one that is counted, if it is known to send more."""
        return 1.0

    @classmethod
    def layouts_on(cls, ranks: int) -> Sequence[dict[str, Any]]:
        """Return `layouts`. A strategy can let them depend on the number of ranks."""
        return cls.layouts

    def replicas(self, ranks: int) -> Annotated[int, Field(ge=1, le=2**16)]:
        """Number of copies of the model, each trained on its own partition of the samples."""
        return 1 if self.partitions_model else ranks - self.servers

    def replica_of(self, rank: int, ranks: int) -> Annotated[int, Field(ge=0, lt=2**16)]:
        """Index of the copy that a rank holds, whole or in part; servers have indices beyond the copies."""
        # Workers are numbered as if there were no servers, so that worker i has the samples, their order
        # and the dropout of rank i in other strategies.
        return 0 if self.partitions_model else (rank - self.servers) % ranks

    def reports_samples(self, rank: int, ranks: int) -> bool:
        """Whether a rank reports the samples of its copy: one rank of each copy does."""
        return rank == 0 if self.partitions_model else rank >= self.servers

    def sees_inputs(self, rank: int, ranks: int) -> bool:
        """Whether a rank's batches have inputs; otherwise they have targets only."""
        return rank >= self.servers

    def stand_in(self) -> Strategy | None:
        """The strategy that runs in its place where virtual nodes are given the costs of a step.

        It has the same exchanges. None: there is none.
        """
        return None if self.overlaps_backward or self.shards_state else self

    @property
    def claimed_equal(self) -> Equal | None:
        """`equals`, unless a parameter changes the mathematics."""
        return self.equals

    @property
    def splits_samples(self) -> bool:
        """Whether ranks divide the tokens of each sample."""
        return False

    @property
    def not_checkpointed(self) -> str | None:
        """State beside replica and metrics, which a checkpoint would lack; or None."""
        return None

    @property
    def rounds(self) -> Rounds | None:
        """The rounds in which not every rank takes part; None: all take part in every step."""
        return None

    @property
    def updates_use_global_batch(self) -> bool:
        """Whether an update of the model combines the batches of all replicas; otherwise it uses one."""
        return True

    @property
    def micro_batch_count(self) -> Annotated[int, Field(ge=1, le=2**20)]:
        """How many micro-batches a replica's batch is split into."""
        return 1

    @property
    def parts_of_work(self) -> Annotated[int, Field(ge=1, le=2**24)]:
        """A stage's work in a step, in units of the time that each further stage adds to the step."""
        return self.micro_batch_count

    def validation_error(self, model: Any, ranks: int, batch_size: int) -> str | None:
        """Return why it cannot train this model on so many ranks, or None.

        Args:
            model: the model's component, with its parameters.
            batch_size: the batch size of each copy.
        """
        return None

    def recompute_error(self, recompute: Recompute) -> str | None:
        """Return why its ranks cannot run these parts of the model again in a backward pass, or None."""
        return None

    def bubble(self, ranks: int) -> float | None:
        """Idle share of a step by the pipeline's formula, 0 … 1; None without stages."""
        return None

    def step_bytes(self, gradient_bytes: int, rank: int, ranks: int) -> float | None:
        """The most payload bytes that a rank sends per step, on average over a run; None: not declared.

        Args:
            gradient_bytes: the size of the gradient of its weights.
        """
        return None

    def shared_state(self, task: Any) -> Any:
        """What forked ranks share: made once, before they are forked, and found in `session.shared`."""

    @abstractmethod
    def train(self, session: Any) -> None:
        """Train to the end of the run.

        Args:
            session: a Session; of a strategy that does not train, a BareSession.
        """
