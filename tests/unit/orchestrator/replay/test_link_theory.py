"""Mistakes in sweeps/links.yml, its formulas, its table in the docs, and the replay of its links."""

from __future__ import annotations

import pytest

from orchestrator.report.model.labels import link_label, strategy_label
from orchestrator.sweeps.load import load_sweep
from tests.support import link_theory as theory
from tests.support.traces import builders, traces
from tests.unit.conftest import PROJECT
from trainer.core.trace import Kind
from trainer.parallel.schedules import passes
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Cluster, Link
from trainer.time_model.simulate import simulate

RUNS = [run for run in load_sweep(PROJECT / "sweeps" / "links.yml").runs if run.has_links and run.seed == 0]
STEPS = 24  # replayed: a multiple of all intervals between averages


def replayed_s(run: RunSpec) -> float:
    """Seconds per step of a replay without work and software."""
    ranks = builders(2)
    for number in range(1, STEPS + 1):
        if run.name_of("strategy") == "pipeline":
            count, nbytes = run.strategy.micro_batch_count, theory.micro_batch_bytes(run)
            for stage, rank in enumerate(ranks):
                for each in passes("1f1b", stage, 2, count):
                    sends = (each.kind == "forward") == (stage == 0)
                    rank.add(Kind.SEND if sends else Kind.RECEIVE, nbytes, 1 - stage)
                for index in range(count):
                    rank.add(Kind.SEND_WAIT, (number - 1) * count + index, 1 - stage)
        elif strategy_label(run) == "all_reduce compression=power_sgd":
            for rank in ranks:
                for floats in theory.power_sgd_floats(run):
                    rank.add(Kind.ALL_REDUCE, theory.FLOAT * floats)
        elif theory.exchanges_of(run, number) > theory.exchanges_of(run, number - 1):
            for rank in ranks:
                rank.add(Kind.ALL_REDUCE, theory.FLOAT * theory.weights_of(run))
    link = Link(latency_s=theory.latency_s(run), bytes_per_s=theory.bytes_per_s(run))
    cluster = Cluster(node_speed=[1.0, 1.0], link=link, overhead_s=0.0)
    return simulate(traces(ranks), cluster).cluster_s / STEPS


def test_the_replay_takes_as_long_as_the_formulas_say() -> None:
    for run in RUNS:
        per_step = [theory.exchanges_of(run, steps) / steps for steps in (STEPS, theory.steps_of(run))]
        expected_s = theory.exchange_s(run) * per_step[0] / per_step[1]
        assert replayed_s(run) == pytest.approx(expected_s, rel=0.01), run.key


def test_the_table_in_the_docs_has_the_values_of_the_formulas() -> None:
    table: dict[str, dict[str, float]] = {}
    for run in RUNS:
        table.setdefault(strategy_label(run), {})[link_label(run)] = 1000 * theory.exchange_s(run)
    fastest = {link: min(row[link] for row in table.values()) for link in table["all_reduce"]}
    lines = ["| strategy | " + " | ".join(fastest) + " |"]
    for name, row in table.items():
        cells = [f"**{ms:.2f}**" if ms == fastest[link] else f"{ms:.2f}" for link, ms in row.items()]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    page = (PROJECT / "docs" / "links.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line not in page] == []  # those to paste
