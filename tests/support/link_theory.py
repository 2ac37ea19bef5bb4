"""What theory says about sweeps/links.yml: the time that a step's exchanges take over a link."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

from trainer.spec.link import Path
from trainer.spec.run_spec import RunSpec

FLOAT = 4  # bytes
PIXELS, CLASSES = 28 * 28, 10  # of the images and labels of digits
SAMPLES = 1437  # of the training set


def exchange_s(run: RunSpec) -> float:
    """Seconds of the exchanges of a run on two nodes, per step, without software and work.

    A message of n bytes takes α + n/β (Hockney 1994).
    """
    if run.name_of("strategy") == "pipeline":
        return _pipeline_s(run)
    if run.name_of("strategy") == "all_reduce" and compression(run) == "power_sgd":
        return sum(_ring_s(run, FLOAT * floats) for floats in power_sgd_floats(run))
    steps = steps_of(run)
    return exchanges_of(run, steps) / steps * _ring_s(run, FLOAT * weights_of(run))


def exchanges_of(run: RunSpec, steps: int) -> int:
    """How many times the whole model is averaged in so many steps, the last of which ends the training."""
    return ceil(steps / getattr(run.strategy, "local_steps", 1))


def steps_of(run: RunSpec) -> int:
    """Steps of a run whose batch is that of all ranks."""
    return run.epochs * ceil(SAMPLES / run.batch_size)


def link_of(run: RunSpec) -> Path:
    """The link between the two nodes."""
    assert run.link is not None
    return run.link.path(0, 1)


def latency_s(run: RunSpec) -> float:
    return link_of(run).latency_ms / 1000


def bytes_per_s(run: RunSpec) -> float:
    return (link_of(run).bandwidth_mbit or 0.0) * 1e6 / 8


def compression(run: RunSpec) -> str:
    return str(run.strategy.model_dump()["compression"]["name"])


def matrices(run: RunSpec) -> list[tuple[int, int]]:
    """Rows and columns of the weight matrices of an MLP."""
    widths = [PIXELS, *hidden(run), CLASSES]
    return [(rows, columns) for columns, rows in pairwise(widths)]


def hidden(run: RunSpec) -> Sequence[int]:
    widths: Sequence[int] = run.model.model_dump()["hidden"]
    return widths


def biases(run: RunSpec) -> int:
    return sum(rows for rows, _ in matrices(run))


def weights_of(run: RunSpec) -> int:
    """Number of weights."""
    return sum(rows * columns for rows, columns in matrices(run)) + biases(run)


def power_sgd_floats(run: RunSpec) -> tuple[int, int]:
    """Entries of the two all-reduces of a step: P with the biases, and Q (Vogels et al. 2019)."""
    rank = run.strategy.model_dump()["compression"]["rank"]
    rows, columns = (sum(sizes) for sizes in zip(*matrices(run), strict=True))
    return rank * rows + biases(run), rank * columns


def micro_batch_bytes(run: RunSpec) -> int:
    """Activations of a micro-batch at the split point."""
    return FLOAT * run.batch_size // run.strategy.micro_batch_count * hidden(run)[0]


def _ring_s(run: RunSpec, nbytes: float, ranks: int = 2) -> float:
    """A ring all-reduce: 2(P−1)α + 2(P−1)/P · n/β (Thakur et al. 2005), and over gloo 4(P−1)α.

    gloo sends a message when its receiver has asked for it, so each of the 2(P−1) messages takes a round
    trip.
    """
    return 2 * (ranks - 1) * (2 * latency_s(run) + nbytes / (ranks * bytes_per_s(run)))


def _pipeline_s(run: RunSpec) -> float:
    """Two stages under 1F1B, M micro-batches, a bytes each: 2M(α + a/β).

    Over gloo, the second stage asks for an activation when it has sent the gradient before. The request
    follows the gradient, so activations and gradients do not overlap.
    """
    message_s = latency_s(run) + micro_batch_bytes(run) / bytes_per_s(run)
    return 2 * run.strategy.micro_batch_count * message_s
