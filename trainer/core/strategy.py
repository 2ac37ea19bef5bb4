"""What a strategy is: how nodes work together on one model."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from trainer.core.registry import Component

# Fields that several strategies have, with one meaning.
Uneven = Annotated[
    Literal["join", "drop", "pad"],
    Field(
        description="when parts differ in size: join, a rank that is through stands by; drop, all stop "
        "with the first; pad, it begins again until all are through"
    ),
]
Init = Annotated[
    Literal["broadcast", "independent"],
    Field(description="nodes start from rank 0's weights, or each from its own"),
]
Weighting = Annotated[
    Literal["equal", "size"],
    Field(description="in an average every node counts alike, or by the number of its samples"),
]
OptimizerState = Annotated[
    Literal["keep", "average", "reset"],
    Field(description="what becomes of momentum and the like when weights are averaged"),
]
SplitPoints = Annotated[
    list[str] | None,
    Field(
        description="first block of every pipeline stage but the first; null: balance stages by the "
        "time of their blocks, measured before training"
    ),
]
# Between which checkpoints may be taken: all ranks have come equally far there.
Interval = Literal["epochs", "steps"]
MicroBatches = Annotated[int, Field(ge=1, le=65536, description="micro-batches that a batch is split into")]


class Strategy(Component):
    """How nodes work together on one model. Its algorithm is `train`, run by every rank."""

    transports: ClassVar[tuple[str, ...]]  # it can use; the first is the default
    # Both count ranks, which is nodes where each node has one process.
    min_nodes: ClassVar[int] = 1
    max_nodes: ClassVar[int | None] = None
    servers: ClassVar[int] = 0  # the first ranks, which keep the model for the others and get no samples
    partitions_model: ClassVar[bool] = (
        False  # ranks hold parts of one model, and go through the same samples
    )
    uses_partition: ClassVar[bool] = True  # False: every node trains on the whole set
    full_gradients: ClassVar[bool] = True  # False: of a layer's gradient each rank has a part
    evaluates_together: ClassVar[bool] = True  # False: after an epoch ranks evaluate a model each
    synchronous: ClassVar[bool] = False  # all ranks go through every batch together, and a layer may meet
    trains: ClassVar[bool] = True  # False: no model, no data, no torch (fault_injection)
    forks: ClassVar[bool] = False  # in topology single, ranks are forked processes instead of threads
    # Between which checkpoints may be taken: where a replica and the loop's accounts are all its state.
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ()
    attributes_stragglers: ClassVar[bool] = (
        True  # False: waiting for other ranks is booked as communication
    )
    caveat: ClassVar[str | None] = None  # what a reader must know before comparing its numbers

    def replicas(self, ranks: int) -> int:
        """How many copies of the model are trained, each on its part of the samples."""
        return 1 if self.partitions_model else ranks - self.servers

    def replica_of(self, rank: int, ranks: int) -> int:
        """Which copy, from 0, a rank has or holds a part of; a server's number lies beyond them."""
        # Those who train count from 0 as they would without servers: a worker has the samples, their order
        # and the dropout that the rank of its number has in other strategies.
        return 0 if self.partitions_model else (rank - self.servers) % ranks

    def reports_samples(self, rank: int, ranks: int) -> bool:
        """Whether a rank gives account of its copy's samples: one rank of each copy does."""
        return rank == 0 if self.partitions_model else rank >= self.servers

    def sees_images(self, rank: int, ranks: int) -> bool:
        """Whether images of its batches go through what a rank holds; else it takes only their labels."""
        return rank >= self.servers

    @property
    def not_checkpointed(self) -> str | None:
        """What it remembers beside replica and accounts, so that a checkpoint would lack it; or None."""
        return None

    @property
    def micro_batch_count(self) -> int:
        """How many micro-batches a replica's batch is split into."""
        return 1

    def validation_error(self, model: Any, ranks: int, batch_size: int) -> str | None:
        """Why it cannot train this model on so many ranks, or None. batch_size: of each copy."""
        return None

    def bubble(self, ranks: int) -> float | None:
        """The share of a step, 0 … 1, that stages stand idle by the formula; None without stages."""
        return None

    def shared_state(self, task: Any) -> Any:
        """What forked ranks share: made once, before they are forked, and found in `session.shared`."""

    @abstractmethod
    def train(self, session: Any) -> None:
        """Train to the end of the run.

        session: a trainer.training.session.Session; of a strategy that does not train, a BareSession.
        """
