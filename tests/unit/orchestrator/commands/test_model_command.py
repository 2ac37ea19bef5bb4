"""Mistakes in `model`: sums and shares of blocks, split points, ranks of a mesh, output of any width."""

from __future__ import annotations

import re
from typing import Any

import pytest

from orchestrator import cli
from orchestrator.commands.model import (
    balanced_split,
    block_lines,
    run_of,
    sections,
    split_lines,
)
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
    return BlockProfile(name, parameters, shape, 0, output_bytes, 0, seconds / 4, 3 * seconds / 4)


FOUR = [block("a", 1, 10, 400), block("b", 2, 20, 40), block("c", 3, 30, 80), block("d", 2, 40, 8)]


def report(model: str = MLP, batch_size: int = 8, dataset: str = "digits", **options: Any) -> str:
    given = {"parts": None, "width": 80, "imports": NO_IMPORTS, **options}
    return "\n".join(sections(model, dataset, batch_size, **given))


# Proposed split points


def test_a_balanced_split_has_times_parameters_and_traffic_of_its_stages() -> None:
    half, third = (balanced_split(FOUR, 10, parts) for parts in (2, 3))
    assert (half.split_points, half.seconds, half.parameters) == (["c"], [3, 5], [30, 70])
    assert (half.sent_bytes, half.largest) == ([40], 5 / 8)
    assert (third.split_points, third.parameters, third.sent_bytes) == (["c", "d"], [30, 30, 40], [40, 80])


def test_proposed_split_points_are_valid_sweep_yaml_also_if_they_are_wrapped() -> None:
    run = run_of("lenet", "digits", 10, NO_IMPORTS)
    lines = split_lines(FOUR, run, [2, 3], 80)
    proposed = [parse_yaml(line, "")["split_points"] for line in lines if "split_points:" in line]
    assert proposed == [["c"], ["c", "d"]]
    text = "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")
    assert "2 stages: 37.5% + 62.5% of the time; slowest 1.25 × an even share" in text
    assert "sent between stages per step: 400 B and 800 B forward" in text  # for 10 samples
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


def test_block_times_are_forward_and_backward() -> None:
    *_, last, total = block_lines(FOUR)
    assert (last.split()[-2:], total.split()[-1]) == (["2,000", "25.0%"], "8,000")


# Meshes


def test_a_mesh_shows_the_shards_of_each_rank_and_its_groups() -> None:
    text = report("lenet", mesh="data=2,tensor=4", dataset="fashion_mnist")
    rows = [line.split() for line in text.splitlines() if re.match(" +[0-7]  ", line)]
    shards = (3, 3, 2, 2)  # channels of the ranks
    sizes = [n * (25 + 1) + 30 * n * 25 + 30 + 15 * (120 + 1) + 10 * 15 + 10 for n in shards]
    assert [row[1] for row in rows] == [f"{data},0,{shard}" for data in range(2) for shard in range(4)]
    assert [row[-7] for row in rows] == [f"{size:,}" for size in sizes * 2]
    assert [" ".join(row[-6:]) for row in rows[3:5]] == ["3 7 · 0 … 3", "0 4 · 4 … 7"]
    assert max(map(len, text.splitlines())) <= 80


def test_stages_of_a_mesh_do_not_divide_pairs() -> None:
    """conv1 … conv2 and fc1 … fc2 leave 8 stages of 13 blocks."""
    points = "pool2, relu2, dropout, pool3, flatten, fc1, log_softmax"
    assert f"time of blocks: {points}\n" in report("lenet", mesh="pipeline=8,tensor=2")
    with pytest.raises(InputError, match=rf"9 stages .* 8 .*possible split points: {points}"):
        report("lenet", mesh="pipeline=9,tensor=2")


# Arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mesh": "data=2,data=2"}, "--mesh data=2,data=2: 'data=2' .*each dimension once"),
        ({"mesh": "tensor"}, "'tensor' .*allowed: "),
        ({"mesh": f"tensor={'9' * 5000}"}, "'tensor=9+' .*allowed: "),
        ({"mesh": "tensor=٣"}, "'tensor=٣' .*allowed: "),
        ({"mesh": "expert=2"}, "mesh.expert: unknown key.*allowed: data, pipeline, tensor"),
        ({"model": "lenet", "mesh": "tensor=11"}, "--mesh tensor=11: .*1 to 10 ranks"),
        ({"mesh": "tensor=2", "parts": "2"}, "--parts 2: not allowed with --mesh"),
        ({"model": "telepathy"}, "model telepathy: .*known: fedavg_cnn, gpt, lenet, lenet5, mlp"),
        ({"model": "{name: mlp, hiden: [1]}"}, r"model .name: mlp, .*: hiden: unknown key .*'hidden'"),
        ({"model": "lenet", "dataset": "cifar10"}, "lenet cannot train on cifar10: .*28×28"),
        ({"batch_size": 0}, "--batch-size 0: "),
        ({"parts": "1"}, "--parts 1: '1' .*allowed: whole numbers from 2"),
        ({"parts": "9" * 5000}, "--parts 9+: '9+' .*allowed: whole numbers from 2"),
        ({"parts": "8"}, "--parts 8: .*7 blocks: flatten, fc1"),
    ],
)
def test_input_errors_name_value_and_allowed_values(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        report(**arguments)
