"""Mistakes of the command `check`: the example of its page, crashes, endless loops, what it leaves."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path

import psutil
import pytest

import tests.support.wrong_components as wrong
from tests.support.command_line import Done, end, orchestrator, refused, run_cli, start
from tests.support.nightly import nightly
from tests.support.pages import blocks
from tests.support.processes import starts, wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's directory, with the wrong components in mine.py."""
    shutil.copy(wrong.__file__, tmp_path / "mine.py")
    return tmp_path


def check(folder: Path, *arguments: str) -> Done:
    return run_cli("check", *arguments, directory=folder, COLUMNS="80", NO_COLOR="1")


def findings(folder: Path, *arguments: str) -> list[dict[str, dict[str, str]]]:
    """Of each component, its findings by law."""
    done = check(folder, *arguments, "--json")
    reports = json.loads(done.stdout)
    failed = any(each["status"] == "failed" for report in reports for each in report["findings"])
    assert done.returncode == failed, done.stderr
    return [{each["law"]: each for each in report["findings"]} for report in reports]


def test_the_example_of_the_page(folder: Path) -> None:
    partitioner, better, *_ = blocks("docs/check.md", "python")
    (console,) = blocks("docs/check.md", "console")
    command, _, shown = console.removeprefix("$ shardyard check ").partition("\n")
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
    (folder / "averages.py").write_text(blocks("docs/strategy_api.md", "python")[0])
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
    assert [name for name, each in found.items() if each["status"] != "skipped"] == [law]
    assert got in found[law]["got"]
    assert found[law]["input"]
    assert all("not tried" in each["reason"] for each in found.values() if each["status"] == "skipped")


def test_processes_that_hang_are_gone_when_the_time_of_the_check_is_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARK", str(folder))
    done = check(folder, "./mine.py:WaitsForOthers", "--timeout", f"{starts(8):.0f}")
    assert done.returncode == 1
    assert "s, rank 0 is at mine.py:" in done.stdout
    marks = [(each.info["environ"] or {}).get("MARK") for each in psutil.process_iter(["environ"])]
    assert str(folder) not in marks


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
    assert found["runs"]["status"] == "failed"  # it takes 784 numbers, not 4
    assert "mine.py:" in found["runs"]["got"]
    (found,) = findings(folder, "./mine.py:Averages", "--equals", "all_reduce")
    assert found["equals"]["status"] == "ok"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["./mine.py:None_"], "None_"),
        (["./mine.py:Decays", "--set", "decay=x"], "--set decay: 'x' is not allowed"),
        (["model:mlp", "--dataset", "{name: ./mine.py:TestInTraining, x: 1}"], "--dataset x: unknown key"),
        (["dataset:mnist", "--data-dir", "nowhere"], "mnist"),
    ],
)
def test_bad_input(folder: Path, arguments: list[str], named: str) -> None:
    assert named in refused("check", *arguments, directory=folder)


# The process that forks, and the forked one; its two ranks, after those of the training on one rank.
@pytest.mark.parametrize(
    ("name", "processes", "number"), [("Hangs", 2, signal.SIGINT), ("WaitsForOthers", 4, signal.SIGKILL)]
)
def test_nothing_is_left_behind(folder: Path, name: str, processes: int, number: signal.Signals) -> None:
    process = start(orchestrator("check", f"./mine.py:{name}"), folder)
    started = psutil.Process(process.pid)
    wait_until(lambda: len(started.children(recursive=True)) >= processes or process.poll(), timeout_s=60)
    children = started.children(recursive=True)
    assert "Traceback" not in end(process, number)
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []
