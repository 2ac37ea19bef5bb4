"""The command `predict`: what configurations of a results directory do on more nodes and other links."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from orchestrator.commands.replay import parse_link
from orchestrator.errors import InputError
from orchestrator.prediction.evidence import Evidence, read_evidence
from orchestrator.prediction.forecast import (
    LEAST_GAIN,
    Forecast,
    Question,
    Refused,
    forecasts,
    stops_paying,
)
from orchestrator.prediction.measured_cluster import read_measured_cluster
from orchestrator.prediction.simulated import simulations
from orchestrator.report import formats
from orchestrator.report.model.labels import Workload, component_label, strategy_label
from orchestrator.results.store import SweepPaths
from trainer.spec.node_speed import MAX_NODES
from trainer.spec.run_spec import RunSpec

Found = Sequence[Forecast | Refused]


def question_of(
    nodes: str, link: str | None, speed: float, price: str | None, cluster: Path | None = None
) -> Question:
    """What the options ask. cluster: a file that `calibrate` has written. Raises InputError."""
    return Question(
        parse_nodes(nodes),
        None if link is None else parse_link(link),
        speed,
        parse_price(price),
        None if cluster is None else read_measured_cluster(cluster),
    )


def parse_nodes(text: str) -> tuple[int, ...]:
    """`8,64,1024` as numbers of nodes, in ascending order. Raises InputError."""
    found = set()
    for each in text.split(","):
        if not (each.strip().isdecimal() and 1 <= int(each) <= MAX_NODES):
            raise InputError(
                f"--nodes {text}: {each.strip() or 'an empty number'} is no number of nodes; each is 1 to "
                f"{MAX_NODES:,}"
            )
        found.add(int(each))
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


def predict(paths: SweepPaths, question: Question, data_dir: Path) -> tuple[Evidence, Found]:
    """Read the measured runs, simulate the nodes that are asked for, and forecast. Raises InputError."""
    evidence = read_evidence(paths)
    if not evidence.configurations:
        reasons = "".join(f"\n  {each.key}: {each.reason}" for each in evidence.unusable[:5])
        raise InputError(f"{paths.directory}: no finished run shows how long others take{reasons}")
    with simulations(data_dir) as played:
        return evidence, [*forecasts(evidence, question, played)]


def lines(found: Found) -> Iterator[Text | Table]:
    """All that the command prints but the refusals: for each configuration, its name and a table."""
    for name, of_name in by_configuration(found):
        ok = [each for each in of_name if isinstance(each, Forecast)]
        if ok:
            yield Text(f"{name} (measured on up to {formats.count(ok[0].measured_nodes, 'node')})")
            yield _table(ok)
            if sentence := _stops(ok):
                yield Text(sentence)
            yield Text("")


def refusals(evidence: Evidence, found: Found) -> Iterator[str]:
    """A sentence for each reason without a forecast."""
    for name, of_name in by_configuration(found):
        refused = [each for each in of_name if isinstance(each, Refused)]
        for reason, same in groupby(refused, key=lambda each: each.reason):
            nodes = ", ".join(f"{each.nodes:,}" for each in same)
            yield f"{name} on {nodes} nodes: no prediction: {reason}"
    for each in evidence.unusable:
        yield f"{each.key} is not used: {each.reason}"


def by_configuration(found: Found) -> Iterator[tuple[str, list[Forecast | Refused]]]:
    """The forecasts of each configuration, with its name."""
    for _, group in groupby(found, key=lambda each: id(each.configuration)):
        same = [*group]
        yield label(same[0].configuration.run), same


def label(run: RunSpec) -> str:
    """The name of a configuration: what it trains, and how."""
    partitioner = component_label(run, "partitioner") if run.strategy.uses_partition else ""
    parts = [strategy_label(run), f"over {run.transport}", f"with {partitioner}" if partitioner else ""]
    return f"{' '.join(filter(None, parts))}: {Workload.of(run).without_links.label}"


def as_json(evidence: Evidence, found: Found) -> str:
    """All that was computed, as a JSON object."""
    return json.dumps(
        {
            "forecasts": [_record(each) for each in found if isinstance(each, Forecast)],
            "refused": [
                {"configuration": label(each.configuration.run), "nodes": each.nodes, "reason": each.reason}
                for each in found
                if isinstance(each, Refused)
            ],
            "unused": [{"run": each.key, "reason": each.reason} for each in evidence.unusable],
        },
        indent=1,
    )


def _record(each: Forecast) -> dict[str, Any]:
    return {
        "configuration": label(each.configuration.run),
        "nodes": each.run.nodes,
        "measured_nodes": each.measured_nodes,
        "seconds": each.seconds,
        "low_s": each.low_s,
        "high_s": each.high_s,
        "communication": each.communication,
        "speedup": each.speedup,
        "efficiency": each.efficiency,
        "bytes_sent": each.bytes_sent,
        "state_bytes": each.state_bytes,
        "cost": each.cost,
        "low_cost": each.low_cost,
        "high_cost": each.high_cost,
        "spec": each.run.model_dump(mode="json", exclude_defaults=True),
    }


def _table(found: Sequence[Forecast]) -> Table:
    priced = found[0].cost is not None
    shown = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="")
    headings = ["\nnodes", "\ntime", "90 %\ninterval", "speed-\nup", "effi-\nciency", "comm.\nshare"]
    headings += ["sent\na rank", "state\na rank"] + (["\ncost"] if priced else [])
    for heading in headings:
        shown.add_column(Text(heading), justify="right", no_wrap=True)
    for each in found:
        shown.add_row(*_cells(each, priced))
    return shown


def _cells(each: Forecast, priced: bool) -> list[str]:
    cells = [
        f"{each.run.nodes:,}",
        formats.seconds(each.seconds),
        f"{formats.significant(each.low_s)}–{formats.significant(each.high_s)}",
        formats.ratio(each.speedup),
        formats.percent(each.efficiency),
        formats.percent(each.communication),
        formats.size(each.bytes_sent),
        formats.size(each.state_bytes),
    ]
    return [*cells, f"{each.cost:.2g}"] if priced and each.cost is not None else cells


def _stops(found: Sequence[Forecast]) -> str:
    """Until how many of these nodes more of them pay; empty for one number of nodes."""
    if len(found) < 2:
        return ""
    if nodes := stops_paying(found):
        return f"More than {nodes:,} nodes do not make it {100 * LEAST_GAIN:g} % faster."
    return f"More nodes make it faster up to {found[-1].run.nodes:,}, the most that were asked for."
