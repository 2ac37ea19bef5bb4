"""How far predictions for 3 and 4 nodes are off, from runs on 1 and 2. On request: it takes half an hour.

Every strategy that virtual nodes can have trains on 1 and 2 local nodes, with several models and batches.
From these runs the times on 3 and 4 nodes are predicted, and the SHA-256 of the predictions with
their intervals is printed before these runs are executed. Their measured time is the cluster time of their
own traces: the machine need not have as many cores. Beside the predictions are two baselines:

- linear extrapolation: the time on two nodes · 2 / nodes;
- α–β formula (Hockney 1994): work of the steps + exchanges · α + bytes sent · β.

At the end, the prior of the error model is fitted to all runs, for orchestrator/prediction/error_model.py.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from pydantic import ValidationError

from orchestrator.prediction.accuracy import Outcome, accuracy, lines
from orchestrator.prediction.error_model import PRIOR, ErrorModel, Observation
from orchestrator.prediction.errors import NoPrediction
from orchestrator.prediction.evidence import Configuration, Evidence, evidence_of
from orchestrator.prediction.forecast import Forecast, Question, forecasts, observations
from orchestrator.prediction.simulated import Simulations, simulations
from orchestrator.results.records import RunResult
from orchestrator.results.store import RunPaths, SweepPaths
from orchestrator.runtimes.virtual.runtime import VirtualRuntime
from tests.bench.runs import runs_on
from trainer.core.trace import Kind
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec

FITTED, HELD_OUT = (1, 2), (3, 4)
MODELS = ("lenet", "mlp")
# The prior of the error model was fitted to other runs: batches of 16 and 32, seeds 0 and 1.
BATCHES = (8, 64)
SEEDS = (2, 3)
RUN = {"dataset": "digits", "lr": 0.02, "epochs": 3}
WORST = 10  # errors that are printed

Runs = list[tuple[RunPaths, RunResult]]


@dataclass(frozen=True)
class Predicted:
    """The forecast of a configuration, and two baselines in seconds."""

    forecast: Forecast
    linear_s: float
    formula_s: float


def main() -> None:
    with tempfile.TemporaryDirectory() as name, simulations(Path(name) / "data") as played:
        directory = Path(name) / "runs"
        known = execute(directory, FITTED)
        evidence = evidence_of(known)
        predicted = predict(evidence, played)
        record = [
            [*key, each.forecast.low_s, each.forecast.seconds, each.forecast.high_s]
            for key, each in predicted.items()
        ]
        digest = hashlib.sha256(json.dumps(record).encode()).hexdigest()
        print(f"{len(record)} predictions with intervals, SHA-256 {digest}", flush=True)
        held_out = evidence_of([*known, *execute(directory, HELD_OUT)])
        report(predicted, held_out)
        fit(held_out, played)


def execute(directory: Path, numbers: Sequence[int]) -> Runs:
    """Train on so many nodes, each strategy with each model, batch and seed."""
    found: Runs = []
    with runs_on("local", results=directory) as train:
        train(next(runs(FITTED)).model_copy(update={"seed": 99}))  # with cold caches; it does not count
        for run in runs(numbers):
            found.append((SweepPaths(directory).run(run.key), train(run)))
    return found


def runs(numbers: Sequence[int]) -> Iterator[RunSpec]:
    """Every run on so many nodes, seed by seed, so that a drift of the machine meets all alike."""
    supported = VirtualRuntime()
    for seed in SEEDS:
        for model in MODELS:
            for batch in BATCHES:
                fields = {**RUN, "model": model, "batch_size": batch, "seed": seed}
                for name in STRATEGIES.entries:
                    kind = STRATEGIES.load(name)
                    serial = name == "serial"
                    for nodes in numbers:
                        if (nodes == 1) != serial or not (serial or "gloo" in kind.transports):
                            continue
                        transport = {} if serial else {"transport": "gloo"}
                        with suppress(ValidationError):  # such as hybrid on 3 nodes
                            run = RunSpec.model_validate(
                                {**fields, **transport, "strategy": name, "nodes": nodes}
                            )
                            if run.strategy.trains and not supported.unsupported_reason(run):
                                yield run


def predict(evidence: Evidence, played: Simulations) -> dict[tuple[str, int], Predicted]:
    """Forecasts for the nodes that are held out, by configuration and nodes."""
    found: dict[tuple[str, int], Predicted] = {}
    for each in forecasts(evidence, Question(HELD_OUT), played):
        if isinstance(each, Forecast):
            known, nodes = each.configuration, each.run.nodes
            two_s = fmean(one.seconds for one in known.runs if one.run.nodes == FITTED[-1])
            formula_s = alpha_beta(known, nodes, played)
            found[name_of(known.run), nodes] = Predicted(each, two_s * FITTED[-1] / nodes, formula_s)
    return found


def alpha_beta(configuration: Configuration, nodes: int, played: Simulations) -> float:
    """Seconds by the α–β formula, with the costs of a message that the runs show."""
    cluster = configuration.runs[0].cluster
    simulated = played.played(configuration, nodes, configuration.runs[0].epochs)
    step_s = configuration.per_step_s + configuration.per_sample_s * configuration.run.batch_per_replica
    kinds = simulated.traces[0].records["kind"]
    steps, exchanges = int((kinds == Kind.STEP).sum()), int((kinds > Kind.STEP).sum())
    latency_s = 2 * (cluster.overhead_s or 0.0) + cluster.link.latency_s
    sent_s = (simulated.result.bytes_sent_per_rank or 0.0) / cluster.link.bytes_per_s
    return steps * step_s + exchanges * latency_s + sent_s


def report(predicted: Mapping[tuple[str, int], Predicted], held_out: Evidence) -> None:
    """Print the accuracy of predictions and baselines, the largest errors, and how the truth repeats."""
    outcomes: defaultdict[str, list[Outcome]] = defaultdict(list)
    spreads = []
    for configuration in held_out.configurations:
        for nodes in HELD_OUT:
            measured = [each for each in configuration.runs if each.run.nodes == nodes]
            name = name_of(configuration.run)
            if not measured or (name, nodes) not in predicted:
                continue
            each = predicted[name, nodes]
            seconds = [one.seconds for one in measured]
            spreads.append(max(seconds) / min(seconds) - 1)
            for one in measured:
                strategy, _, workload = name.partition(" ")
                case = f"{workload} {nodes} nodes seed {one.run.seed}"
                own = each.forecast
                outcomes["prediction"].append(
                    Outcome(case, strategy, own.seconds, own.low_s, own.high_s, one.seconds)
                )
                for baseline, took_s in (("linear", each.linear_s), ("α–β", each.formula_s)):
                    outcomes[baseline].append(Outcome(case, strategy, took_s, None, None, one.seconds))
    for line in lines({label: accuracy(rows) for label, rows in outcomes.items()}):
        print(line)
    print(f"measured times of two seeds differ by {np.median(spreads):.1%} in the median")
    for worst in sorted(outcomes["prediction"], key=lambda each: -abs(each.error))[:WORST]:
        print(
            f"  {worst.error:+7.1%} {worst.choice} {worst.case}: {worst.predicted_s:.3f} s "
            f"({worst.low_s:.3f} to {worst.high_s:.3f}), measured {worst.measured_s:.3f} s"
        )


def fit(held_out: Evidence, played: Simulations) -> None:
    """Print the prior that all runs show."""
    groups: list[Sequence[Observation]] = []
    for each in held_out.configurations:
        with suppress(NoPrediction):
            groups.append(observations(each, played))
    found = ErrorModel.fitted(groups, PRIOR)
    print(f"prior of {sum(map(len, groups))} runs of {len(groups)} configurations")
    print(f"  mean {found.mean.round(4).tolist()}, noise {found.noise:.4f}")
    print(f"  covariance {found.covariance.round(6).tolist()}", flush=True)


def name_of(run: RunSpec) -> str:
    return f"{run.name_of('strategy')} {run.name_of('model')} {run.batch_size}"


if __name__ == "__main__":
    main()
