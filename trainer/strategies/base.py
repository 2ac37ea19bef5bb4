"""What a strategy is: how nodes work together on one model."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from trainer.registry import Component

if TYPE_CHECKING:
    from trainer.context import NodeContext
    from trainer.events import EventWriter
    from trainer.result import TrainResult
    from trainer.task import Task

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


class Strategy(Component):
    """How nodes work together on one model. Its algorithm is `train`, run by every rank."""

    transports: ClassVar[tuple[str, ...]]  # it can use; the first is the default
    # Both count ranks, which is nodes where each node has one process.
    min_nodes: ClassVar[int] = 1
    max_nodes: ClassVar[int | None] = None
    servers: ClassVar[int] = 0  # the first ranks, which keep the model for the others and get no samples
    uses_partition: ClassVar[bool] = True  # False: every node trains on the whole set
    in_step: ClassVar[bool] = False  # all ranks go through every batch together, and a layer may meet
    trains: ClassVar[bool] = True  # False: no model, no data, no torch (placebo)
    forks: ClassVar[bool] = False  # in topology single, ranks are forked processes instead of threads
    caveat: ClassVar[str | None] = None  # what a reader must know before comparing its numbers

    def share(self, context: NodeContext, task: Task) -> Any:
        """What forked ranks share; made once, before they start, and found in `context.shared`."""

    @abstractmethod
    def train(self, context: NodeContext, task: Task, events: EventWriter) -> TrainResult:
        """Train to the end of the run and say what came out."""
