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
from itertools import product
from pathlib import Path
from statistics import fmean, median

from pydantic import ValidationError

from orchestrator.prediction.error_model import PRIOR
from orchestrator.prediction.errors import NoPrediction
from orchestrator.prediction.evidence import Configuration, Evidence, MeasuredRun, evidence_of
from orchestrator.prediction.forecast import Forecast, Question, cluster_of, forecasts, observations
from orchestrator.prediction.simulated import Simulations, simulations
from orchestrator.report.model.labels import component_label
from orchestrator.results.records import RunResult
from orchestrator.results.store import RunPaths, SweepPaths
from orchestrator.runtimes.virtual.runtime import VirtualRuntime
from tests.bench.prediction_accuracy import Outcome, accuracy, lines
from tests.bench.runs import runs_on
from trainer.core.trace import Kind
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec

FITTED, HELD_OUT = (1, 2), (3, 4)
# The prior of the error model was fitted to other runs: batches of 16 and 32, seeds 0 and 1.
SEEDS, MODELS, BATCHES = (2, 3), ("lenet", "mlp"), (8, 64)
RUN = {"dataset": "digits", "lr": 0.02, "epochs": 3}
WORST = 10  # errors that are printed

Runs = list[tuple[RunPaths, RunResult]]
Key = tuple[str, int]  # configuration, nodes


@dataclass(frozen=True)
class Predicted:
    """The forecast of a configuration with its interval, and two baselines. All in seconds."""

    seconds: float
    low_s: float
    high_s: float
    linear_s: float
    formula_s: float


def main() -> None:
    with tempfile.TemporaryDirectory() as name, simulations(Path(name) / "data") as played:
        directory = Path(name) / "runs"
        known = execute(directory, FITTED)
        predicted = predict(evidence_of(known), Question(HELD_OUT), played)
        record = [[*key, each.low_s, each.seconds, each.high_s] for key, each in predicted.items()]
        digest = hashlib.sha256(json.dumps(record).encode()).hexdigest()
        print(f"{len(predicted)} predictions with intervals, SHA-256 {digest}", flush=True)
        held_out = evidence_of([*known, *execute(directory, HELD_OUT)])
        report(predicted, by_key(held_out))
        fit(held_out, played)


def execute(directory: Path, numbers: Sequence[int]) -> Runs:
    """Train on so many nodes, each strategy with each model, batch and seed."""
    with runs_on("local", results=directory) as train:
        train(next(runs(FITTED)).model_copy(update={"seed": 99}))  # with cold caches; it does not count
        return [(SweepPaths(directory).run(run.key), train(run)) for run in runs(numbers)]


def runs(numbers: Sequence[int]) -> Iterator[RunSpec]:
    """Every run on so many nodes, seed by seed, so that a drift of the machine meets all alike."""
    supported = VirtualRuntime()
    for seed, model, batch, name, nodes in product(SEEDS, MODELS, BATCHES, STRATEGIES.entries, numbers):
        serial = name == "serial"
        if (nodes == 1) != serial or not (serial or "gloo" in STRATEGIES.load(name).transports):
            continue
        transport = {} if serial else {"transport": "gloo"}
        fields = {"strategy": name, "nodes": nodes, "model": model, "batch_size": batch, "seed": seed}
        with suppress(ValidationError):  # such as hybrid on 3 nodes
            run = RunSpec.model_validate({**RUN, **fields, **transport})
            if run.strategy.trains and not supported.unsupported_reason(run):
                yield run


def predict(evidence: Evidence, question: Question, played: Simulations) -> dict[Key, Predicted]:
    """The forecasts that a question has, each with the baselines."""
    found: dict[Key, Predicted] = {}
    for each in forecasts(evidence, question, played):
        if isinstance(each, Forecast):
            known, nodes = each.configuration, each.run.nodes
            most = [one.seconds for one in known.runs if one.run.nodes == known.most_nodes]
            linear_s = fmean(most) * known.most_nodes / nodes
            formula_s = alpha_beta(known, nodes, question, played)
            interval = each.seconds, each.low_s, each.high_s
            found[name_of(known.run), nodes] = Predicted(*interval, linear_s, formula_s)
    return found


def alpha_beta(configuration: Configuration, nodes: int, question: Question, played: Simulations) -> float:
    """Seconds by the α–β formula, with the costs of a message that the runs show."""
    cluster = cluster_of(configuration, nodes, question)
    simulated = played.played(configuration, nodes, configuration.runs[0].epochs)
    step_s = configuration.per_step_s + configuration.per_sample_s * configuration.run.batch_per_replica
    kinds = simulated.traces[0].records["kind"]
    steps, exchanges = int((kinds == Kind.STEP).sum()), int((kinds > Kind.STEP).sum())
    latency_s = 2 * (cluster.overhead_s or 0.0) + cluster.link.latency_s
    sent_s = (simulated.result.bytes_sent_per_rank or 0.0) / cluster.link.bytes_per_s
    return steps * step_s / cluster.node_speed[0] + exchanges * latency_s + sent_s


def by_key(evidence: Evidence) -> dict[Key, list[MeasuredRun]]:
    """The runs that are measured."""
    found: defaultdict[Key, list[MeasuredRun]] = defaultdict(list)
    for configuration in evidence.configurations:
        for each in configuration.runs:
            found[name_of(configuration.run), each.run.nodes].append(each)
    return found


def report(predicted: Mapping[Key, Predicted], measured: Mapping[Key, Sequence[MeasuredRun]]) -> None:
    """Print the accuracy of predictions and baselines, the largest errors, and how the truth repeats."""
    outcomes: defaultdict[str, list[Outcome]] = defaultdict(list)
    for name, nodes in predicted.keys() & measured.keys():
        each = predicted[name, nodes]
        for one in measured[name, nodes]:
            strategy, _, workload = name.partition(" ")
            case, took_s = f"{workload} {nodes} nodes seed {one.run.seed}", one.seconds
            forecast = Outcome(case, strategy, each.seconds, each.low_s, each.high_s, took_s)
            outcomes["prediction"].append(forecast)
            outcomes["linear"].append(Outcome(case, strategy, each.linear_s, None, None, took_s))
            outcomes["α–β"].append(Outcome(case, strategy, each.formula_s, None, None, took_s))
    for line in lines({label: accuracy(rows) for label, rows in outcomes.items()}):
        print(line)
    seconds = [[one.seconds for one in runs] for runs in measured.values()]
    spreads = [max(each) / min(each) - 1 for each in seconds if len(each) > 1]
    if spreads:
        print(f"measured times of two seeds differ by {median(spreads):.1%} in the median")
    for worst in sorted(outcomes["prediction"], key=lambda each: -abs(each.error))[:WORST]:
        print(
            f"  {worst.error:+7.1%} {worst.choice} {worst.case}: {worst.predicted_s:.3f} s "
            f"({worst.low_s:.3f} to {worst.high_s:.3f}), measured {worst.measured_s:.3f} s"
        )


def fit(held_out: Evidence, played: Simulations) -> None:
    """Print the prior that all runs show."""
    groups = []
    for each in held_out.configurations:
        with suppress(NoPrediction):
            groups.append(observations(each, played))
    found = PRIOR.fitted(groups)
    print(f"prior of {sum(map(len, groups))} runs of {len(groups)} configurations")
    print(f"  mean {found.mean.round(4).tolist()}, noise {found.noise:.4f}")
    print(f"  covariance {found.covariance.round(6).tolist()}", flush=True)


def name_of(run: RunSpec) -> str:
    return f"{run.name_of('strategy')} {component_label(run, 'model')} {run.batch_size}"
