"""Mistakes in `model`: sums and shares of blocks, split points, ranks of a mesh, output of any width."""

from __future__ import annotations

import re
from typing import Any

import pytest

from orchestrator import cli
from orchestrator.commands.model import run_of, sections, split_lines
from orchestrator.errors import InputError
from orchestrator.sweeps.imports import Imports
from orchestrator.sweeps.yaml import parse_yaml
from tests.unit.conftest import PROJECT
from trainer.spec.registries import MODELS
from trainer.training.profile import BlockProfile

NO_IMPORTS = Imports(PROJECT)
MLP = "{name: mlp, hidden: [30, 20]}"


def block(name: str, seconds: float = 1.0, parameters: int = 0, output_bytes: float = 4.0) -> BlockProfile:
    shape = (int(output_bytes) // 4,)
    return BlockProfile(
        name, parameters, parameters, shape, 0, output_bytes, 0, seconds / 4, 3 * seconds / 4
    )


FOUR = [block("a", 1, 10, 400), block("b", 2, 20, 40), block("c", 3, 30, 80), block("d", 2, 40, 8)]


def report(model: str = MLP, batch_size: int = 8, dataset: str = "digits", **options: Any) -> str:
    given = {"parts": None, "width": 80, "imports": NO_IMPORTS, **options}
    return "\n".join(sections(model, dataset, batch_size, **given))


# Proposed split points


def test_proposed_split_points_are_valid_sweep_yaml_also_if_they_are_wrapped() -> None:
    run = run_of("lenet", "digits", 10, NO_IMPORTS)
    lines = split_lines(FOUR, run, [2, 3], 80)
    proposed = [parse_yaml(line, "")["split_points"] for line in lines if "split_points:" in line]
    assert proposed == [["c"], ["c", "d"]]
    blocks = [block(f"block{number}", parameters=10**8) for number in range(40)]
    lines = split_lines(blocks, run, [40], 80)
    assert max(map(len, lines)) <= 80
    assert parse_yaml("\n".join(lines[1:]), "")["split_points"] == [block.name for block in blocks[1:]]


# The table


def test_the_command_lists_every_block_and_its_sum(capsys: pytest.CaptureFixture[str]) -> None:
    cli.app(["model", MLP, "--batch-size", "4", "--parts", "2"], standalone_mode=False)
    text = capsys.readouterr().out
    assert text.startswith("mlp hidden=[30, 20] on fashion_mnist\nimages of 1×28×28, 10 classes, batch 4;")
    _, _, *rows = text.split("\n\n")[1].splitlines()
    assert [row.split()[0] for row in rows] == [*MODELS.parse(parse_yaml(MLP, "")).names, "sum"]
    assert rows[-1].split()[1] == f"{784 * 30 + 30 + 30 * 20 + 20 + 20 * 10 + 10:,}"
    assert sum(float(row.split()[-1].rstrip("%")) for row in rows[:-1]) == pytest.approx(100, abs=0.5)
    assert len(re.findall(r"split_points: \[\w+\]", text)) == 1
    assert max(map(len, text.splitlines())) <= 80


# Meshes


def test_stages_of_a_mesh_do_not_divide_pairs() -> None:
    """conv1 … conv2 and fc1 … fc2 leave 8 stages of 13 blocks."""
    points = "pool2, relu2, dropout, pool3, flatten, fc1, log_softmax"
    assert f"time of blocks: {points}\n" in report("lenet", mesh="pipeline=8,tensor=2")
    with pytest.raises(InputError, match=rf"9 stages .* 8 .*possible split points: {points}"):
        report("lenet", mesh="pipeline=9,tensor=2")
