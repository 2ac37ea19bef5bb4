"""Attacks by a component on the commands `model` and `partitions`, which show figures and train nothing.

The promise: its code runs in a process of its own, and what that process sends is checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands import model as model_command
from orchestrator.commands import partitions as partitions_command
from orchestrator.commands.model import sections
from orchestrator.commands.partitions import preview, runs_of, tables
from orchestrator.errors import InputError
from orchestrator.sweeps.imports import Imports
from tests.attacks.scripted import Scripted
from trainer.core.frames import frame
from trainer.models.mlp import Mlp
from trainer.spec.run_spec import RunSpec

# Notes each process that runs it. The models fail when they are profiled, after the trial that loads them.
CODE = """
import math
import os
import traceback
from pathlib import Path
import numpy as np
from torch import nn
def note():
    with open(Path(__file__).parent / "pids", "a") as file:
        file.write(f"{os.getpid()}\\n")
note()
class Net(nn.Sequential):
    def __init__(self, shape, classes, fails=""):
        note()
        super().__init__(Flat(fails), nn.Linear(math.prod(shape), classes), nn.LogSoftmax(1))
class Flat(nn.Flatten):
    def __init__(self, fails):
        super().__init__()
        self.fails = fails
    def forward(self, x):
        if self.fails and "profile_blocks" in str(traceback.extract_stack()):
            exec(self.fails)
        return super().forward(x)
def split(labels, parts):
    note()
    return np.array_split(np.arange(len(labels)), parts)
def data():
    note()
    return np.random.default_rng(0).standard_normal((60, 4)), np.arange(60) % 3
"""


@pytest.fixture(scope="module")
def imports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Imports]:
    directory = tmp_path_factory.mktemp("mine")
    (directory / "mine.py").write_text(CODE)
    with closing(Imports(directory, directory)) as imports:
        yield imports


def model(imports: Imports, fails: str = "", mesh: str | None = None) -> str:
    name = f"{{name: {imports.directory}/mine.py:Net, fails: {fails!r}}}"
    return "\n".join(sections(name, "digits", 8, None, 80, imports, mesh=mesh))


def partitions(imports: Imports, dataset: str) -> str:
    runs = runs_of(dataset, 4, [f"{imports.directory}/mine.py:split"], 0, imports)
    return tables([*preview(runs, Path("data"), imports)], 80)


def test_no_code_of_users_runs_in_the_command(imports: Imports) -> None:
    assert "slowest" in model(imports)
    assert "split points" in model(imports, mesh="data=2,pipeline=2")
    assert "split" in partitions(imports, "digits")
    assert "48 training samples" in partitions(imports, f"{imports.directory}/mine.py:data")
    pids = {int(line) for line in (imports.directory / "pids").read_text().split()}
    assert len(pids) > 3
    assert os.getpid() not in pids


@pytest.mark.parametrize(
    "fails", ["os._exit(3)", "raise SystemExit(0)", "raise KeyError(chr(27)*10**6+chr(10))"]
)
def test_code_that_fails_later_is_an_error_in_one_line(fails: str, imports: Imports) -> None:
    with pytest.raises(InputError) as raised:
        model(imports, fails)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 5000


BLOCK = {"name": "layer", "parameters": 1, "output_shape": [1], "flops": 1.0, "output_bytes": 1.0}
BLOCK |= {"saved_bytes": 1.0, "forward_s": 1.0, "backward_s": 1.0}
PROFILES: list[Any] = [
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
]


def test_a_profile_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_command, "has_users", lambda run: True)
    monkeypatch.setattr(Mlp, "names", ["layer"])

    def profile(blocks: list[Any]) -> Any:
        sent = Imports(tmp_path, make_sandbox=lambda _: Scripted(frame({"blocks": blocks})))
        return model_command.profile_blocks(RunSpec(model="mlp", strategy="serial"), sent)

    assert profile([BLOCK])
    for changed in PROFILES:
        with pytest.raises(InputError) as raised:
            profile([] if changed is None else [{**BLOCK, **changed}])
        assert str(raised.value).isprintable()


PARTITION = {"labels": [[1, 1]] * 2, "coverage": 1.0, "overlap": 0.0}
PARTITION |= {"js_divergence": [0.0] * 2, "earth_movers_distance": [0.0] * 2}
PARTITIONS: list[Any] = [
    {"labels": [[1, 1]]},
    {"labels": [[1, 1], [1]]},
    {"labels": [[1, -1], [1, 1]]},
    {"labels": [[1, "x"], [1, 1]]},
    {"js_divergence": []},
    {"earth_movers_distance": [0.0, float("inf")]},
    {"coverage": 2.0},
    {"more": 1},
    None,
]


def test_a_partition_that_is_none_is_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions_command, "has_users", lambda run: True)
    dataset = "{name: synthetic, samples: 200, classes: 2, height: 3, width: 3}"

    def shown(answer: dict[str, Any]) -> Any:
        sent = Imports(tmp_path, make_sandbox=lambda _: Scripted(frame(answer)))
        (found,) = preview(runs_of(dataset, 2, ["shards"], 0, sent), tmp_path, sent)
        return found

    assert shown({"partition": PARTITION}).summary
    for changed in PARTITIONS:
        found = shown({} if changed is None else {"partition": {**PARTITION, **changed}})
        assert found.summary is None, changed
        assert found.reason.isprintable()
