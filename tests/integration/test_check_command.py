"""The command `check`: the example of docs/check.md, crashes, endless loops, and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import tests.support.wrong_components as wrong
from orchestrator.shipped import IMPORT_ROOT
from tests.support.command_line import heed_signals
from tests.support.nightly import nightly
from tests.support.processes import starts

PAGE = (IMPORT_ROOT / "docs" / "check.md").read_text()
CHECK = [sys.executable, "-m", "orchestrator", "check"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's directory, with the wrong components in mine.py."""
    shutil.copy(wrong.__file__, tmp_path / "mine.py")
    return tmp_path


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(IMPORT_ROOT), "COLUMNS": "80", "NO_COLOR": "1"}


def check(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CHECK, *arguments], cwd=folder, env=environment(), capture_output=True, text=True, timeout=120
    )


def findings(folder: Path, *arguments: str) -> list[dict[str, dict[str, str]]]:
    """Of each component, its findings by law."""
    done = check(folder, *arguments, "--json")
    reports = json.loads(done.stdout)
    failed = any(each["status"] == "failed" for report in reports for each in report["findings"])
    assert done.returncode == failed, done.stderr
    return [{each["law"]: each for each in report["findings"]} for report in reports]


def test_the_example_of_the_page(folder: Path) -> None:
    partitioner, better, *_ = re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE)
    ((command, shown),) = re.findall(r"(?ms)^```console\n\$ shardyard check (.*?)\n(.*?)^```$", PAGE)
    (folder / "mine.py").write_text(partitioner)
    done = check(folder, command)
    assert done.stdout == shown
    assert done.returncode == 1
    assert max(map(len, shown.splitlines())) <= 80
    (folder / "mine.py").write_text(re.sub(r"(?s)        size = .*", better, partitioner))
    (found,) = findings(folder, command)
    assert {each["status"] for each in found.values()} == {"ok"}


@pytest.mark.nightly
def test_the_strategy_of_the_reference_page_keeps_the_laws(folder: Path) -> None:
    page = (IMPORT_ROOT / "docs" / "strategy_api.md").read_text()
    (folder / "averages.py").write_text(re.findall(r"(?ms)^```python\n(.*?)^```$", page)[0])
    (found,) = findings(folder, "./averages.py:Averages")
    assert {each["status"] for each in found.values()} <= {"ok", "skipped"}
    assert found["agree"]["status"] == "ok"


@pytest.mark.parametrize(
    ("name", "law", "limit", "got"),
    [
        ("Hangs", "runs", "3", "within 3 s"),
        ("Exits", "runs", "60", "SIGABRT"),
        *nightly(("LocksOutside", "ends", "8", "within 8 s")),
    ],
)
def test_a_crash_and_an_endless_loop_fail_the_law_that_was_tried(
    folder: Path, name: str, law: str, limit: str, got: str
) -> None:
    (found,) = findings(folder, f"./mine.py:{name}", "--timeout", limit)
    assert [*found] == [law]
    assert got in found[law]["got"]


def test_processes_that_hang_are_gone_when_the_time_of_the_check_is_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARK", str(folder))
    done = check(folder, "./mine.py:WaitsForOthers", "--timeout", f"{starts(8):.0f}")
    assert done.returncode == 1
    assert "s, rank 0 is at mine.py:" in done.stdout
    assert not [
        each
        for each in psutil.process_iter(["environ"])
        if (each.info["environ"] or {}).get("MARK") == str(folder)
    ]


def test_every_component_of_a_file_is_checked_and_its_output_is_no_answer(folder: Path) -> None:
    (folder / "two.py").write_text(
        "import torch\nfrom torch import nn\nprint('hello')\n"
        "class Cell(nn.Module):\n    def __init__(self, width): super().__init__()\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(784, classes))\n"
        "    def forward(self, x):\n        print('forward')\n        return super().forward(x)\n"
    )
    cell, net = findings(folder, "./two.py")
    assert [each["status"] for each in cell.values()] == ["skipped"]
    assert "width" in cell["builds"]["reason"]
    assert {each["status"] for each in net.values()} <= {"ok", "skipped"}
    assert net["splits"]["status"] == "ok"


@pytest.mark.nightly
def test_options(folder: Path) -> None:
    (found,) = findings(folder, "dirichlet", "--set", "alpha=0.1", "--set", "equal_sizes=true")
    assert {each["status"] for each in found.values()} == {"ok"}
    (found,) = findings(folder, "./mine.py:Unused", "--dataset", "./mine.py:TestInTraining")
    assert found["builds"]["status"] == "failed"  # it takes 784 numbers, not 4
    assert "mine.py:" in found["builds"]["got"]
    (found,) = findings(folder, "./mine.py:Averages", "--equals", "all_reduce")
    assert found["equals"]["status"] == "ok"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["./mine.py:None_"], "None_"),
        (["./mine.py:Decays", "--set", "decay=x"], "--set decay: 'x' is not allowed"),
        (["model:lenet", "--dataset", "cifar10"], "28×28"),
        (["model:mlp", "--dataset", "{name: synthetic, nose: 1}"], "nose: 1}: nose: unknown key"),
        (["model:mlp", "--dataset", "{name: ./mine.py:TestInTraining, x: 1}"], "--dataset x: unknown key"),
        (["dataset:mnist", "--data-dir", "nowhere"], "mnist"),
    ],
)
def test_bad_input(folder: Path, arguments: list[str], named: str) -> None:
    done = check(folder, *arguments)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr


# The process that forks, and the forked one; its two ranks, after those of the training on one rank.
@pytest.mark.parametrize(
    ("name", "processes", "number"), [("Hangs", 2, signal.SIGINT), ("WaitsForOthers", 4, signal.SIGKILL)]
)
def test_nothing_is_left_behind(folder: Path, name: str, processes: int, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*CHECK, f"./mine.py:{name}"],
        cwd=folder,
        env=environment(),
        stderr=subprocess.PIPE,
        preexec_fn=heed_signals,
    )
    started = psutil.Process(process.pid)
    end = time.monotonic() + 60
    while len(children := started.children(recursive=True)) < processes:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert b"Traceback" not in errors
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []
