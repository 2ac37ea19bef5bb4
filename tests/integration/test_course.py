"""`course`: the shipped assignments, hostile submissions as local processes, and the page's commands."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.course.assignments import KITS, names, write
from orchestrator.errors import InputError
from orchestrator.sweeps.load import load_sweep
from tests.support.command_line import PROJECT, environment, heed_signals, orchestrator, run_cli
from tests.support.hostile_submissions import QUICK, RIGHT, write_submissions
from tests.support.nightly import nightly
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
ASSIGNMENTS = ["transformer", *nightly(*({*names()} - {"transformer"}))]


def graded(*arguments: str | Path, timeout_s: float = 200) -> dict[str, dict[str, Any]]:
    """Grade as local processes. Returns the grades by submission."""
    done = run_cli("course", "grade", *arguments, "--runtime", "local", "--json", timeout_s=timeout_s)
    assert done.returncode == 0, done.stderr
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
    handed_out = KITS / assignment / "handout"
    grades = graded(solutions / "reference", handed_out, *wrong, "--tests", tmp_path / "hidden")
    reference, unchanged = grades.pop("reference"), grades.pop("handout")
    assert (reference["points"], failed(reference)) == (reference["possible"], {})
    assert unchanged["points"] == 0
    assert {name: {*failed(grade)} for name, grade in grades.items()} == WRONG[assignment]
    for name, grade in grades.items():
        lost = sum(score["possible"] for score in grade["scores"] if score["failure"])
        assert grade["points"] == grade["possible"] - lost, name
        assert all(failure["case"] and failure["problem"] for failure in failed(grade).values())


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_public_tests_pass_the_reference_and_what_students_repair_but_no_skeleton(assignment: str) -> None:
    directory = KITS / assignment
    grades = graded(
        directory / "handout",
        directory / "solutions" / "reference",
        "--tests",
        directory / "handout" / "tests",
    )
    skeletons = {
        path.name
        for path in (directory / "handout").glob("*.py")
        if "NotImplementedError" in path.read_text()
    }
    handout = grades["handout"]
    assert skeletons
    assert all((score["file"] in skeletons) == bool(score["failure"]) for score in handout["scores"])
    assert all("NotImplementedError" in each["problem"] for each in failed(handout).values())
    assert grades["reference"]["points"] == grades["reference"]["possible"]


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_the_sweep_of_a_handout_takes_the_components_that_students_write(
    assignment: str, tmp_path: Path
) -> None:
    handout, reference = KITS / assignment / "handout", KITS / assignment / "solutions" / "reference"
    shutil.copytree(handout, tmp_path, dirs_exist_ok=True)
    if "./" in (handout / "sweep.yml").read_text():
        with pytest.raises(InputError, match=r"\.py:\d+: NotImplementedError"):
            load_sweep(tmp_path / "sweep.yml")
    shutil.copytree(reference, tmp_path, dirs_exist_ok=True)
    assert len(load_sweep(tmp_path / "sweep.yml").runs) == 12


def test_a_deadlock_names_what_each_rank_waits_for() -> None:
    directory = KITS / "data_and_replicas"
    wrong = directory / "solutions" / "wrong" / "deadlock"
    grade = graded(wrong, "--tests", directory / "hidden" / "check_all_reduce.py")["deadlock"]
    found = failed(grade)["mean"]
    assert found["case"] == "size=2, n=2"
    assert re.findall(r"rank (\d) waits for a message from rank (\d)", found["problem"]) == [
        ("0", "1"),
        ("1", "0"),
    ]


def test_hostile_submissions_get_no_points_and_leave_nothing(tmp_path: Path) -> None:
    submissions = write_submissions(tmp_path, {"right": RIGHT, **QUICK})
    grades = graded(*submissions, "--tests", tmp_path / "checks.py", "--jobs", "4")
    assert {name: grade["points"] for name, grade in grades.items()} == {
        "right": 4,
        **dict.fromkeys(QUICK, 0),
    }
    problems = {name: failed(grade).get("twice", {}).get("problem", "") for name, grade in grades.items()}
    assert "exit code 0" in problems["exits"]
    assert "within 5 s" in problems["hangs"]
    assert "16 MiB" in problems["too_long"]
    assert "answer.py, line 1" in problems["no_python"]
    assert len(problems["raises"]) < 1000
    assert problems["raises"].isprintable()
    assert [line for line in map(_line, psutil.process_iter()) if str(tmp_path) in line] == []


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_limits_of_memory_apply_to_local_processes(tmp_path: Path) -> None:
    (submission,) = write_submissions(
        tmp_path, {"large": "def answer(values):\n    return bytearray(2 * 10**9)"}
    )
    grade = graded(submission, "--tests", tmp_path / "checks.py")["large"]
    assert "MemoryError" in failed(grade)["twice"]["problem"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_grader_that_ends(number: signal.Signals, tmp_path: Path) -> None:
    source = "import time\n\n\ndef answer(values):\n    time.sleep(600)"
    (submission,) = write_submissions(tmp_path, {"sleeps": source})
    (tmp_path / "checks.py").write_text(
        (tmp_path / "checks.py").read_text().replace("seconds=5", "seconds=600")
    )
    command = orchestrator(
        "course", "grade", submission, "--tests", tmp_path / "checks.py", "--runtime", "local"
    )
    grader = subprocess.Popen(
        command, cwd=PROJECT, env=environment(), stderr=subprocess.DEVNULL, preexec_fn=heed_signals
    )
    try:
        grading = psutil.Process(grader.pid)
        wait_until(
            lambda: any("trainer.course" in _line(each) for each in grading.children()), timeout_s=60
        )
        (worker,) = (each for each in grading.children() if "trainer.course" in _line(each))
        time.sleep(1)  # the call is in progress
        grader.send_signal(number)
        assert grader.wait(30) == (130 if number == signal.SIGINT else -signal.SIGKILL)
        wait_until(lambda: not worker.is_running(), timeout_s=30)
    finally:
        grader.kill()


def test_what_a_student_prints_is_shown(tmp_path: Path) -> None:
    source = "def answer(values):\n    print('values are', values)\n    return values"
    (submission,) = write_submissions(tmp_path, {"prints": source})
    done = run_cli("course", "test", submission, "--tests", tmp_path / "checks.py")
    assert done.returncode == 1  # a test fails
    assert "values are [1.0]" in done.stderr


def test_without_an_engine_the_default_runtime_is_refused(tmp_path: Path) -> None:
    (submission,) = write_submissions(tmp_path, {"right": RIGHT})
    done = subprocess.run(
        orchestrator("course", "grade", submission, "--tests", tmp_path / "checks.py"),
        cwd=PROJECT,
        env={**environment(), "DOCKER_HOST": f"unix://{tmp_path}/none"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "--runtime docker" in done.stderr
    assert "--runtime local" in done.stderr


@pytest.mark.nightly
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    page = (PROJECT / "docs" / "teaching.md").read_text()
    blocks: dict[str, list[str]] = {}
    for language, text in re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", page):
        blocks.setdefault(language, []).append(text)
    answer, checks = blocks["python"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "total.py").write_text(answer)
    (tmp_path / "checks.py").write_text(checks)
    # As an installed command, with grading as local processes.
    command = tmp_path / "bin" / "shardyard"
    command.parent.mkdir()
    local = 'case "$2" in grade) set -- "$@" --runtime local;; esac'
    command.write_text(f'#!/bin/sh\n{local}\nexec {shlex.quote(sys.executable)} -m orchestrator "$@"\n')
    command.chmod(0o755)
    lines = [line for block in blocks[""] for line in block.splitlines()]
    assert all(line.startswith("shardyard course ") for line in lines)
    outputs = {}
    for line in lines:
        done = subprocess.run(
            line,
            shell=True,
            cwd=tmp_path,
            env={
                **environment(),
                "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(PROJECT),
                "COLUMNS": "80",
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        outputs[line] = done.stdout
    assert "3/3" in outputs["shardyard course grade mine --tests checks.py --runtime docker"]
    assert len(json.loads((tmp_path / "grades.json").read_text())["submissions"]) == len(
        WRONG["data_and_replicas"]
    )
    with (tmp_path / "grades.csv").open(newline="") as book:
        assert {line["submission"] for line in csv.DictReader(book)} == {*WRONG["data_and_replicas"]}
    table = next(
        output for line, output in outputs.items() if "reference teacher/solutions/wrong/*" in line
    )
    (shown,) = blocks["text"]
    printed = {" ".join(line.split()) for line in table.splitlines()}
    assert {" ".join(line.split()) for line in shown.splitlines()} <= printed
