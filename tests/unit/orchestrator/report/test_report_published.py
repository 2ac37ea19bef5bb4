"""Mistakes beside published results: which runs a published number is beside, which is the reference of a
speedup, the sign of a difference, and ablations of runs that do not compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.replay.run import ClusterTime
from orchestrator.report.formats import JOIN, percent
from orchestrator.report.metrics.published import differences, published_lines
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.render.columns import PUBLISHED
from orchestrator.results.records import RunResult
from orchestrator.sweeps.lab import BlockRecord, Lab
from tests.unit.report_support import (
    ONE_SHOT_ALONE,
    a_comparison,
    a_pipeline,
    a_run,
    cells,
    finding_of,
    findings_of,
    in_cluster_time,
    in_parts,
    verdicts_of,
    with_epochs,
)

approx = pytest.approx
LAB = {"title": "About <averaging>", "source": "a lab sheet", "hardware": "an old laptop", "differs": []}
STEPS = [
    {"block": "theirs"},
    {"block": "fixed", "fixes": "{nodes} different initial weights"},
    {"block": "alone", "runs": {"nodes": 1}, "fixes": "averaging"},
]
FIGURES = [
    {"runs": {"nodes": 1}, "time_s": 80.0, "accuracy": 0.91, "steps_per_epoch": 469},
    {"runs": {"nodes": 2}, "time_s": 50.0, "accuracy": 0.35, "accuracy_change": -0.56},
    {"runs": {"nodes": 4}, "time_s": 20.0, "accuracy": 0.10, "derived": ["accuracy"]},
]


def one_shot(nodes: int, accuracy: float, **fields: Any) -> RunResult:
    return a_run(fields.pop("strategy", ONE_SHOT_ALONE), nodes=nodes, accuracy=accuracy, cores=2, **fields)


ALONE = a_run(train_s=8.0, accuracy=0.9, cores=2)
THEIRS = [
    one_shot(1, 0.9, train_s=8.0, steps=200),
    one_shot(2, 0.3, train_s=4.0),
    one_shot(4, 0.1, train_s=4.0, work_cpu_s=2.0),
]
FIXED = one_shot(2, 0.7, strategy="one_shot", train_s=4.0)


def in_blocks(
    published: Sequence[dict[str, Any]] = (),
    ablation: dict[str, Any] | None = None,
    overrides: Sequence[str] = (),
    clusters: Sequence[ClusterTime] = (),
    **blocks: Sequence[RunResult],
) -> Comparison:
    """A lab. published: of the block `theirs`."""
    results = {run.key: run for runs in blocks.values() for run in runs}
    records = [{"name": name, "keys": [run.key for run in runs]} for name, runs in blocks.items()]
    for record in records:
        record |= {"published": published} if record["name"] == "theirs" else {}
    return a_comparison(
        *results.values(),
        lab=Lab.model_validate({**LAB, "ablations": [ablation] if ablation else []}),
        blocks=[BlockRecord.model_validate(each) for each in records],
        overrides=overrides,
        clusters=clusters,
    )


def a_lab(
    theirs: Sequence[RunResult] = THEIRS, fixed: Sequence[RunResult] = (FIXED,), **fields: Any
) -> Comparison:
    ablation = {"measure": "accuracy", "nodes": [2, 4], "steps": STEPS}
    return in_blocks(FIGURES, ablation, theirs=theirs, fixed=fixed, **{"alone": [ALONE], **fields})


def table(comparison: Comparison) -> list[dict[str, str]]:
    return cells(PUBLISHED, published_lines(comparison))


def test_a_speedup_is_over_one_node_of_the_same_runs_and_geometric() -> None:
    ours = [("ddp", 1, [4.0, 16.0]), ("ddp", 2, [2.0, 2.0]), ("gossip", 1, [90.0]), ("gossip", 2, [9.0])]
    runs = [
        a_run(strategy, nodes=nodes, seed=seed, train_s=train_s)
        for strategy, nodes, times in ours
        for seed, train_s in enumerate(times)
    ]
    theirs = [("gossip", 1, 50.0), ("gossip", 2, 10.0), ("ddp", 1, 30.0), ("ddp", 2, 10.0)]
    published = [
        {"runs": {"strategy": name, "nodes": nodes}, "time_s": time_s} for name, nodes, time_s in theirs
    ]
    lines = published_lines(in_blocks(published, theirs=runs))
    assert [line.published_speedup for line in lines] == [None, 5.0, None, 3.0]
    assert [line.measured_speedup for line in lines] == [None, pytest.approx(10), None, pytest.approx(4)]


def test_a_published_time_is_beside_the_wall_time_and_its_speedup_beside_that_of_the_report() -> None:
    cluster_s = {1: 6.0, 2: 4.0, 4: 1.5}
    clusters = [in_cluster_time(run, cluster_s[run.run.nodes]) for run in THEIRS]
    times = {"block": "theirs", "train_s": approx(8.0), "published_s": 80.0, "speedup_of": {"nodes": 4}}
    speedups = {"speedup": approx(4.0), "published_speedup": 4.0, "cpu_time_speedup": approx(8.0 / 2.0)}
    comparison = in_blocks(FIGURES, theirs=THEIRS, clusters=clusters)
    data = finding_of(comparison, "published_time").data
    assert data | times | speedups == data


@pytest.mark.parametrize(
    ("published", "headline"),
    [
        ([0.9], "The published accuracy is reproduced"),
        ([0.911], "The published accuracy is not reproduced"),
        ([0.91, 0.31], "Both published accuracies are reproduced"),
        ([0.889, 0.31], "1 of 2 published accuracies is reproduced"),
        ([0.88, 0.32], "None of 2 published accuracies is reproduced"),
        ([0.9, 0.3, 0.1], "All 3 published accuracies are reproduced"),
        ([0.9, 0.29, 0.2], "2 of 3 published accuracies are reproduced"),
    ],
)
def test_published_accuracies_are_reproduced_within_a_point(published: list[float], headline: str) -> None:
    selected = [{"nodes": nodes} for nodes in (1, 2, 4)]
    entries = [{"runs": of, "accuracy": part} for of, part in zip(selected, published, strict=False)]
    (verdict,) = verdicts_of(in_blocks(entries, theirs=THEIRS))
    assert verdict.headline.replace(",", "").startswith(f"{headline} within")
    worst = max(zip(published, (0.9, 0.3, 0.1), strict=False), key=lambda pair: abs(pair[0] - pair[1]))
    assert f"{percent(worst[0])} published, {percent(worst[1])} here" in verdict.headline


def test_other_published_numbers() -> None:
    link = {"latency_ms": 5}
    stale = a_run("async_parameter_server", nodes=3, staleness=[(1.0, 2), (2.0, 3)], link=link)
    entry = {"runs": {"nodes": 3, "link": link}, "staleness": 1}
    (line,) = table(in_blocks([entry], theirs=[stale]))
    names = ("staleness_published", "staleness_measured", "runs")
    assert [line[name] for name in names] == ["1.00", "1.50 | max 3", "3 nodes, link {latency_ms: 5}"]
    # The pipeline waits 4 of 8 s, and stores 5000 bytes. The state of serial has 12000, 4000 of weights.
    runs = [in_parts(a_run(), [1000], activations=[8000]), a_pipeline()]
    entry = {"runs": {"nodes": 2}, "bubble": 0.25, "activations": 0.5, "exchange_share": 0.2}
    entry |= {"state": 0.5, "sent": 0.1}
    comparison = in_blocks([entry], theirs=runs)
    (line,) = table(comparison)
    names = ("bubble_measured", "activations_published", "activations_measured", "exchange_share_measured")
    assert [line[name] for name in names] == ["50.0%", "50.0%", "62.5%", "50.0%"]
    assert [line[name] for name in ("state_measured", "sent_measured")] == ["60.0%", "2.78"]
    (verdict,) = verdicts_of(comparison)
    assert "bubbles are 2.00 times" in verdict.headline
    assert "activations is 1.25 times" in verdict.headline
    assert "Exchange shares are 2.50 times" in verdict.headline


def test_only_options_that_change_runs_override_the_published_ones() -> None:
    for options, found in ((["--quick"], 0), (["--nodes 1,2", "--repeat 10"], 1)):
        comparison = a_lab(overrides=options)
        assert len(findings_of(comparison, "published_time")) == found
        assert ("Overridden" in dict(differences(comparison))) is not found
        assert any("accuracy_difference" in line for line in table(comparison)) is bool(found)


def test_what_matches_no_single_configuration_is_not_run() -> None:
    lost = THEIRS[1].model_copy(update={"status": "failed", "cause": "gone"})
    twice = [one_shot(2, 0.3, seed=0), one_shot(2, 0.7, seed=1, runtime="docker")]
    for others in ([lost], twice):
        times = [line["time_s_measured"] for line in table(a_lab([THEIRS[0], *others]))]
        assert times == ["8.00 s", "not run", "not run"]
    ended = [point for point in THEIRS[1].epochs if point.epoch == 1]
    for other in (
        one_shot(2, 0.3, train_s=4.0, runtime="docker"),
        THEIRS[1].model_copy(update={"epochs": ended}),
        a_run("all_reduce", nodes=2, transport="memory", cores=2),  # whose ranks are threads
    ):
        lines = published_lines(a_lab([THEIRS[0], other]))
        assert [line.measured_speedup for line in lines] == [None] * 3
        assert lines[1].mean(lambda row: row.train_s)


# Ablations


def until(reached: bool, **fields: Any) -> RunResult:
    run = a_run(nodes=2, target_accuracy=0.5, **fields)
    return with_epochs(run, lambda at: {"target_reached": reached} if at is run.epochs[-1] else {})


def test_steps_that_lack_a_run_change_nothing_or_do_not_compare_are_no_ablation() -> None:
    ended = until(True, strategy="all_reduce", accuracy=0.7, cores=2)
    elsewhere = one_shot(2, 0.7, strategy="one_shot", runtime="docker")
    for fixed in ([], [THEIRS[1]], [ended], [elsewhere]):
        assert findings_of(a_lab(fixed=fixed), "ablation") == []
    # A time to the target needs all seeds.
    slow = [until(True, strategy="all_reduce", seed=seed) for seed in (0, 1)]
    lucky = [until(not seed, strategy="ddp", seed=seed) for seed in (0, 1)]
    steps = [{"block": "slow"}, {"block": "lucky", "fixes": "our own loop"}]
    ablation = {"measure": "time_to_target_s", "nodes": [2], "steps": steps}
    comparison = in_blocks(ablation=ablation, slow=slow, lucky=lucky)
    assert finding_of(comparison, "ablation_incomplete").data["lacking"] == ["lucky"]


@pytest.mark.parametrize("number", [3, 8])
def test_a_change_without_an_effect_is_a_cause_only_while_seeds_are_few(number: int) -> None:
    spread = [(seed % 3) / 500 for seed in range(number)]
    theirs = [one_shot(2, 0.7 + off, seed=seed) for seed, off in enumerate(spread)]
    fixed = [one_shot(2, 0.7 + off, strategy="one_shot", seed=seed) for seed, off in enumerate(spread)]
    alone = [a_run(accuracy=0.9 + off, cores=2, seed=seed) for seed, off in enumerate(spread)]
    (verdict,) = verdicts_of(a_lab(theirs, fixed, alone=alone))
    causes, rest = verdict.certainty.replace(JOIN, " ").split("; ")
    assert "averaging (+20.0 points)" in causes
    assert ("initial weights (±0.0 points)" in causes) is (number == 3)
    assert ("1 of 2" in rest) is (number == 8)
    assert "undecided" not in rest
