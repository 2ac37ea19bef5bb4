"""Mistakes of `course`: the shipped assignments, hostile local submissions, the page's commands."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.course.assignments import names, write
from orchestrator.errors import InputError
from orchestrator.sweeps.load import load_sweep
from tests.support.command_line import end, orchestrator, refused, run, run_ok, start
from tests.support.hostile_submissions import QUICK, RIGHT, answer, write_submissions
from tests.support.nightly import nightly
from tests.support.pages import blocks
from tests.support.processes import wait_until

# The checks that each wrong solution fails, by title.
WRONG = {
    "data_and_replicas": {
        "averages_gradients": {"every H steps", "weights", "unequal parts"},
        "chunk_off_by_one": {"any length"},
        "counts_by_epoch": {"every H steps", "unequal parts"},
        "deadlock": {"mean", "any length", "bytes", "neighbours", "from messages"},
        "gather_on_rank_0": {"bytes", "neighbours", "from messages"},
        "global_random_state": {"given generator"},
        "no_last_average": {"every H steps", "last average"},
        "overlap": {"no overlap", "full cover"},
        "remainder_dropped": {"full cover"},
        "sum_instead_of_mean": {"mean", "any length"},
    },
    "one_model": {
        "bias_on_every_rank": {"forward"},
        "gathers_hidden_units": {"bytes"},
        "last_micro_batch": {"gradient", "unequal micro-batches"},
        "no_sum_in_backward": {"input gradient", "bytes"},
        "not_scaled": {"gradient", "unequal micro-batches"},
        "one_by_one": {"order", "bubble"},
        "remainder_dropped": {"shards"},
        "scaled_by_count": {"unequal micro-batches"},
    },
    "transformer": {
        "beta_not_summed": {"all tokens"},
        "counts_padding": {"unequal tokens"},
        "equal_parts": {"unequal parts"},
        "no_largest": {"large scores"},
        "no_rescaling": {"outputs", "unequal parts", "large scores"},
        "rounded_up": {"positions"},
        "split_only": {"norm of the model"},
        "sum_moved": {"sums over ranks"},
        "to_all_ranks": {"messages"},
        "wrong_way_home": {"keys and values"},
    },
}
ASSIGNMENTS = ["transformer", *nightly(*sorted({*names()} - {"transformer"}))]


def graded(*arguments: str | Path) -> dict[str, dict[str, Any]]:
    """Grade as local processes. Returns the grades by submission."""
    done = run_ok("course", "grade", *arguments, "--runtime", "local", "--json")
    return {each["submission"]: each for each in json.loads(done.stdout)["submissions"]}


def failed(grade: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Why checks failed, by title."""
    return {score["title"]: score["failure"] for score in grade["scores"] if score["failure"]}


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_the_reference_has_full_marks_and_each_wrong_solution_fails_for_its_reason(
    assignment: str, tmp_path: Path
) -> None:
    write(tmp_path, assignment, solutions=True)
    solutions = tmp_path / "solutions"
    wrong = sorted((solutions / "wrong").iterdir())
    grades = graded(solutions / "reference", *wrong, "--tests", tmp_path / "hidden")
    reference = grades.pop("reference")
    assert (reference["points"], failed(reference)) == (reference["possible"], {})
    assert {name: {*failed(grade)} for name, grade in grades.items()} == WRONG[assignment]
    for name, grade in grades.items():
        lost = sum(score["possible"] for score in grade["scores"] if score["failure"])
        assert grade["points"] == grade["possible"] - lost, name
        assert all(failure["case"] and failure["problem"] for failure in failed(grade).values())


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_the_sweep_of_a_handout_takes_the_components_that_students_write(
    assignment: str, tmp_path: Path
) -> None:
    write(tmp_path, assignment, solutions=True)
    if "./" in (tmp_path / "sweep.yml").read_text():
        with pytest.raises(InputError, match=r"\.py:\d+: NotImplementedError"):
            load_sweep(tmp_path / "sweep.yml")
    shutil.copytree(tmp_path / "solutions" / "reference", tmp_path, dirs_exist_ok=True)
    assert len(load_sweep(tmp_path / "sweep.yml").runs) == 12


def test_a_deadlock_names_what_each_rank_waits_for(tmp_path: Path) -> None:
    write(tmp_path, "data_and_replicas", solutions=True)
    wrong = tmp_path / "solutions" / "wrong" / "deadlock"
    grade = graded(wrong, "--tests", tmp_path / "hidden" / "check_all_reduce.py")["deadlock"]
    found = failed(grade)["mean"]
    assert found["case"] == "size=2, n=2"
    assert re.findall(r"rank (\d) waits for a message from rank (\d)", found["problem"]) == [
        ("0", "1"),
        ("1", "0"),
    ]


