"""Predict other people's runs on 64 to 512 GPUs from those on at most 8. On request: it needs their files.

VIA-Research/vTrain (Bang et al. 2024, *vTrain: A Simulation Framework for Evaluating Cost-effective and
Compute-optimal Large Language Model Training*, MICRO) publishes iteration times of GPT models on A100 GPUs.
SHARDYARD_VTRAIN names a folder with the files ground_truth_single.csv and ground_truth_multi.csv of its
folder `data`. If SHARDYARD_VTRAIN_PREDICTIONS names a file, the benchmark writes the predictions there and
does not compare them. It reads the times of the second file after it prints the SHA-256 of the predictions.

The times of the first file lie on straight lines in the number of micro-batches, to a nanosecond. Simulated
times do so, and measured ones do not. So errors on one node are differences from another model. Those on 64
to 512 GPUs are differences from measurements.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from orchestrator.prediction.accuracy import Outcome, accuracy, lines
from tests.bench.vtrain_model import PRIORS, VOCABULARY, Column, Fit, Runs, fit, iteration_s, predict

FOLDER = "SHARDYARD_VTRAIN"
COLUMNS = len(Runs.__dataclass_fields__)
WORST = 10
# GPT models on A100 GPUs of NVIDIA's Selene, table 1 of Narayanan et al. 2021, up to 512 GPUs: heads,
# hidden size, layers, t, p, GPUs, batch, and measured FLOP/s of a GPU. It does not have the micro-batch.
SELENE = (
    (24, 2304, 24, 1, 1, 32, 512, 137e12),
    (32, 3072, 30, 2, 1, 64, 512, 138e12),
    (32, 4096, 36, 4, 1, 128, 512, 142e12),
    (48, 6144, 40, 8, 1, 256, 1024, 135e12),
    (64, 8192, 48, 8, 2, 512, 1536, 138e12),
)
Predictions = tuple[Column, Column, Column]


def main() -> None:
    if not os.environ.get(FOLDER):
        sys.exit(f"{FOLDER} is not set; it names a folder with ground_truth_single.csv and _multi.csv")
    folder = Path(os.environ[FOLDER])
    single, seconds = (
        read_runs(folder / "ground_truth_single.csv"),
        read_s(folder / "ground_truth_single.csv"),
    )
    print(
        f"distance from straight lines in the micro-batches: {straightness(single, seconds):.6f} ms at most"
    )
    rows = {}
    for name, inside in held_out(single).items():
        found, outside = fit(single.where(inside), seconds[inside]), single.where(~inside)
        predicted = predict(outside, found, recomputed=False, padded=False)
        rows[name] = accuracy(outcomes(outside, predicted, seconds[~inside]))
    print("\n".join(["", "held-out configurations on one node", *lines(rows)]))

    found = fit(single, seconds)
    print("\n".join(["", *described(found)]))
    multi = read_runs(folder / "ground_truth_multi.csv")
    predictions = predict_several_nodes(multi, single, seconds, found)
    registered = text(multi, predictions)
    print(f"\nSHA-256 of the predictions: {hashlib.sha256(registered.encode()).hexdigest()}")
    if target := os.environ.get(f"{FOLDER}_PREDICTIONS"):
        Path(target).write_text(registered, encoding="utf-8")
        return
    measured = read_s(folder / "ground_truth_multi.csv")
    compared = {name: outcomes(multi, each, measured) for name, each in predictions.items()}
    print("\n".join(["64 to 512 GPUs", *lines({name: accuracy(each) for name, each in compared.items()})]))
    worst = sorted(compared["model"], key=lambda each: -abs(each.error))[:WORST]
    print("\n".join(["", "the model's worst", *(row(each) for each in worst)]))


def read_runs(path: Path) -> Runs:
    """The configurations in a file, without its times."""
    table = np.loadtxt(path, delimiter=",", skiprows=1, usecols=_columns(path)[:-1], encoding="utf-8-sig")
    return Runs(*table.T)


def read_s(path: Path) -> Column:
    """The times in a file, in s."""
    table = np.loadtxt(path, delimiter=",", skiprows=1, usecols=_columns(path)[-1], encoding="utf-8-sig")
    return np.asarray(table / 1e3)


def _columns(path: Path) -> range:
    """Those of the configuration, and the time as the last one. One file has another column before them."""
    with path.open(encoding="utf-8-sig") as file:
        count = len(file.readline().split(","))
    return range(count - COLUMNS - 1, count)


def straightness(runs: Runs, seconds: Column) -> float:
    """How far, in ms, times are from the lines through runs that differ only in their micro-batches."""
    groups: dict[tuple[float, ...], list[tuple[float, float]]] = {}
    for run, count, time in zip(runs.rows(), runs.micro_batches, seconds, strict=True):
        groups.setdefault((run[0], *run[2:]), []).append((count, time * 1e3))
    distances = []
    for points in groups.values():
        if len(points) >= 3:
            counts, times = np.array(points).T
            distances.append(np.abs(np.polyval(np.polyfit(counts, times, 1), counts) - times).max())
    return float(max(distances))


def held_out(runs: Runs) -> dict[str, NDArray[np.bool_]]:
    """Which runs to fit; the others are predicted."""
    return {
        "2 GPUs predict 4 and 8": runs.gpus <= 2,
        "2 and 4 GPUs predict 8": runs.gpus <= 4,
        "hidden size 1024 predicts 2048": runs.hidden <= 1024,
        "12 and 16 layers predict 20 and 24": runs.layers <= 16,
        "t ≤ 2 predicts 4 and 8": runs.tensor <= 2,
        "b ≤ 2 predicts 4 and 8": runs.micro_batch <= 2,
        "p = 1 predicts 2 and 4": runs.pipeline == 1,
    }


def predict_several_nodes(
    runs: Runs, single: Runs, seconds: Column, found: Fit
) -> dict[str, Predictions | Column]:
    """Predictions by name: of the model, of the model at the level of Selene, and of the baselines.

    Layers are recomputed. Without that, the activations of most runs are larger than the memory of a GPU.
    """
    model = predict(runs, found, recomputed=True, padded=True)
    level = selene_level(found)
    best = float(np.max(flop(single, recomputed=False) / single.gpus / seconds))
    terms, _ = nnls(alpha_beta(single, recomputed=False) / seconds[:, None], np.ones(len(seconds)))
    return {
        "model": model,
        "model, at the level of Selene": (model[0] * level, model[1] * level, model[2] * level),
        "linear extrapolation": flop(runs, recomputed=True) / runs.gpus / best,
        "α–β formula": np.asarray(alpha_beta(runs, recomputed=True) @ terms),
    }


def selene_level(found: Fit) -> float:
    """Measured / predicted time of the runs of Selene, as a geometric mean, at the best micro-batch."""
    logs = []
    for heads, hidden, layers, t, p, gpus, batch, rate in SELENE:
        d = gpus / t / p
        sizes = np.array([b for b in (1.0, 2.0, 4.0, 8.0) if batch % (d * b) == 0])
        same = [np.full(len(sizes), float(value)) for value in (hidden, heads, layers, 2048, t, d, p)]
        runs = Runs(np.full(len(sizes), float(gpus)), np.full(len(sizes), float(batch)), sizes, *same)
        fastest = iteration_s(runs, found.constants, recomputed=True, padded=True).min()
        measured = flop(runs, recomputed=True)[0] / gpus / rate
        logs.append(np.log(measured / fastest))
    return float(np.exp(np.mean(logs)))


def flop(runs: Runs, *, recomputed: bool) -> Column:
    """FLOP of an iteration: formula (3) of Narayanan et al. 2021, or 3/4 of it without recomputation."""
    b, s, h, layers = runs.batch, runs.sequence, runs.hidden, runs.layers
    factor = 96 if recomputed else 72
    return np.asarray(factor * b * s * layers * h**2 * (1 + s / (6 * h) + VOCABULARY / (16 * layers * h)))


def alpha_beta(runs: Runs, *, recomputed: bool) -> NDArray[np.float64]:
    """A column for each constant: FLOP of a GPU, messages that it sends, and their bytes."""
    activations = 2 * runs.micro_batch * runs.sequence * runs.hidden
    reduced = runs.layers / runs.pipeline * runs.micro_batches * (6 if recomputed else 4)
    hops = np.where(runs.pipeline > 1, 2 * runs.micro_batches, 0)
    messages = reduced * 2 * (runs.tensor - 1) + hops + 2 * (runs.data - 1)
    tensor, data = (2 * (ranks - 1) / ranks for ranks in (runs.tensor, runs.data))
    sent = reduced * tensor * activations + hops * activations + data * 2 * runs.weights
    return np.stack([flop(runs, recomputed=recomputed) / runs.gpus, messages, sent], axis=1)


def outcomes(runs: Runs, predicted: Predictions | Column, measured: Column) -> list[Outcome]:
    """A case is a model, a batch and a number of GPUs; a choice the degrees and the micro-batch."""
    middle, low, high = predicted if isinstance(predicted, tuple) else (predicted, None, None)
    found: dict[tuple[str, str], Outcome] = {}
    for number, (gpus, batch, b, hidden, _, layers, _, t, d, p) in enumerate(runs.rows()):
        case = f"{gpus:.0f} GPUs, h {hidden:.0f}, {layers:.0f} layers, batch {batch:.0f}"
        choice = f"t {t:.0f}, d {d:.0f}, p {p:.0f}, b {b:.0f}"
        if (case, choice) in found:
            choice += ", again"
        found[case, choice] = Outcome(
            case,
            choice,
            predicted_s=float(middle[number]),
            low_s=None if low is None else float(low[number]),
            high_s=None if high is None else float(high[number]),
            measured_s=float(measured[number]),
        )
    return list(found.values())


def text(runs: Runs, predictions: dict[str, Predictions | Column]) -> str:
    """The predictions as a CSV file, in s, to four digits."""
    header = [*Runs.__dataclass_fields__]
    columns: list[Column] = []
    for name, each in predictions.items():
        parts = each if isinstance(each, tuple) else (each,)
        header += [f"{name} {part}".strip() for part, _ in zip(("", "low", "high"), parts, strict=False)]
        columns += parts
    body = [
        [*(f"{value:.0f}" for value in run), *(f"{column[number]:.4g}" for column in columns)]
        for number, run in enumerate(runs.rows())
    ]
    return "".join(f"{';'.join(line)}\n" for line in [header, *body])


def described(found: Fit) -> list[str]:
    """The constants, each with the factor of a standard deviation and its prior."""
    sd = np.sqrt(np.diag(found.covariance))
    constants = [
        f"{name:18} {value:8.3g} ×/÷ {np.exp(off):.2f}, prior {prior.value:8.3g} {prior.source}"
        for (name, value), off, prior in zip(found.constants.items(), sd, PRIORS.values(), strict=True)
    ]
    spread = f"standard deviation of a logarithm: {found.variance**0.5:.3f}"
    return [*constants, f"{spread}; variance for each doubling of the GPUs: {found.growth:.4f}"]


def row(each: Outcome) -> str:
    predicted = f"{each.predicted_s:.2f} s ({each.low_s:.2f} to {each.high_s:.2f})"
    return f"{each.error:+7.1%} {predicted}, measured {each.measured_s:.2f} s: {each.case}: {each.choice}"
