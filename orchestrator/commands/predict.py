"""The command `predict`: what configurations of a results directory do on more nodes and other links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from orchestrator.errors import InputError
from orchestrator.layouts.hardware import link_of
from orchestrator.prediction.evidence import evidence_of, finished_runs
from orchestrator.prediction.forecast import Forecast, Question, Refused, TimeToTarget, forecasts
from orchestrator.prediction.measured_cluster import read_measured_cluster
from orchestrator.prediction.simulated import simulations
from orchestrator.prediction.target import read_learned
from orchestrator.report import formats
from orchestrator.report.model.labels import Workload, partitioner_label, strategy_label
from orchestrator.results.predictions import (
    LEAST_GAIN,
    Asked,
    Prediction,
    Predictions,
    RefusedPrediction,
    ToTarget,
    UnusedRun,
    stops_paying,
)
from orchestrator.results.store import SweepPaths
from orchestrator.terminal import plain_table
from trainer.core.record import Record
from trainer.core.whole_number import whole_number
from trainer.spec.node_speed import MAX_NODES
from trainer.spec.run_spec import RunSpec


def asked(nodes: str, link: str | None, node_speed: float, price: str | None) -> Asked:
    """The options as a record. Raises InputError."""
    return Asked(
        nodes=[*parse_nodes(nodes)], link=link, node_speed=node_speed, price_per_h=parse_price(price)
    )


def question_of(asked: Asked, cluster: Path | None = None, learned: Path | None = None) -> Question:
    """What the options ask.

    Args:
        cluster: a file that `calibrate` has written.
        learned: a results directory of virtual nodes.

    Raises:
        InputError: an option cannot be read.
    """
    return Question(
        asked.nodes,
        None if asked.link is None else link_of(asked.link),
        asked.node_speed,
        asked.price_per_h,
        None if cluster is None else read_measured_cluster(cluster),
        () if learned is None else read_learned(SweepPaths(learned)),
    )


def parse_nodes(text: str) -> tuple[int, ...]:
    """`8,64,1024` as numbers of nodes, in ascending order. Raises InputError."""
    found = set()
    for each in text.split(","):
        if not (number := whole_number(each.strip(), MAX_NODES)):
            raise InputError(
                f"--nodes {text}: {each.strip() or 'an empty number'} is no number of nodes; each is 1 to "
                f"{MAX_NODES:,}"
            )
        found.add(number)
    return tuple(sorted(found))


def parse_price(text: str | None) -> float | None:
    """`2.50/h` as the price of a node in an hour. Raises InputError."""
    if text is None:
        return None
    amount, _, unit = text.partition("/")
    try:
        price = float(amount)
    except ValueError:
        price = -1.0
    if unit != "h" or not 0 < price <= 1e6:
        raise InputError(f"--price {text}: must be the price of a node in an hour, such as 2.50/h")
    return price


def predict(paths: SweepPaths, asked: Asked, question: Question, data_dir: Path) -> Predictions:
    """Read the measured runs, simulate the nodes that are asked for, and predict. Raises InputError."""
    finished, unreadable = finished_runs(paths)
    evidence = evidence_of(finished, unreadable)
    if not evidence.configurations:
        reasons = "".join(f"\n  {each.key}: {each.reason}" for each in evidence.unusable[:5])
        raise InputError(f"{paths.directory}: no finished run shows how long others take{reasons}")
    with simulations(data_dir) as played:
        found = [*forecasts(evidence, question, played)]
    return Predictions(
        asked=asked,
        made_from={each.directory.name: result.started_at for each, result in finished},
        forecasts=[_prediction(each) for each in found if isinstance(each, Forecast)],
        refused=[_refusal(each) for each in found if isinstance(each, Refused)],
        unused=[UnusedRun(run=each.key, reason=each.reason) for each in evidence.unusable],
    )


def lines(predictions: Predictions) -> Iterator[Text | Table]:
    """All that the command prints but the refusals: for each configuration, its name and a table."""
    for name, group in groupby(predictions.forecasts, key=lambda each: (each.configuration, each.runs)):
        found = [*group]
        yield Text(f"{name[0]} (measured on up to {formats.count(found[0].measured_nodes, 'node')})")
        yield _table(found)
        for each in found:
            if each.to_target:
                yield Text(_to_target(each, each.to_target))
        if sentence := _stops(found):
            yield Text(sentence)
        yield Text("")


def refusals(predictions: Predictions) -> Iterator[str]:
    """A sentence for each reason without a prediction."""
    reasons = groupby(predictions.refused, key=lambda each: (each.configuration, each.runs, each.reason))
    for (name, _, reason), same in reasons:
        nodes = ", ".join(f"{each.nodes:,}" for each in same)
        yield f"{name} on {nodes} nodes: no prediction: {reason}"
    for each in predictions.unused:
        yield f"{each.run} is not used: {each.reason}"


def label(run: RunSpec) -> str:
    """The name of a configuration: what it trains, and how."""
    partitioner = partitioner_label(run)
    parts = [strategy_label(run), f"over {run.transport}", f"with {partitioner}" if partitioner else ""]
    return f"{' '.join(filter(None, parts))}: {Workload.of(run).without_links.label}"


def _prediction(each: Forecast) -> Prediction:
    fields = _same(each, Prediction) | {
        "configuration": label(each.configuration.run),
        "runs": [one.key for one in each.configuration.runs],
        "nodes": each.run.nodes,
        "to_target": None if each.to_target is None else _target(each.to_target),
        "spec": each.run.model_dump(mode="json", exclude_defaults=True),
    }
    return Prediction(**fields)


def _target(each: TimeToTarget) -> ToTarget:
    learned = each.learned
    fields = {"accuracy": learned.accuracy, "epochs": [*learned.epochs], "seeds": learned.runs}
    return ToTarget(**(_same(each, ToTarget) | fields))


def _same(found: Forecast | TimeToTarget, record: type[Record]) -> dict[str, Any]:
    """The fields that a record shares with what it records."""
    return {name: getattr(found, name) for name in record.model_fields if hasattr(found, name)}


def _refusal(each: Refused) -> RefusedPrediction:
    return RefusedPrediction(
        configuration=label(each.configuration.run),
        runs=[one.key for one in each.configuration.runs],
        nodes=each.nodes,
        reason=each.reason,
    )


def _table(found: Sequence[Prediction]) -> Table:
    priced = found[0].cost is not None
    headings = ["\nnodes", "\ntime", "90 %\ninterval", "speed-\nup", "effi-\nciency", "comm.\nshare"]
    headings += ["sent\na rank", "state\na rank"] + (["\ncost"] if priced else [])
    shown = plain_table(headings)
    for each in found:
        shown.add_row(*_cells(each))
    return shown


def _cells(each: Prediction) -> list[str]:
    cells = [
        f"{each.nodes:,}",
        formats.seconds(each.seconds),
        f"{formats.significant(each.low_s)}–{formats.significant(each.high_s)}",
        formats.ratio(each.speedup),
        formats.percent(each.efficiency),
        formats.percent(each.communication),
        formats.size(each.bytes_sent),
        formats.size(each.state_bytes),
    ]
    return cells if each.cost is None else [*cells, f"{each.cost:.2g}"]


def _to_target(each: Prediction, target: ToTarget) -> str:
    """`8 nodes reach 90% in 1.2 s (1–1.6), after 3 to 5 epochs (2 of 3 runs on virtual nodes).`"""
    fewest, most = target.epochs[0], target.epochs[-1]
    epochs = formats.count(most, "epoch") if fewest == most else f"{fewest} to {most} epochs"
    between = f"{formats.significant(target.low_s)}–{formats.significant(target.high_s)}"
    return (
        f"{formats.count(each.nodes, 'node')} reach {formats.percent(target.accuracy)} in "
        f"{formats.seconds(target.seconds)} ({between}), after {epochs} ({len(target.epochs)} of "
        f"{formats.count(target.seeds, 'run')} on virtual nodes)."
    )


def _stops(found: Sequence[Prediction]) -> str:
    """Until how many of these nodes more of them pay; empty for one number of nodes."""
    if len(found) < 2:
        return ""
    if nodes := stops_paying(found):
        return f"More than {nodes:,} nodes do not make it {100 * LEAST_GAIN:g} % faster."
    return f"More nodes make it faster up to {found[-1].nodes:,}, the most that were asked for."
