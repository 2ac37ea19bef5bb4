"""Attacks by a component on the commands `model` and `partitions`, which show figures and train nothing.

The promise: its code runs in a process of its own, and what that process sends is checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands import model as model_command
from orchestrator.commands import partitions as partitions_command
from orchestrator.commands.model import sections
from orchestrator.commands.partitions import preview, runs_of, tables
from orchestrator.errors import InputError
from orchestrator.sweeps.imports import Imports
from tests.attacks.test_inspection import Scripted
from trainer.core.frames import frame
from trainer.models.mlp import Mlp
from trainer.spec.run_spec import RunSpec

# Notes each process that runs it.
NOTES = """
import os
import math
from pathlib import Path
from torch import nn
def note():
    with open(Path(__file__).parent / "pids", "a") as file:
        file.write(f"{os.getpid()}\\n")
note()
"""
MODEL = """
class Net(nn.Sequential):
    def __init__(self, shape, classes):
        note()
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), classes), nn.LogSoftmax(1))
"""
SPLIT = """
import numpy as np
def split(labels, parts):
    note()
    return np.array_split(np.arange(len(labels)), parts)
"""
DATA = """
def data():
    note()
    rng = np.random.default_rng(0)
    return rng.standard_normal((60, 4)), np.arange(60) % 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes the file with the components, in the current directory."""
    monkeypatch.chdir(tmp_path)

    def write(code: str = "") -> Path:
        (tmp_path / "mine.py").write_text(NOTES + MODEL + SPLIT + code)
        return tmp_path

    return write


def model(directory: Path, mesh: str | None = None) -> str:
    imports = Imports(directory, directory)
    return "\n".join(sections("./mine.py:Net", "digits", 8, None, 80, imports, mesh=mesh))


def partitions(directory: Path, dataset: str = "digits") -> str:
    imports = Imports(directory, Path("data"))
    return tables(
        [*preview(runs_of(dataset, 4, ["./mine.py:split"], 0, imports), Path("data"), imports)], 80
    )


def pids(directory: Path) -> set[int]:
    return {int(line) for line in (directory / "pids").read_text().split()}


@pytest.mark.parametrize(
    ("shown", "holds"),
    [
        (model, "slowest"),
        (lambda directory: model(directory, "data=2,pipeline=2"), "split points"),
        (partitions, "split"),
        (lambda directory: partitions(directory, "./mine.py:data"), "48 training samples"),
    ],
    ids=["model", "mesh", "partitions", "dataset"],
)
def test_no_code_of_users_runs_in_the_command(
    shown: Callable[[Path], str], holds: str, mine: Callable[..., Path]
) -> None:
    directory = mine(DATA)
    assert holds in shown(directory)
    assert os.getpid() not in pids(directory)
    assert pids(directory)


@pytest.mark.parametrize(
    "code",
    ["os._exit(3)", "raise SystemExit(0)", "raise KeyError('\\x1b[2J\\n[3/3] x: ok')", "[] + 'x' * 10**6"],
)
def test_code_that_fails_later_is_an_error_in_one_line(code: str, mine: Callable[..., Path]) -> None:
    """After the trial that loads it has passed."""
    profiled = f"""
import traceback
class Flat(nn.Flatten):
    def forward(self, x):
        if "profile_blocks" in str(traceback.extract_stack()):
            {code}
        return super().forward(x)
class Net(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(Flat(), nn.Linear(math.prod(shape), classes), nn.LogSoftmax(1))
"""
    with pytest.raises(InputError) as raised:
        model(mine(profiled))
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 5000


BLOCK = {
    "name": "layer",
    "parameters": 1,
    "output_shape": [1],
    "flops": 1.0,
    "output_bytes": 1.0,
    "saved_bytes": 1.0,
    "forward_s": 1.0,
    "backward_s": 1.0,
}
PARTITION = {
    "labels": [[1, 1]] * 2,
    "coverage": 1.0,
    "overlap": 0.0,
    "js_divergence": [0.0] * 2,
    "earth_movers_distance": [0.0] * 2,
}


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "other"},
        {"name": "\x1b[2J"},
        {"forward_s": 0.0},
        {"forward_s": float("nan")},
        {"backward_s": -1.0},
        {"flops": 1e300},
        {"parameters": 1.5},
        {"output_shape": [1] * 1000},
        {"more": 1},
        None,
    ],
    ids=str,
)
def test_a_profile_that_is_none_is_refused(
    changed: dict[str, Any] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_command, "has_users", lambda run: True)
    monkeypatch.setattr(Mlp, "names", ["layer"])
    blocks = [] if changed is None else [{**BLOCK, **changed}]
    sent = Imports(tmp_path, make_sandbox=lambda _: Scripted(frame({"blocks": blocks})))
    with pytest.raises(InputError) as raised:
        model_command.profile_blocks(RunSpec(model="mlp", strategy="serial"), sent)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    "changed",
    [
        {"labels": [[1, 1]]},
        {"labels": [[1, 1], [1]]},
        {"labels": [[1, -1], [1, 1]]},
        {"labels": [[1, "x"], [1, 1]]},
        {"js_divergence": []},
        {"earth_movers_distance": [0.0, float("inf")]},
        {"coverage": 2.0},
        {"more": 1},
        None,
    ],
    ids=str,
)
def test_a_partition_that_is_none_is_its_row(
    changed: dict[str, Any] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions_command, "has_users", lambda run: True)
    answer = {} if changed is None else {"partition": {**PARTITION, **changed}}
    sent = Imports(tmp_path, make_sandbox=lambda _: Scripted(frame(answer)))
    dataset = "{name: synthetic, samples: 200, classes: 2, height: 3, width: 3}"
    (found,) = preview(runs_of(dataset, 2, ["shards"], 0, sent), tmp_path, sent)
    assert found.summary is None
    assert found.reason.isprintable()