def test_hostile_submissions_get_no_points_and_leave_nothing(tmp_path: Path) -> None:
    submissions = write_submissions(tmp_path, {"right": RIGHT, **QUICK})
    grades = graded(*submissions, "--tests", tmp_path / "checks.py", "--jobs", "4")
    points = {name: grade["points"] for name, grade in grades.items()}
    assert points == {"right": 4, **dict.fromkeys(QUICK, 0)}
    problems = {name: failed(grade).get("twice", {}).get("problem", "") for name, grade in grades.items()}
    assert "exit code 0" in problems["exits"]
    assert "within 5 s" in problems["hangs"]
    assert "16 MiB" in problems["too_long"]
    assert "answer.py:1: SyntaxError" in problems["no_python"]
    assert len(problems["raises"]) < 1000
    assert problems["raises"].isprintable()
    assert with_words(str(tmp_path), psutil.process_iter()) == []


def with_words(words: str, processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those whose command has the words."""
    return [each for each in processes if words in " ".join(each.as_dict(["cmdline"])["cmdline"] or [])]


def test_limits_of_memory_apply_to_local_processes(tmp_path: Path) -> None:
    (submission,) = write_submissions(tmp_path, {"large": answer("return bytearray(2 * 10**9)")})
    grade = graded(submission, "--tests", tmp_path / "checks.py")["large"]
    assert "MemoryError" in failed(grade)["twice"]["problem"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_grader_that_ends(number: signal.Signals, tmp_path: Path) -> None:
    (submission,) = write_submissions(tmp_path, {"sleeps": answer("import time", "time.sleep(600)")})
    checks = tmp_path / "checks.py"
    checks.write_text(checks.read_text().replace("seconds=5", "seconds=600"))
    grader = start(orchestrator("course", "grade", submission, "--tests", checks, "--runtime", "local"))
    try:
        grading = psutil.Process(grader.pid)
        (worker,) = wait_until(lambda: with_words("trainer.course", grading.children()), timeout_s=60)
        time.sleep(1)  # the call is in progress
        end(grader, number, 30)
        wait_until(lambda: not worker.is_running(), timeout_s=30)
    finally:
        grader.kill()


def test_what_a_student_prints_is_shown(tmp_path: Path) -> None:
    source = answer("print('values are', values)", "return values")
    (submission,) = write_submissions(tmp_path, {"prints": source})
    done = run_ok("course", "test", submission, "--tests", tmp_path / "checks.py", code=1)  # a test fails
    assert "values are [1.0]" in done.stderr


def test_without_an_engine_the_default_runtime_is_refused(tmp_path: Path) -> None:
    (submission,) = write_submissions(tmp_path, {"right": RIGHT})
    engine = {"DOCKER_HOST": f"unix://{tmp_path}/none"}
    said = refused("course", "grade", submission, "--tests", tmp_path / "checks.py", **engine)
    assert "--runtime docker" in said
    assert "--runtime local" in said


@pytest.mark.nightly
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    answers, checks = blocks("docs/teaching.md", "python")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "total.py").write_text(answers)
    (tmp_path / "checks.py").write_text(checks)
    # As an installed command, with grading as local processes.
    command = tmp_path / "bin" / "shardyard"
    command.parent.mkdir()
    local = 'case "$2" in grade) set -- "$@" --runtime local;; esac'
    command.write_text(f'#!/bin/sh\n{local}\nexec {shlex.quote(sys.executable)} -m orchestrator "$@"\n')
    command.chmod(0o755)
    lines = [line for block in blocks("docs/teaching.md", "") for line in block.splitlines()]
    assert all(line.startswith("shardyard course ") for line in lines)
    path, outputs = f"{command.parent}{os.pathsep}{os.environ['PATH']}", {}
    for line in lines:
        done = run(line, tmp_path, PATH=path, COLUMNS="80")
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        outputs[line] = done.stdout
    assert "3/3" in outputs["shardyard course grade mine --tests checks.py --runtime docker"]
    wrong = WRONG["data_and_replicas"]
    assert len(json.loads((tmp_path / "grades.json").read_text())["submissions"]) == len(wrong)
    with (tmp_path / "grades.csv").open(newline="") as book:
        assert {line["submission"] for line in csv.DictReader(book)} == {*wrong}
    (table,) = (text for line, text in outputs.items() if "reference teacher/solutions/wrong/*" in line)
    (shown,) = blocks("docs/teaching.md", "text")
    printed = {" ".join(line.split()) for line in table.splitlines()}
    assert {" ".join(line.split()) for line in shown.splitlines()} <= printed
