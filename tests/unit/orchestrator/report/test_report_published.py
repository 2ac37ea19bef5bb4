"""Published results beside our measurements, and ablations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.report.formats import JOIN
from orchestrator.report.metrics.published import differences, published_lines
from orchestrator.report.model.comparison import Comparison, compare
from orchestrator.report.plots import draw
from orchestrator.report.render.columns import PUBLISHED
from orchestrator.report.topics import find
from orchestrator.results.records import RunResult
from orchestrator.sweeps.lab import BlockRecord, Lab
from tests.unit.report_support import (
    ONE_SHOT_ALONE,
    a_pipeline,
    a_record,
    a_run,
    cells,
    finding_of,
    findings_of,
    in_parts,
    page_of,
    text_of,
    verdicts_of,
)

LAB = {
    "title": "About <averaging>",
    "source": "a lab sheet",
    "hardware": "an old laptop",
    "differs": ["they counted evaluation"],
    "ablations": [
        {
            "measure": "accuracy",
            "nodes": [2, 4],
            "steps": [
                {"block": "theirs"},
                {"block": "fixed", "fixes": "{nodes} different initial weights"},
                {"block": "alone", "runs": {"nodes": 1}, "fixes": "averaging"},
            ],
        }
    ],
}
FIGURES = [
    {"runs": {"nodes": 1}, "time_s": 80.0, "accuracy": 0.91, "steps_per_epoch": 469},
    {"runs": {"nodes": 2}, "time_s": 50.0, "accuracy": 0.35, "accuracy_change": -0.56},
    {"runs": {"nodes": 4}, "time_s": 20.0, "accuracy": 0.10},
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


def a_lab(
    theirs: Sequence[RunResult] = THEIRS, fixed: Sequence[RunResult] = (FIXED,), **fields: Any
) -> Comparison:
    results = [ALONE, *theirs, *fixed]
    blocks = [
        BlockRecord(name="alone", keys=[ALONE.key]),
        BlockRecord.model_validate(
            {"name": "theirs", "keys": [run.key for run in theirs], "published": FIGURES}
        ),
        BlockRecord(name="fixed", keys=[run.key for run in fixed]),
    ]
    record = a_record(results, lab=Lab.model_validate(LAB), blocks=blocks, **fields)
    return compare(record, [(result.key, result) for result in results])


def table(comparison: Comparison) -> list[dict[str, str]]:
    return cells(PUBLISHED, published_lines(comparison))


def test_published_and_measured_numbers_are_side_by_side() -> None:
    one, two, four = table(a_lab())
    assert one == {
        "block": "theirs",
        "runs": "1 node",
        "time_s_published": "80.0 s",
        "time_s_measured": "8.00 s",
        "speedup_published": "–",
        "speedup_measured": "–",
        "cpu_time_speedup": "–",
        "accuracy_published": "91.0%",
        "accuracy_measured": "90.0%",
        "accuracy_difference": "−1.0 points",
        "accuracy_change_published": "–",
        "accuracy_change_measured": "–",
        "steps_per_epoch_published": "469",
        "steps_per_epoch_measured": "100",
    }
    assert (two["accuracy_change_published"], two["accuracy_change_measured"]) == (
        "−56.0 points",
        "−60.0 points",
    )
    speedups = ("speedup_published", "speedup_measured", "cpu_time_speedup")
    assert [two[key] for key in speedups] == ["1.60", "2.00", "2.00"]
    assert [four[key] for key in speedups] == ["4.00", "2.00", "4.00"]


def test_published_staleness_is_beside_the_mean_over_gradients() -> None:
    run = a_run("async_parameter_server", nodes=3, staleness=[(1.0, 2), (2.0, 3)], link={"latency_ms": 5})
    entry = {"runs": {"nodes": 3, "link": {"latency_ms": 5}}, "staleness": 1}
    block = BlockRecord.model_validate({"name": "theirs", "keys": [run.key], "published": [entry]})
    record = a_record([run], lab=Lab.model_validate({**LAB, "ablations": []}), blocks=[block])
    (line,) = table(compare(record, [(run.key, run)]))
    assert (line["staleness_published"], line["staleness_measured"]) == ("1.00", "1.50")
    assert line["runs"] == "3 nodes, link {latency_ms: 5}"


def test_derived_figure_is_marked() -> None:
    entry = {"runs": {"nodes": 1}, "accuracy": 0.9, "coverage": 0.5, "derived": ["coverage"]}
    block = BlockRecord.model_validate({"name": "theirs", "keys": [ALONE.key], "published": [entry]})
    record = a_record([ALONE], lab=Lab.model_validate({**LAB, "ablations": []}), blocks=[block])
    (line,) = published_lines(compare(record, [(ALONE.key, ALONE)]))
    cell = {column.key: column.cell(line) for column in PUBLISHED}
    assert cell["coverage_published"].detail == "derived"
    assert cell["accuracy_published"].detail == ""


def test_difference_has_the_values_of_the_reports_runs() -> None:
    record = a_lab().record
    lab = Lab.model_validate({**LAB, "differs": ["{epochs} epochs"], "ablations": []})
    comparison = compare(record.model_copy(update={"lab": lab}), [(ALONE.key, ALONE)])
    assert dict(differences(comparison))["Difference"] == f"{ALONE.run.epochs} epochs"


def test_a_block_without_ok_runs_is_not_run() -> None:
    lost = [THEIRS[0], THEIRS[1].model_copy(update={"status": "failed", "cause": "gone"})]
    assert [line["time_s_measured"] for line in table(a_lab(lost))] == ["8.00 s", "not run", "not run"]


def test_an_ablation_has_the_difference_of_each_step() -> None:
    finding = finding_of(a_lab(), "ablation")
    compared = finding.data["compared"]
    assert [each["values"] for each in compared] == [
        pytest.approx(values) for values in ([0.7, 0.3], [0.9, 0.7], [0.9, 0.3])
    ]
    assert {each["decision"] for each in compared} == {"too_few_seeds"}
    assert {name: finding.data[name] for name in ("nodes", "measure", "first", "last")} == {
        "nodes": 2,
        "measure": "accuracy",
        "first": 0.3,
        "last": 0.9,
    }
    assert [name.replace(JOIN, " ") for name in finding.data["names"]] == [
        "one_shot init=independent over mpi on 2 nodes",
        "serial",
    ]
    assert all(name in finding.text for name in (*finding.data["names"], "accuracy"))
    assert finding.data["steps"] == [
        {
            "fixes": "2 different initial weights",
            "changes": ["strategy.init independent → broadcast"],
            "decision": "too_few_seeds",
        },
        {
            "fixes": "averaging",
            "changes": ["strategy one_shot → serial", "transport mpi → memory", "nodes 2 → 1"],
            "decision": "too_few_seeds",
        },
    ]
    assert {row.key for row in finding.rows} == {THEIRS[1].key, FIXED.key, ALONE.key}


def test_incomplete_ablation_is_not_a_finding() -> None:
    assert findings_of(a_lab(fixed=()), "ablation") == []


def test_published_times_are_compared_by_one_node_and_by_speedup() -> None:
    assert finding_of(a_lab(), "published_time").data == {
        "block": "theirs",
        "train_s": pytest.approx(8.0),
        "published_s": 80.0,
        "speedup_of": {"nodes": 4},
        "speedup": pytest.approx(2.0),
        "published_speedup": 4.0,
        "cpu_time_speedup": pytest.approx(4.0),
    }


def test_overridden_runs_are_not_compared_with_published_times() -> None:
    comparison = a_lab(overrides=["--quick"])
    assert findings_of(comparison, "published_time") == []
    assert "--quick" in dict(differences(comparison))["Overridden"]
    assert not any("accuracy_difference" in line for line in table(comparison))


def test_both_pages_escape_lab_metadata() -> None:
    comparison = a_lab()
    findings, plots = find(comparison), draw(comparison)
    page, text = page_of(comparison, findings, plots), text_of(comparison, findings, plots)
    assert '<section id="published">' in page
    assert "About &lt;averaging&gt;" in page
    for fact in ("an old laptop", "they counted evaluation"):
        assert fact in page
        assert fact in text


def test_a_sweep_without_published_results_has_no_such_section() -> None:
    comparison = compare(a_record([ALONE]), [(ALONE.key, ALONE)])
    assert 'id="published"' not in page_of(comparison, find(comparison))
    assert differences(comparison) == []


@pytest.mark.parametrize("option", ["--nodes 1,2", "--repeat 10"])
def test_other_numbers_of_runs_do_not_override_the_published_ones(option: str) -> None:
    comparison = a_lab(overrides=[option])
    assert len(findings_of(comparison, "published_time")) == 1
    assert "Overridden" not in dict(differences(comparison))


def test_runs_that_stopped_at_a_target_have_no_accuracy_ablation() -> None:
    ended = FIXED.epochs[-1].model_copy(update={"target_reached": True})
    reached = one_shot(2, 0.7, strategy="all_reduce", target_accuracy=0.5)
    reached = reached.model_copy(update={"epochs": [*reached.epochs[:-1], ended]})
    assert findings_of(a_lab(fixed=[reached]), "ablation") == []


def test_a_lab_without_published_results_still_names_its_source() -> None:
    record = a_record([ALONE], lab=Lab.model_validate({**LAB, "ablations": []}))
    comparison = compare(record, [(ALONE.key, ALONE)])
    assert "a lab sheet" in page_of(comparison, find(comparison))
    assert "a lab sheet" in text_of(comparison, find(comparison))


def test_an_ablation_step_selects_runs_of_its_block() -> None:
    slow = [
        a_run(name, nodes=2, cpus=1.0, node_speed=[1, 0.5], train_s=9.0) for name in ("all_reduce", "ddp")
    ]
    alike = [a_run(name, nodes=2, cpus=1.0, train_s=4.0) for name in ("all_reduce", "ddp")]
    steps = [
        {"block": "slow", "runs": {"strategy": "ddp"}},
        {"block": "alike", "runs": {"strategy": "ddp"}, "fixes": "half a core"},
    ]
    lab = {**LAB, "ablations": [{"measure": "train_s", "nodes": [2], "steps": steps}]}
    blocks = [
        BlockRecord(name="slow", keys=[run.key for run in slow]),
        BlockRecord(name="alike", keys=[run.key for run in alike]),
    ]
    record = a_record([*slow, *alike], lab=Lab.model_validate(lab), blocks=blocks)
    comparison = compare(record, [(run.key, run) for run in [*slow, *alike]])
    data = finding_of(comparison, "ablation").data
    assert (data["first"], data["last"]) == (pytest.approx(9.0), pytest.approx(4.0))
    (step,) = data["steps"]
    assert (step["fixes"], step["changes"]) == ("half a core", ["node_speed [1.0, 0.5] → null"])


def test_step_without_a_change_is_not_an_ablation() -> None:
    """An option may make two steps the same run."""
    same = BlockRecord(name="fixed", keys=[THEIRS[1].key])
    record = a_lab().record
    blocks = [block if block.name != "fixed" else same for block in record.blocks]
    comparison = compare(
        record.model_copy(update={"blocks": blocks}), [(run.key, run) for run in (ALONE, *THEIRS)]
    )
    assert findings_of(comparison, "ablation") == []


def test_runs_of_two_locations_are_not_compared() -> None:
    elsewhere = one_shot(2, 0.3, train_s=4.0, runtime="docker")
    comparison = a_lab([THEIRS[0], elsewhere])
    assert [line.measured_speedup for line in published_lines(comparison)] == [None, None, None]
    assert findings_of(comparison, "ablation") == []


def test_a_configuration_in_two_locations_is_not_matched() -> None:
    seeds = [one_shot(2, 0.3, seed=0), one_shot(2, 0.7, seed=1, runtime="docker")]
    assert [line["time_s_measured"] for line in table(a_lab([THEIRS[0], *seeds]))] == [
        "8.00 s",
        "not run",
        "not run",
    ]


def test_a_time_to_target_needs_all_seeds() -> None:
    def until(accuracy: float, seed: int, reached: bool, **fields: Any) -> RunResult:
        run = a_run(seed=seed, target_accuracy=0.5, accuracy=accuracy, **fields)
        last = run.epochs[-1].model_copy(update={"target_reached": reached})
        return run.model_copy(update={"epochs": [*run.epochs[:-1], last]})

    slow = [until(0.6, seed, True, nodes=2, strategy="all_reduce", train_s=10.0) for seed in (0, 1)]
    lucky = [until(0.6, seed, not seed, nodes=2, strategy="ddp", train_s=4.0) for seed in (0, 1)]
    steps = [{"block": "slow"}, {"block": "lucky", "fixes": "our own loop"}]
    lab = {**LAB, "ablations": [{"measure": "time_to_target_s", "nodes": [2], "steps": steps}]}
    blocks = [
        BlockRecord(name=name, keys=[run.key for run in runs])
        for name, runs in (("slow", slow), ("lucky", lucky))
    ]
    record = a_record([*slow, *lucky], lab=Lab.model_validate(lab), blocks=blocks)
    comparison = compare(record, [(run.key, run) for run in [*slow, *lucky]])
    data = finding_of(comparison, "ablation_incomplete").data
    assert (data["measure"], data["lacking"]) == ("time_to_target_s", ["lucky"])


def _verdict_on(seeds: int) -> str:
    """The sentence on the causes, if only averaging matters."""
    spread = [(seed % 3) / 500 for seed in range(seeds)]
    theirs = [one_shot(2, 0.7 + off, seed=seed) for seed, off in enumerate(spread)]
    fixed = [one_shot(2, 0.7 + off, strategy="one_shot", seed=seed) for seed, off in enumerate(spread)]
    alone = [a_run(accuracy=0.9 + off, cores=2, seed=seed) for seed, off in enumerate(spread)]
    blocks = [
        BlockRecord(name=name, keys=[run.key for run in runs])
        for name, runs in (("theirs", theirs), ("fixed", fixed), ("alone", alone))
    ]
    results = [*theirs, *fixed, *alone]
    record = a_record(results, lab=Lab.model_validate(LAB), blocks=blocks)
    comparison = compare(record, [(result.key, result) for result in results])
    (verdict,) = verdicts_of(comparison)
    return verdict.certainty.replace("\xa0", " ")


def test_a_change_without_an_effect_is_no_open_question() -> None:
    causes, *rest = _verdict_on(seeds=8).split("; ")
    assert "averaging (+20.0 points)" in causes
    assert "initial weights" not in causes
    assert len(rest) == 1
    assert "1 of 2" in rest[0]
    assert "undecided" not in rest[0]


def test_with_few_seeds_no_change_is_said_to_have_no_effect() -> None:
    (measured, claimed) = _verdict_on(seeds=3).split("; ")
    assert "initial weights (±0.0 points) and averaging (+20.0 points)" in measured
    assert "no effect" not in claimed


def test_rounds_to_the_target_are_beside_the_published_ones() -> None:
    participation = {"fraction": 0.5}
    runs = [
        a_run(
            {"name": "local_sgd", "local_steps": steps, "participation": participation},
            nodes=2,
            steps=200,
            epochs=4,
            target_accuracy=0.5,
            patience=2,
        )
        for steps in (40, 100)
    ]
    # The third of four epochs was the first of two in a row: 150 of 200 steps.
    reached = [
        run.model_copy(
            update={
                "epochs": [
                    point.model_copy(update={"epoch": epoch, "target_reached": epoch == 4})
                    for point in run.epochs
                    if point.epoch == 1
                    for epoch in range(1, 5)
                ]
            }
        )
        for run in runs
    ]
    published = [
        {"runs": {"strategy.local_steps": 40}, "rounds_to_target": 8},
        {"runs": {"strategy.local_steps": 100}, "rounds_to_target": 1},
    ]
    block = BlockRecord.model_validate(
        {"name": "theirs", "keys": [run.key for run in runs], "published": published}
    )
    record = a_record(reached, lab=Lab.model_validate({**LAB, "ablations": []}), blocks=[block])
    comparison = compare(record, [(run.key, run) for run in reached])
    assert [line["rounds_to_target_measured"] for line in table(comparison)] == ["4", "2"]
    (verdict,) = verdicts_of(comparison)
    assert "0.50" in verdict.headline
    assert "2.00" in verdict.headline


def test_bubble_and_activations_of_serial_are_beside_the_published_ones() -> None:
    serial, run = in_parts(a_run(), [1000], activations=[8000]), a_pipeline()  # 4 of 8 s, 5000 bytes
    entry = {"runs": {"nodes": 2}, "bubble": 0.25, "activations": 0.5}
    block = BlockRecord.model_validate({"name": "theirs", "keys": [run.key], "published": [entry]})
    record = a_record([serial, run], lab=Lab.model_validate({**LAB, "ablations": []}), blocks=[block])
    comparison = compare(record, [(each.key, each) for each in (serial, run)])
    (line,) = table(comparison)
    assert (line["bubble_published"], line["bubble_measured"]) == ("25.0%", "50.0%")
    assert (line["activations_published"], line["activations_measured"]) == ("50.0%", "62.5%")
    (verdict,) = verdicts_of(comparison)
    assert "bubbles are 2.00 times" in verdict.headline
    assert "activations is 1.25 times" in verdict.headline
