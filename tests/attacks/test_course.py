"""Attacks of graded submissions in containers: points that are not earned, confinement, what is left."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.runtimes.docker.reaper import LABEL
from tests.smoke.confinement import DEVICES, PROBE, READ_ONLY
from tests.support.command_line import PROJECT, environment, heed_signals, orchestrator, run_cli
from tests.support.containers import leftovers, nothing_left
from tests.support.hostile_submissions import HARMFUL, QUICK, RIGHT, write_submissions
from tests.support.processes import wait_until

pytestmark = pytest.mark.containers


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    with nothing_left():
        yield


def graded(*arguments: str | Path) -> dict[str, dict[str, Any]]:
    """Grade in containers. Returns the grades by submission."""
    done = run_cli("course", "grade", *arguments, "--json", timeout_s=280)
    assert done.returncode == 0, done.stderr
    return {each["submission"]: each for each in json.loads(done.stdout)["submissions"]}


def submissions(directory: Path, sources: dict[str, str]) -> list[Path]:
    """Submissions that the containers' user can read."""
    directory.chmod(0o755)
    return write_submissions(directory, sources)


def problems(grade: dict[str, Any]) -> list[str]:
    return [score["failure"]["problem"] for score in grade["scores"] if score["failure"]]


@pytest.mark.nightly
def test_hostile_submissions_get_no_points(tmp_path: Path) -> None:
    paths = submissions(tmp_path, {**QUICK, **HARMFUL, "right": RIGHT})
    limits = ("--jobs", "4", "--memory-mb", "256", "--processes", "64")
    grades = graded(*paths, "--tests", tmp_path / "checks.py", *limits)
    points = {name: each["points"] for name, each in grades.items()}
    assert points == {**dict.fromkeys([*QUICK, *HARMFUL], 0), "right": 4}
    said = {"memory": "256 MiB", "exits": "exit code 0"}
    for name, text in {**said, **dict.fromkeys(("forks", "holds_the_lock"), "within 5 s")}.items():
        assert text in problems(grades[name])[0]


def test_a_submission_is_confined(tmp_path: Path) -> None:
    # The probe prints what it finds; here the submission returns it.
    found, paths = "/submission/found", [*READ_ONLY, "/tmp", "/submission"]
    probe = PROBE.replace("sys.argv[1:]", repr(paths))
    probe = probe.replace("print(json.dumps(", f"{found!r}; FOUND = ((")
    source = f"{probe}\n\ndef answer(values):\n    return json.dumps([FOUND, os.listdir('/submission')])\n"
    (path,) = submissions(tmp_path, {"probe": source})
    (tmp_path / "secret.txt").touch(mode=0o644)  # beside the submission
    (tmp_path / "checks.py").write_text(
        "from shardyard.course import Failure, check\n\n\n"
        "@check('answer.py', points=1, title='t', law='l', reason='r')\n"
        "def probe(student):\n"
        f"    open({str(tmp_path / 'found.json')!r}, 'w').write(student.call('answer', [1.0]))\n"
    )
    grade = graded(path, "--tests", tmp_path / "checks.py")["probe"]
    assert problems(grade) == []
    seen, files = json.loads((tmp_path / "found.json").read_text())
    assert [name for name in files if name != "__pycache__"] == ["answer.py"]
    assert [each for each in seen["writable"] if seen["writable"][each]] == ["/tmp"]
    assert seen["interfaces"] == ["lo"]
    assert (seen["routes"], seen["outside"], seen["resolved"], seen["engine"]) == ([], False, False, False)
    assert {*seen["devices"]} <= DEVICES
    assert "ro" in seen["mounts"]["/submission"]
    assert {"noexec", "nosuid", "nodev"} <= {*seen["mounts"]["/tmp"]}
    for process in seen["processes"]:
        assert {*process["Uid"].split()} == {"10001"}, process
        assert not any(int(process[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapBnd")), process
        assert (process["NoNewPrivs"], process["Seccomp"]) == ("1", "2")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_container_is_left_of_a_grader_that_ends(number: signal.Signals, tmp_path: Path) -> None:
    paths = submissions(tmp_path, dict.fromkeys(("a", "b"), HARMFUL["holds_the_lock"]))
    checks = tmp_path / "checks.py"
    checks.write_text(checks.read_text().replace("seconds=5", "seconds=300"))
    before = set(leftovers(LABEL))
    grader = subprocess.Popen(
        orchestrator("course", "grade", *paths, "--tests", checks, "--jobs", "2"),
        cwd=PROJECT,
        env=environment(),
        stderr=subprocess.DEVNULL,
        preexec_fn=heed_signals,
    )
    try:
        wait_until(lambda: len(set(leftovers(LABEL)) - before) == 2, timeout_s=60)
        time.sleep(1)  # the calls are in progress
        grader.send_signal(number)
        assert grader.wait(60) == (130 if number == signal.SIGINT else -signal.SIGKILL)
    finally:
        grader.kill()
