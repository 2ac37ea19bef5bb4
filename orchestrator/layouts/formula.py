"""What a layout costs by formula: work, exchanges, bubble and memory, from the sizes of the model's blocks.

A step is the work of the slowest rank, the idle time of its pipeline, and the exchanges that no work hides.
The bytes are those of the strategies' docstrings. An exchange of n bytes among P ranks takes, on links with
latency α and bandwidth β (Hockney 1994),

    all-reduce             2(P − 1)·α + 2(P − 1)/P · n/β    (ring; Patarasuk and Yuan 2009)
    gather, scatter         (P − 1)·α +  (P − 1)/P · n/β
    message                        α +              n/β

The least time hides all exchanges that can run beside the backward pass, two thirds of the work; the most
hides none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt
from typing import Any

from trainer.models.base import ParallelPair
from trainer.models.split_points import balanced_split_points
from trainer.parallel.mesh import Mesh
from trainer.parallel.schedules import Schedule, chunks_of, parts_of_work
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Link

FLOAT = 4  # bytes
PASSES = 3  # a backward pass has twice the operations of a forward pass
BACKWARD = 2 / 3  # its share of the work
REMATERIALISED = 4 / 3  # of the work, where activations are computed again


@dataclass(frozen=True)
class Block:
    """A block of the model, for one sample.

    Attributes:
        parameters: their number. largest_tensor: that of the largest one.
        output_bytes, saved_bytes: what it passes on, and what it keeps for the backward pass.
        seconds: of its forward and backward pass on this machine, (low, high).
    """

    name: str
    parameters: int
    largest_tensor: int
    output_bytes: float
    saved_bytes: float
    seconds: tuple[float, float]


@dataclass(frozen=True)
class Sizes:
    """What the formulas know of a model. optimizer: values that the optimizer keeps for each parameter."""

    blocks: Sequence[Block]
    pairs: Sequence[ParallelPair]
    optimizer: int
    _stages: dict[tuple[int, bool], list[Sequence[Block]]] = field(default_factory=dict, repr=False)

    @property
    def parameters(self) -> int:
        return sum(block.parameters for block in self.blocks)

    def stages(self, number: int, tensor: int) -> list[Sequence[Block]]:
        """The blocks of each stage, as a run would split them. tensor: ranks that share pairs of layers."""
        pairs = self.pairs if tensor > 1 else ()
        if (number, tensor > 1) not in self._stages:
            names = [block.name for block in self.blocks]
            seconds = [block.seconds[0] for block in self.blocks]
            passed = [block.output_bytes for block in self.blocks]
            chosen = balanced_split_points(names, seconds, passed, number, pairs) if number > 1 else []
            starts = [0, *map(names.index, chosen), len(names)]
            stages = [self.blocks[start:end] for start, end in pairwise(starts)]
            self._stages[number, tensor > 1] = stages
        return self._stages[number, tensor > 1]


@dataclass(frozen=True)
class Estimate:
    """A step of a layout by formula, of the rank that takes longest.

    Attributes:
        work_s, exchange_s, bubble_s: seconds, each (least, most); of the exchange what no work hides.
        sent_bytes: of a rank in a step.
        held_bytes: weights, gradient, optimizer state and activations.
    """

    work_s: tuple[float, float]
    exchange_s: tuple[float, float]
    bubble_s: tuple[float, float]
    sent_bytes: float
    held_bytes: float

    @property
    def step_s(self) -> tuple[float, float]:
        least, most = map(sum, zip(self.work_s, self.exchange_s, self.bubble_s, strict=True))
        return least, most

    @property
    def middle_s(self) -> float:
        """The geometric middle of the range."""
        least, most = self.step_s
        return sqrt(least * most)


def estimate(run: RunSpec, sizes: Sizes, link: Link, batch: float | None = None) -> Estimate:
    """The formula of a layout. Raises KeyError for a strategy without one.

    batch: samples of a step of all nodes; None: those of the run.
    """
    name, strategy = run.name_of("strategy"), run.strategy
    mesh, context = _mesh(name, run), run.world_size if name == "context_parallel" else 1
    samples = (batch or _batch_of(run)) / mesh.data  # of a replica in a step
    schedule: Schedule = getattr(strategy, "schedule", "1f1b")
    pipelined = mesh.pipeline > 1
    micro_batches = getattr(strategy, "micro_batches", 1) if pipelined else 1
    chunks = chunks_of(schedule, getattr(strategy, "chunks", None)) if pipelined else 1
    stages = sizes.stages(mesh.pipeline * chunks, mesh.tensor)
    ranks = [
        [block for stage in stages[at :: mesh.pipeline] for block in stage] for at in range(mesh.pipeline)
    ]
    shared = _Shared(sizes, mesh.tensor, context, getattr(strategy, "sequence_parallel", False))
    again = REMATERIALISED if run.recompute == "full" else 1.0
    least, most = (
        max(sum(shared.value(each, each.seconds[end]) for each in rank) for rank in ranks) * samples * again
        for end in (0, 1)
    )
    parts = parts_of_work(schedule, micro_batches, chunks) if pipelined else 1
    parameters = [sum(shared.value(each, each.parameters) for each in rank) for rank in ranks]
    costs = _Costs(link)
    copies: int = getattr(strategy, "replicate", 1)
    _in_data(costs, name, parameters, mesh.data * context, len(sizes.blocks), copies)
    _in_tensor(costs, sizes, mesh, samples, micro_batches)
    if pipelined:
        passed = [stage[-1].output_bytes * samples / micro_batches for stage in stages[:-1]]
        sent = 2 * micro_batches * sum(passed) / mesh.pipeline
        costs.messages(2 * micro_batches * chunks, max(passed), 2 * (mesh.pipeline - 1), sent)
    if context > 1:
        _in_attention(costs, strategy, sizes, context, samples)
    hidden = min(costs.hideable_s, BACKWARD * least)
    held = [
        _state(name, own, mesh.data // copies, sizes)
        + samples
        * (1 if schedule == "gpipe" else min(micro_batches, (mesh.pipeline - at) * chunks) / micro_batches)
        * sum(each.output_bytes if again > 1 else shared.saved(each) for each in rank)
        for at, (rank, own) in enumerate(zip(ranks, parameters, strict=True))
    ]
    return Estimate(
        (least, most),
        (costs.exposed_s + costs.hideable_s - hidden, costs.exposed_s + costs.hideable_s),
        (least * (mesh.pipeline - 1) / parts, most * (mesh.pipeline - 1) / parts),
        costs.sent_bytes,
        max(held),
    )


@dataclass(frozen=True)
class _Shared:
    """The part of a rank in what a tensor or context group shares. whole: it divides all tokens."""

    sizes: Sizes
    tensor: int
    context: int
    whole: bool

    def value(self, block: Block, value: float) -> float:
        """Of work or parameters: those of pairs of layers are divided."""
        return value / (self.tensor if self.whole or self._in_pair(block) else 1) / self.context

    def saved(self, block: Block) -> float:
        """Of activations. In a transformer, a tensor group divides 24 of 34 parts of them.

        With `sequence_parallel` it divides all but the inputs of the pairs, 4 of 34.

        Source: Korthikanti et al. 2022, "Reducing Activation Recomputation", Sec. 4.1 and 4.2.
        """
        if self.tensor == 1 or not self._in_pair(block):
            return block.saved_bytes / self.context
        attends = (
            sum(path.split(".")[0] == block.name for pair in self.sizes.pairs for path in pair[:2]) > 2
        )
        kept = (4 if self.whole else 10) / 34 if attends else 0.0
        return block.saved_bytes * (kept + (1 - kept) / self.tensor)

    def _in_pair(self, block: Block) -> bool:
        names = {path.split(".")[0] for pair in self.sizes.pairs for path in pair[:2]}
        return block.name in names


def _state(name: str, parameters: float, ranks: int, sizes: Sizes) -> float:
    """Bytes of weights, gradient and optimizer state."""
    size = FLOAT * parameters
    match name:
        case "zero1":  # whole tensors have an owner
            largest = max(block.largest_tensor for block in sizes.blocks) / sizes.parameters
            return size * (2 + sizes.optimizer * max(1 / ranks, largest))
        case "zero2":
            return size * (1 + (1 + sizes.optimizer) / ranks)
        case "fsdp":
            return size * (2 + sizes.optimizer) / ranks
    return size * (2 + sizes.optimizer)


class _Costs:
    """Adds up exchanges. exposed_s, hideable_s: those that work cannot and can hide."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.exposed_s = self.hideable_s = self.sent_bytes = 0.0

    def all_reduce(self, size: float, ranks: int, count: float = 1, hides: bool = False) -> None:
        self._ring(2, size, ranks, count, hides)

    def gather(self, size: float, ranks: int, count: float = 1, hides: bool = False) -> None:
        """An all-gather or a reduce-scatter. size: of what all ranks have together."""
        self._ring(1, size, ranks, count, hides)

    def _ring(self, rounds: int, size: float, ranks: int, count: float, hides: bool) -> None:
        if ranks == 1:
            return
        sent = rounds * (ranks - 1) / ranks * size
        seconds = count * (rounds * (ranks - 1) * self._link.latency_s + sent / self._link.bytes_per_s)
        self.sent_bytes += count * sent
        self.hideable_s += seconds if hides else 0.0
        self.exposed_s += 0.0 if hides else seconds

    def messages(self, count: float, size: float, exposed: float, sent: float | None = None) -> None:
        """Messages, of which so many are exposed, and the others beside work. sent: by a rank, the mean."""
        seconds = self._link.latency_s + size / self._link.bytes_per_s
        self.sent_bytes += count * size if sent is None else sent
        self.exposed_s += exposed * seconds
        self.hideable_s += max(0.0, count - exposed) * seconds


