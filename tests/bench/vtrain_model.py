"""The time of a training iteration of GPT on GPUs, from physical constants that are fitted to one node.

The parallelism is that of Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM*: t tensor-parallel, d data-parallel and p pipeline-parallel ranks, and
m = batch / (d · b) micro-batches of b samples with s tokens; hidden size h, a heads, l layers.

    T = (p − 1 + m) · l/p · layer + m · head + transfers between stages + all-reduce of gradients + update

which is their 1F1B schedule (section 2.2) with a last stage that is longer by its head, the logits and the
loss. Forward, backward and recomputation are 1, 2 and 1 passes over a layer. A pass takes

    (launch³ + busy³)^⅓  with  busy = FLOP / matmul_rate + FLOP of attention / attention_rate
                                      + bytes / memory_bandwidth

about the longer of the time to launch the kernels and the time that they run. Forward, backward and
recomputation each have two all-reduces of 2bsh bytes (Shoeybi et al. 2019, *Megatron-LM*, section 3).

- FLOP: 24bsh²/t in the four matrices and 4bs²h/t in the attention (Narayanan et al. 2021, appendix).
- bytes: the operands of the products with the matrices; between these, 22bsh that every rank reads and
  writes, 32bsh/t that the ranks divide, and 11abs²/t for the scores of the attention. They are counted from
  the layer in Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*.
- An all-reduce of n bytes over k ranks is a ring: latency + 2(k − 1)/k · n / bandwidth (Patarasuk and Yuan
  2009). In a group that spans nodes, the bandwidth is that of a node's links, shared with the other groups
  that cross them.
- GPUs of a node have adjacent ranks; t varies first, then d, then p. So stages on several nodes are on
  different ones, and all GPUs of a node send to the next stage at once. DeepSpeed's sends block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

Column = NDArray[np.float64]
GPUS_PER_NODE = 8
VOCABULARY = 50_257  # of GPT-2; Megatron pads it to a multiple of 128, the profiles of vTrain did not
SPREAD = 0.12  # standard deviation of the logarithm of a time, by which data and priors are weighed
STEP = 1e-4  # of logarithms, in derivatives
NORMAL_95 = 1.645  # half the width of a 90 % interval, in standard deviations


@dataclass(frozen=True)
class Prior:
    """What is known of a constant before the fit.

    Attributes:
        value: the most likely one.
        sd: the standard deviation of its logarithm.
        source: its unit, and where it comes from.
    """

    value: float
    sd: float
    source: str


PRIORS = {
    "matmul_rate": Prior(250e12, 0.15, "FLOP/s; 80 % of the 312e12 of the data sheet of the A100"),
    "attention_rate": Prior(120e12, 0.5, "FLOP/s; its products have an inner size of h/a"),
    "memory_bandwidth": Prior(1.5e12, 0.3, "B/s; 1.6e12 (40 GB) or 2.0e12 (80 GB) in the data sheet"),
    "launch_s": Prior(1.0e-3, 0.5, "s per pass; about 100 kernels of 10 µs"),
    "head_launch_s": Prior(2e-3, 0.7, "s per micro-batch; some hundred kernels"),
    "unaligned": Prior(3.0, 0.7, "× time of the logits if the vocabulary of a rank is odd"),
    "nvlink_bandwidth": Prior(
        220e9, 0.1, "B/s; vTrain's table of all-reduces in a node; 300e9 in the data sheet"
    ),
    "nvlink_latency_s": Prior(60e-6, 0.3, "s per all-reduce; the same table"),
    "transfer_bandwidth": Prior(25e9, 1.0, "B/s between stages in a node"),
    "update_bytes": Prior(30.0, 0.5, "B per weight that Adam reads and writes"),
    "node_bandwidth": Prior(
        90e9, 0.3, "B/s of a node; 90 % of 800 Gbit/s in vTrain's configurations; not fitted"
    ),
    "node_latency_s": Prior(100e-6, 0.7, "s per all-reduce between nodes; a guess; not fitted"),
    "blocking": Prior(1.0, 0.7, "× time of a send between nodes in which its stage waits; not fitted"),
}


@dataclass(frozen=True)
class Runs:
    """Configurations, a value per run in each column.

    Attributes:
        gpus: N = t · d · p.
        batch: samples per iteration.
        micro_batch: b, samples.
        hidden: h.
        heads: a.
        layers: l.
        sequence: s, tokens.
        tensor: t.
        data: d.
        pipeline: p.
    """

    gpus: Column
    batch: Column
    micro_batch: Column
    hidden: Column
    heads: Column
    layers: Column
    sequence: Column
    tensor: Column
    data: Column
    pipeline: Column

    def where(self, chosen: NDArray[np.bool_]) -> Runs:
        return Runs(**{name: column[chosen] for name, column in vars(self).items()})

    def rows(self) -> Iterator[tuple[float, ...]]:
        """The values of each run, in the order of the attributes."""
        yield from zip(*vars(self).values(), strict=True)

    @property
    def micro_batches(self) -> Column:
        """m of a rank."""
        return self.batch / (self.data * self.micro_batch)

    @property
    def weights(self) -> Column:
        """Weights of the largest stage on a rank."""
        return (12 * self.layers / self.pipeline * self.hidden**2 + VOCABULARY * self.hidden) / self.tensor

    @property
    def profile(self) -> list[tuple[float, ...]]:
        """What the time of a layer depends on."""
        return list(zip(self.hidden, self.heads, self.sequence, self.tensor, self.micro_batch, strict=True))


def iteration_s(runs: Runs, x: Mapping[str, Any], *, recomputed: bool, padded: bool) -> Column:
    """Seconds of an iteration.

    Args:
        runs: the configurations.
        x: a value for each name of PRIORS.
        recomputed: the backward pass repeats the forward pass of each layer.
        padded: the vocabulary of a rank is a multiple of 8.

    Returns:
        a value per run.
    """
    t, d, p, h = runs.tensor, runs.data, runs.pipeline, runs.hidden
    tokens = runs.micro_batch * runs.sequence
    micro_batches = runs.micro_batches
    several_nodes = runs.gpus > GPUS_PER_NODE
    activations = 2 * tokens * h  # bytes

    operands = 2 * (tokens * (4 * h + 10 * h / t) + 12 * h**2 / t)
    traffic = operands + (22 + 32 / t) * tokens * h + 11 * runs.heads * runs.sequence * tokens / t
    busy = (
        24 * tokens * h**2 / t / x["matmul_rate"]
        + 4 * tokens * runs.sequence * h / t / x["attention_rate"]
        + traffic / x["memory_bandwidth"]
    )
    passes = 4 if recomputed else 3
    layer = passes * (busy**3 + x["launch_s"] ** 3) ** (1 / 3)
    layer = layer + 2 * (passes - 1) * all_reduce_s(activations, t, t > GPUS_PER_NODE, 1.0, x)

    odd = np.where(padded | (VOCABULARY // t % 2 == 0), 1.0, x["unaligned"])
    logits = tokens * VOCABULARY / t
    head = (
        6 * logits * h / x["matmul_rate"] * odd + 16 * logits / x["memory_bandwidth"] + x["head_launch_s"]
    )

    send = np.where(
        several_nodes,
        GPUS_PER_NODE * activations / x["node_bandwidth"] * x["blocking"],
        activations / x["transfer_bandwidth"],
    )
    sends = np.where(p > 1, 2 * (p - 1 + several_nodes * (micro_batches - 1)) * send, 0.0)

    sharing = np.minimum(t, GPUS_PER_NODE)
    gradients = all_reduce_s(2 * runs.weights, d, t * d > GPUS_PER_NODE, sharing, x)
    update = x["update_bytes"] * runs.weights / x["memory_bandwidth"]
    return np.asarray(
        (p - 1 + micro_batches) * runs.layers / p * layer
        + micro_batches * head
        + sends
        + gradients
        + update
    )


def all_reduce_s(
    size: Column,
    ranks: Column,
    between_nodes: NDArray[np.bool_],
    sharing: Column | float,
    x: Mapping[str, Any],
) -> Column:
    """Seconds of an all-reduce of `size` bytes. `sharing` groups share the links of a node."""
    bandwidth = np.where(between_nodes, x["node_bandwidth"] / sharing, x["nvlink_bandwidth"])
    latency = np.where(between_nodes, x["node_latency_s"], x["nvlink_latency_s"])
    return np.asarray(np.where(ranks > 1, latency + 2 * (ranks - 1) / ranks * size / bandwidth, 0.0))


@dataclass(frozen=True)
class Fit:
    """Constants, and how far predictions from them are off.

    Attributes:
        constants: the most likely values.
        covariance: of their logarithms.
        variance: of the logarithm of a fitted time around its prediction.
        growth: what each doubling of the number of GPUs adds to it.
        gpus: the largest number that was fitted.
    """

    constants: dict[str, float]
    covariance: NDArray[np.float64]
    variance: float
    growth: float
    gpus: float


def fit(runs: Runs, seconds: Column) -> Fit:
    """Fit the constants to runs on one node, in which nothing is recomputed.

    It minimises the squared differences of logarithms, plus the squared distances of the constants from
    their priors. Runs with the same profile have the same time per layer, so together they count as one.
    The growth of the variance is that of fits to at most half of the GPUs, a quarter, …, as a mean.

    Args:
        runs: the configurations.
        seconds: their times.

    Returns:
        the fit.
    """
    gpus = float(runs.gpus.max())
    logs, covariance = _minimise(runs, seconds)
    growths = []
    for fewer in sorted({*runs.gpus} - {gpus}):
        inside = runs.gpus <= fewer
        part, _ = _minimise(runs.where(inside), seconds[inside])
        errors = _errors(part, runs, seconds)
        growths += [
            (np.mean(errors[runs.gpus == more] ** 2) - np.mean(errors[inside] ** 2)) / np.log2(more / fewer)
            for more in sorted({*runs.gpus[~inside]})
        ]
    growth = max(0.0, float(np.mean(growths))) if growths else 0.0
    variance = float(np.mean(_errors(logs, runs, seconds) ** 2))
    return Fit(_named(logs), covariance, variance, growth, gpus)


def _minimise(runs: Runs, seconds: Column) -> tuple[Column, Column]:
    start = np.log([prior.value for prior in PRIORS.values()])
    sd = np.array([prior.sd for prior in PRIORS.values()])
    weight = np.sqrt(len({*runs.profile}) / len(seconds)) / SPREAD
    found = least_squares(
        lambda logs: np.concatenate([weight * _errors(logs, runs, seconds), (logs - start) / sd]), start
    )
    return found.x, np.linalg.inv(found.jac.T @ found.jac)


def _errors(logs: Column, runs: Runs, seconds: Column) -> Column:
    return np.asarray(np.log(iteration_s(runs, _named(logs), recomputed=False, padded=False) / seconds))


def _named(logs: Column) -> dict[str, float]:
    return dict(zip(PRIORS, np.exp(logs).tolist(), strict=True))


def predict(runs: Runs, fit: Fit, *, recomputed: bool, padded: bool) -> tuple[Column, Column, Column]:
    """Predicted seconds, and the ends of their 90 % intervals.

    The variance of a logarithm is that of the fit, its growth with every doubling of the GPUs, and that of
    the constants.

    Args:
        runs: the configurations.
        fit: the constants.
        recomputed: as in `iteration_s`.
        padded: as in `iteration_s`.

    Returns:
        a column each: prediction, lower end, upper end.
    """
    predicted = iteration_s(runs, fit.constants, recomputed=recomputed, padded=padded)
    slopes = []
    for name, value in fit.constants.items():
        moved = fit.constants | {name: value * np.exp(STEP)}
        slopes.append(
            np.log(iteration_s(runs, moved, recomputed=recomputed, padded=padded) / predicted) / STEP
        )
    gradient = np.array(slopes)
    doublings = np.maximum(0.0, np.log2(runs.gpus / fit.gpus))
    variance = fit.variance + fit.growth * doublings
    variance = variance + np.einsum("ir,ij,jr->r", gradient, fit.covariance, gradient)
    factor = np.exp(NORMAL_95 * np.sqrt(variance))
    return predicted, predicted / factor, predicted * factor
