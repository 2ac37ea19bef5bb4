"""Mistakes in options of commands: units, limits, speeds of nodes; and what `course grade` writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from orchestrator.commands import course
from orchestrator.commands.options import GradeOptions
from orchestrator.commands.plan import asked, parse_memory, total
from orchestrator.commands.predict import asked as predicted
from orchestrator.commands.predict import parse_nodes, parse_price, question_of
from orchestrator.commands.replay import Options, parse_speeds
from orchestrator.commands.sweep import text_console
from orchestrator.course.grading import Grade, Grader
from orchestrator.course.table import gradebook
from orchestrator.errors import InputError
from orchestrator.layouts.hardware import parse_link
from orchestrator.layouts.trials import Network
from orchestrator.prediction.forecast import Question
from orchestrator.report.directory_comparison.limits import Limits
from orchestrator.runtimes import RUNTIMES
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Link
from trainer.time_model.described import cluster_of_run


def test_values_are_read_in_their_units() -> None:
    assert parse_nodes("64, 8,8") == (8, 64)
    assert (parse_price("2.50/h"), parse_price(None)) == (2.5, None)
    assert (parse_memory("4gb"), parse_memory("1.5 GiB")) == (4e9, 1.5 * 2**30)
    question = question_of(predicted("8", "8bit/2s", 0.5, "3/h"))
    assert question == Question([8], Link(bytes_per_s=1, latency_s=2), 0.5, 3.0, None, ())
    assert parse_link("100mbit/50us") == Link(bytes_per_s=12.5e6, latency_s=50 * 1e-6)
    assert parse_speeds("1, 0.5") == (1, 0.5)
    assert Limits.parse("slower=10%,accuracy=1pt") == Limits(slower=0.1, accuracy=0.01)


# Replays


def run(**fields: object) -> RunSpec:
    return RunSpec.model_validate({"strategy": "ddp", "nodes": 3, "processes_per_node": 2, **fields})


def test_nodes_have_the_speeds_of_the_run_unless_others_are_given() -> None:
    for own, given, speeds in (
        ({0: 0.5}, (), [0.5, 1, 1]),
        ({-1: 0.25}, (), [1, 1, 0.25]),
        ({0: 0.5}, (1, 0.1, 2, 3), [1, 0.1, 2]),
        ({0: 0.5}, (1,), [1, 1, 1]),
    ):
        spec = run(node_speed=own)
        cluster = Options(parse_link("100mbit/1ms"), given).cluster(cluster_of_run(spec), spec)
        assert [cluster.speed_of(rank) for rank in range(6)] == [speeds[rank // 2] for rank in range(6)]


def test_too_few_speeds_are_an_error_and_no_link_is_faster_than_the_run_s() -> None:
    own, fast = cluster_of_run(run()), parse_link("9000gbit/1ms")
    with pytest.raises(InputError, match=r"--node-speed 1,0\.5: 2 speeds, and .* has 3 nodes"):
        Options(fast, (1, 0.5)).cluster(own, run())
    assert Options(fast).cluster(own, run()).link == Link(latency_s=1e-3, bytes_per_s=own.link.bytes_per_s)


# Plans

PLAN = {"model": "gpt", "nodes": 4, "memory": None, "link": "10gbit/50us", "cluster": None}
PLAN |= {"dataset": None, "batch_size": 16, "sets": (), "transport": "gloo"}


def test_the_serial_run_has_a_few_steps_of_the_batch() -> None:
    found = asked(**PLAN | {"sets": ["optimizer=adamw"]}).serial  # type: ignore[arg-type]
    assert (found.dataset.train_samples, found.batch_size, found.name_of("optimizer")) == (16, 16, "adamw")
    assert asked(**PLAN).network == Network(parse_link("10gbit/50us"), None)  # type: ignore[arg-type]
    other = asked(**PLAN | {"model": "lenet5", "link": "none"})  # type: ignore[arg-type]
    assert (other.serial.name_of("dataset"), other.network.link) == ("synthetic", None)


def test_a_plan_counts_updates_and_weighs_its_batch_by_the_noise_scale() -> None:
    found = asked(**PLAN | {"samples": 100, "epochs": 3, "noise_scale": 32.0})  # type: ignore[arg-type]
    assert (found.updates, found.samples_factor) == (7, 1.5)  # the last update of an epoch has 4 samples
    text = total(found, step_s=3600.0)
    assert "300 samples are 21 updates, 7 in each epoch: 21 h" in text
    assert "1.50 times the samples" in text
    assert total(asked(**PLAN), 1.0) == ""  # type: ignore[arg-type]
    assert asked(**PLAN | {"samples": 16}).updates == 1  # type: ignore[arg-type]
    for wrong, reason in (
        ({"samples": 15}, "--batch-size 16: an epoch of 15 samples"),
        ({"epochs": 2}, "--epochs 2: needs --samples"),
        ({"noise_scale": 0.0}, "--noise-scale 0"),
        ({"noise_scale": float("nan")}, "--noise-scale nan"),
        ({"noise_scale": float("inf")}, "--noise-scale inf"),
    ):
        with pytest.raises(InputError, match=reason):
            asked(**PLAN | wrong)  # type: ignore[arg-type]


# Grades


def a_grade(name: str, points: int = 2, error: str | None = None) -> Grade:
    return Grade(submission=name, points=points, possible=2, error=error, scores=[])


def test_what_is_not_graded_and_own_lost_points_are_failures_and_all_are_written_in_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def grade_all(grader: object, given: dict[str, Path], jobs: int) -> Iterator[Grade]:
        assert (jobs, given) == (3, submissions)
        yield from reversed(grades)

    submissions, file = {name: tmp_path / name for name in "ab"}, tmp_path / "grades.csv"
    for path in submissions.values():
        path.mkdir()
    monkeypatch.setattr(course, "load_checks", list)
    monkeypatch.setattr(RUNTIMES.load("local"), "clean", lambda self: 0)
    monkeypatch.setattr(Grader, "grade_all", grade_all)
    options = GradeOptions("local", 3, as_json=True, csv_file=file)
    grade = partial(course.grade, [*submissions.values()], [], options, text_console())
    for grades, own, code in (
        ([a_grade("a"), a_grade("b", 1)], False, 0),
        ([a_grade("a"), a_grade("b")], True, 0),
        ([a_grade("a"), a_grade("b", 1)], True, 1),
        ([a_grade("a", error="it is a link"), a_grade("b")], False, 1),
    ):
        assert grade(own=own) == code
        assert json.loads(capsys.readouterr().out)["submissions"] == [each.model_dump() for each in grades]
        assert file.read_text() == gradebook(grades)