def _mesh(name: str, run: RunSpec) -> Mesh:
    ranks = run.world_size
    match name:
        case "pipeline":
            return Mesh(pipeline=ranks)
        case "tensor_parallel":
            return Mesh(tensor=ranks)
        case "hybrid":
            mesh: Mesh = run.strategy.mesh_of(ranks)  # type: ignore[attr-defined]
            return mesh
        case "context_parallel" | "serial":
            return Mesh()
        case "all_reduce" | "zero1" | "zero2" | "fsdp" | "ddp":
            return Mesh(data=ranks)
    raise KeyError(name)


def _batch_of(run: RunSpec) -> int:
    return run.batch_per_replica * run.replicas_in_step


def _in_data(
    costs: _Costs, name: str, parameters: Sequence[float], ranks: int, blocks: int, copies: int
) -> None:
    """The mean gradient, and what else replicas exchange.

    parameters: of each stage. copies: of a model whose weights are sharded.
    """
    size = FLOAT * max(parameters)
    match name:
        case "ddp":
            costs.all_reduce(size, ranks, hides=True)
        case "zero1":
            costs.all_reduce(size, ranks, hides=True)
            costs.gather(size, ranks)
        case "zero2":
            costs.gather(size / blocks, ranks, blocks, hides=True)
            costs.gather(size / blocks, ranks, blocks)
        case "fsdp":
            shards = ranks // copies
            costs.gather(size / blocks, shards, 2 * blocks, hides=True)
            costs.gather(size / blocks, shards, blocks)
            costs.all_reduce(size / blocks / shards, copies, blocks)
        case _:
            costs.all_reduce(size, ranks)
    costs.sent_bytes *= sum(parameters) / len(parameters) / max(parameters)  # the mean over stages


