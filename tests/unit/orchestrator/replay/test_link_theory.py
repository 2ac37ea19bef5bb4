"""Mistakes in sweeps/links.yml, its formulas, its table in the docs, and the replay of its links."""

from __future__ import annotations

import pytest

from orchestrator.report.model.labels import link_label, strategy_label
from orchestrator.sweeps.load import load_sweep
from tests.support import link_theory as theory
from tests.support.traces import TraceBuilder, builders, traces
from tests.unit.conftest import PROJECT
from trainer.core.trace import Kind
from trainer.parallel.schedules import passes
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Cluster, Link
from trainer.time_model.simulate import simulate

RUNS = [run for run in load_sweep(PROJECT / "sweeps" / "links.yml").runs if run.has_links and run.seed == 0]
LINKS = list(dict.fromkeys(map(link_label, RUNS)))
STEPS = 24  # replayed: a multiple of all intervals between averages


def over(link: str) -> list[RunSpec]:
    return [run for run in RUNS if link_label(run) == link]


def order(seconds: dict[str, float]) -> list[str]:
    return sorted(seconds, key=lambda name: seconds[name])


def predicted(link: str) -> dict[str, float]:
    return {strategy_label(run): theory.exchange_s(run) for run in over(link)}


def test_some_links_are_bound_by_bandwidth_and_some_by_latency() -> None:
    assert len(LINKS) == 4
    assert all(len(over(link)) == 5 for link in LINKS)
    shares = []
    for link in LINKS:
        run = next(run for run in over(link) if strategy_label(run) == "all_reduce")
        shares.append(4 * theory.latency_s(run) / theory.exchange_s(run))
    assert min(shares) == 0.0
    assert any(0.0 < share < 0.05 for share in shares)
    assert max(shares) > 0.8


def test_bandwidth_and_latency_favour_different_strategies() -> None:
    slow, far = (predicted(link) for link in ("10 Mbit/s, 1 ms", "1000 Mbit/s, 10 ms"))
    assert order(slow) != order(far)
    for strategy in ("all_reduce compression=power_sgd", "pipeline"):
        assert slow[strategy] < slow["all_reduce"]
        assert far[strategy] > far["all_reduce"]


def step(rank: TraceBuilder, number: int, run: RunSpec) -> None:
    """The exchanges of a step (from 1) of one rank of two."""
    if run.name_of("strategy") == "pipeline":
        pipeline_step(rank, number, run)
    elif strategy_label(run) == "all_reduce compression=power_sgd":
        for floats in theory.power_sgd_floats(run):
            rank.add(Kind.ALL_REDUCE, theory.FLOAT * floats)
    elif theory.exchanges_of(run, number) > theory.exchanges_of(run, number - 1):
        rank.add(Kind.ALL_REDUCE, theory.FLOAT * theory.weights_of(run))


def pipeline_step(rank: TraceBuilder, number: int, run: RunSpec) -> None:
    count, nbytes, stage = run.strategy.micro_batch_count, theory.micro_batch_bytes(run), rank.rank
    for each in passes("1f1b", stage, 2, count):
        sends = (each.kind == "forward") == (stage == 0)
        rank.add(Kind.SEND if sends else Kind.RECEIVE, nbytes, 1 - stage)
    for index in range(count):
        rank.add(Kind.SEND_WAIT, (number - 1) * count + index, 1 - stage)


def replayed_s(run: RunSpec) -> float:
    """Seconds per step of a replay without work and software."""
    ranks = builders(2)
    for rank in ranks:
        for number in range(1, STEPS + 1):
            step(rank, number, run)
    link = Link(latency_s=theory.latency_s(run), bytes_per_s=theory.bytes_per_s(run))
    cluster = Cluster(node_speed=[1.0, 1.0], link=link, overhead_s=0.0)
    return simulate(traces(ranks), cluster).cluster_s / STEPS


@pytest.mark.parametrize("link", LINKS)
def test_the_replay_takes_as_long_as_the_formulas_say(link: str) -> None:
    found = {strategy_label(run): replayed_s(run) for run in over(link)}
    expected = {
        strategy_label(run): theory.exchange_s(run)
        * (theory.exchanges_of(run, STEPS) / STEPS)
        / (theory.exchanges_of(run, theory.steps_of(run)) / theory.steps_of(run))
        for run in over(link)
    }
    assert found == pytest.approx(expected, rel=0.01)


def test_the_table_in_the_docs_has_the_values_of_the_formulas() -> None:
    """On failure, the expected lines are those to paste."""
    names = [strategy_label(run) for run in over(LINKS[0])]
    lines = ["| strategy | " + " | ".join(LINKS) + " |"]
    for name in names:
        cells = [
            f"**{ms:.2f}**" if name == order(predicted(link))[0] else f"{ms:.2f}"
            for link in LINKS
            for ms in [1000 * predicted(link)[name]]
        ]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    page = (PROJECT / "docs" / "links.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line not in page] == []
