"""The command `calibrate`: measures what messages and exchanges cost on a runtime, and writes a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from orchestrator.commands.sweep import SelectedRuntime
from orchestrator.errors import InputError, output_error
from orchestrator.prediction.evidence import finished_runs
from orchestrator.prediction.measured_cluster import measured_cluster
from orchestrator.replay.described import Costs
from orchestrator.results.store import SweepPaths, write_atomic
from trainer.time_model.cluster import ANSWER, ANY_COLLECTIVE, CALL

SWEEP = "calibrate"  # the shipped sweep that it runs


def check_real(selected: SelectedRuntime) -> None:
    """Raise InputError for a runtime whose nodes have no links that could be measured."""
    if selected.runtime.info.simulates_time:
        raise InputError(f"{selected.reason}: has no real nodes, whose messages are measured")


def write_costs(paths: SweepPaths, file: Path) -> list[str]:
    """Write the costs that the runs of a results directory show. Raises InputError if they show none.

    Returns:
        a line for each transport.
    """
    found, _ = finished_runs(paths)
    costs = Costs.of([(each.directory, result) for each, result in found])
    cluster = measured_cluster([result for _, result in found], costs)
    if cluster is None:
        raise InputError(f"{paths.directory}: no finished run has measured the links between its nodes")
    try:
        write_atomic(file, cluster.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise output_error(file, error, "FILE") from error
    return [
        f"{name}: {each.message_s * 1e6:,.0f} µs for a small message, "
        f"{each.bytes_per_s * 8 / 1e6:,.0f} Mbit/s, costs of {_kinds(each.exchanges)} kinds of exchange"
        for name, each in cluster.transports.items()
    ]


def _kinds(names: Iterable[str]) -> int:
    """How many kinds of exchange are named, without the parts of one that have costs of their own."""
    return sum(not name.endswith((ANSWER, CALL)) and name != ANY_COLLECTIVE for name in names)