def _in_tensor(costs: _Costs, sizes: Sizes, mesh: Mesh, samples: float, micro_batches: int) -> None:
    """An all-reduce of each pair's output, and one of the gradient of its input."""
    names = [block.name for block in sizes.blocks]
    for pair in sizes.pairs:
        column, row = (names.index(path.split(".")[0]) for path in pair[:2])
        ends = [sizes.blocks[row].output_bytes]
        if any(block.parameters for block in sizes.blocks[:column]):  # else its input needs no gradient
            ends.append(sizes.blocks[column - 1].output_bytes)
        for size in ends:
            costs.all_reduce(size * samples / micro_batches, mesh.tensor, micro_batches / mesh.pipeline)


def _in_attention(costs: _Costs, strategy: Any, sizes: Sizes, ranks: int, samples: float) -> None:
    """Keys and values on their way around the ring, or all-to-alls of heads."""
    for block in {pair.column.split(".")[0]: None for pair in sizes.pairs}:
        width = next(each.output_bytes for each in sizes.blocks if each.name == block) * samples / ranks
        if strategy.attention == "ulysses":
            costs.gather(width, ranks, 8)
        else:
            costs.messages(ranks - 1, 2 * width, exposed=ranks - 1)
            costs.messages(ranks, 4 * width, exposed=ranks)
