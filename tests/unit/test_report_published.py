"""Published figures beside ours, and what a difference is due to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.report import formats
from orchestrator.report.figures import draw
from orchestrator.report.findings import find
from orchestrator.report.metrics import published
from orchestrator.report.model.comparison import Comparison, compare
from orchestrator.report.render import html, markdown
from orchestrator.report.render.columns import filled
from orchestrator.results.records import RunResult
from orchestrator.sweeps.lab import BlockRecord, Lab
from tests.unit.report_support import ONE_SHOT_ALONE, a_record, a_run

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
                {"block": "mended", "fixes": "{nodes} different beginnings"},
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
MENDED = one_shot(2, 0.7, strategy="one_shot", train_s=4.0)


def a_lab(
    theirs: Sequence[RunResult] = THEIRS, mended: Sequence[RunResult] = (MENDED,), **fields: Any
) -> Comparison:
    results = [ALONE, *theirs, *mended]
    blocks = [
        BlockRecord(name="alone", keys=[ALONE.key]),
        BlockRecord.model_validate(
            {"name": "theirs", "keys": [run.key for run in theirs], "published": FIGURES}
        ),
        BlockRecord(name="mended", keys=[run.key for run in mended]),
    ]
    record = a_record(results, lab=Lab.model_validate(LAB), blocks=blocks, **fields)
    return compare(record, [(result.key, result) for result in results])


def plain(text: str) -> str:
    return text.replace(formats.JOIN, " ")


def table(comparison: Comparison) -> list[list[str]]:
    lines = published.lines(comparison)
    columns = filled(published.COLUMNS, lines)
    return [[plain(column.cell(line).text) for column in columns] for line in lines]


def test_every_published_figure_stands_beside_ours() -> None:
    whole = "91.0% 90.0% −1.0 points – – 469 100"
    assert [" ".join(line) for line in table(a_lab())] == [
        f"theirs 1 node 80.0 s 8.00 s – – – {whole}",
        "theirs 2 nodes 50.0 s 4.00 s 1.60 2.00 2.00 35.0% 30.0% −5.0 points −56.0 points −60.0 points – –",
        "theirs 4 nodes 20.0 s 4.00 s 4.00 2.00 4.00 10.0% 10.0% ±0.0 points – – – –",
    ]


def test_a_form_that_came_to_nothing_is_said_not_to_have_run() -> None:
    lost = [THEIRS[0], THEIRS[1].model_copy(update={"status": "failed", "cause": "gone"})]
    assert [line[3] for line in table(a_lab(lost))] == ["8.00 s", "not run", "not run"]


def test_what_is_due_to_what_is_computed_from_the_rungs() -> None:
    (why,) = [finding for finding in find(a_lab()) if finding.topic == "Why"]
    assert plain(why.text) == (
        "At 2 nodes theirs came to 30.0%, alone to 90.0%: +60.0 points. Of these are due +40.0 points to 2 "
        "different beginnings (strategy.init independent → broadcast) and +20.0 points to averaging "
        "(strategy one_shot → serial, transport mpi → memory, nodes 2 → 1). "
        "Not repeated: each may be chance."
    )
    assert {row.key for row in why.rows} == {THEIRS[1].key, MENDED.key, ALONE.key}


def test_a_ladder_with_a_rung_missing_explains_nothing() -> None:
    assert not [finding for finding in find(a_lab(mended=())) if finding.topic == "Why"]


def test_one_node_tells_the_machine_and_speedups_tell_the_rest() -> None:
    (times,) = [finding for finding in find(a_lab()) if finding.topic == "Published"]
    assert plain(times.text) == (
        "theirs: one node took 8.00 s where 80.0 s were published, 10.0 times as fast: another machine, "
        "and another loop. The speedup of 4 nodes was 4.00 as published and 2.00 here, where they shared "
        "2 cores; by CPU time it was 4.00."
    )


def test_runs_that_were_changed_are_not_held_against_published_times() -> None:
    comparison = a_lab(overrides=["--quick"])
    assert not [finding for finding in find(comparison) if finding.topic == "Published"]
    told = dict(published.differences(comparison))
    assert told["Changed"] == "by --quick: these are not the runs that figures were published of"
    assert not any("−1.0 points" in line for line in table(comparison))


def test_both_pages_have_the_section_and_escape_what_the_file_says() -> None:
    comparison = a_lab()
    findings, plots = find(comparison), draw(comparison)
    page, text = html.render(comparison, findings, plots), markdown.render(comparison, findings, plots)
    assert '<section id="published">' in page
    assert "About &lt;averaging&gt;. Source: a lab sheet." in page
    for written in (page, text):
        assert "an old laptop" in written
        assert "they counted evaluation" in written
        assert "Published and measured" in written


def test_a_sweep_without_published_figures_has_no_such_section() -> None:
    comparison = compare(a_record([ALONE]), [(ALONE.key, ALONE)])
    assert 'id="published"' not in html.render(comparison, find(comparison), draw(comparison))
    assert published.differences(comparison) == []


def test_fewer_nodes_do_not_change_the_others() -> None:
    comparison = a_lab(overrides=["--nodes 1,2"])
    assert [finding for finding in find(comparison) if finding.topic == "Published"]
    assert "Changed" not in dict(published.differences(comparison))


def test_runs_that_ended_at_a_target_explain_no_accuracy() -> None:
    ended = MENDED.epochs[-1].model_copy(update={"target_reached": True})
    reached = one_shot(2, 0.7, strategy="all_reduce", target_accuracy=0.5)
    reached = reached.model_copy(update={"epochs": [*reached.epochs[:-1], ended]})
    assert not [finding for finding in find(a_lab(mended=[reached])) if finding.topic == "Why"]


def test_a_lab_without_figures_still_names_its_source() -> None:
    record = a_record([ALONE], lab=Lab.model_validate({**LAB, "ablations": []}))
    comparison = compare(record, [(ALONE.key, ALONE)])
    page = html.render(comparison, find(comparison), draw(comparison))
    assert "The published experiment</h2>" in page
    assert "Source: a lab sheet." in page
    assert "- Source: a lab sheet" in markdown.render(comparison, find(comparison), draw(comparison))


def test_a_rung_says_which_runs_of_its_block_it_means() -> None:
    slow = [
        a_run(name, nodes=2, cpus=1.0, bottleneck_cpus=0.5, train_s=9.0) for name in ("all_reduce", "ddp")
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
    (why,) = [
        finding
        for finding in find(compare(record, [(run.key, run) for run in [*slow, *alike]]))
        if finding.topic == "Why"
    ]
    assert plain(why.text).startswith(
        "At 2 nodes slow (ddp) came to 9.00 s, alike (ddp) to 4.00 s: −5.00 s. Of these are due −5.00 s to "
        "half a core (bottleneck_cpus 0.5 → null)."
    )


def test_a_rung_that_changes_nothing_explains_nothing() -> None:
    """As when an option makes two steps the same run."""
    same = BlockRecord(name="mended", keys=[THEIRS[1].key])
    record = a_lab().record
    blocks = [block if block.name != "mended" else same for block in record.blocks]
    comparison = compare(
        record.model_copy(update={"blocks": blocks}), [(run.key, run) for run in (ALONE, *THEIRS)]
    )
    assert not [finding for finding in find(comparison) if finding.topic == "Why"]


def test_runs_of_two_places_are_not_set_side_by_side() -> None:
    elsewhere = one_shot(2, 0.3, train_s=4.0, runtime="docker")
    comparison = a_lab([THEIRS[0], elsewhere])
    assert [line.measured_speedup for line in published.lines(comparison)] == [None, None, None]
    assert not [finding for finding in find(comparison) if finding.topic == "Why"]


def test_a_cell_of_two_places_is_none() -> None:
    seeds = [one_shot(2, 0.3, seed=0), one_shot(2, 0.7, seed=1, runtime="docker")]
    assert [line[3] for line in table(a_lab([THEIRS[0], *seeds]))] == ["8.00 s", "not run", "not run"]


def test_a_time_to_the_target_is_of_all_seeds_or_of_none() -> None:
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
    (why,) = [finding for finding in find(comparison) if finding.topic == "Why"]
    assert plain(why.text) == "At 2 nodes there is no time_to_target_s of lucky to compare."
