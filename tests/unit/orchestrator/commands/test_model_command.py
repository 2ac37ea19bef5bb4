"""The command `model`: block profiles and split points, in 80 columns and without data."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from orchestrator import cli
from orchestrator.commands.model import (
    balanced_split,
    block_lines,
    run_of,
    sections,
    split_lines,
    stage_counts,
)
from orchestrator.errors import InputError
from orchestrator.sweeps.imports import Imports
from orchestrator.sweeps.yaml import parse_yaml
from tests.unit.conftest import PROJECT
from trainer.models import split_points as split_points
from trainer.spec.registries import MODELS
from trainer.training.profile import BlockProfile

NO_IMPORTS = Imports(PROJECT)
MLP = "{name: mlp, hidden: [30, 20]}"


def block(name: str, seconds: float = 1.0, parameters: int = 0, output_bytes: float = 4.0) -> BlockProfile:
    return BlockProfile(
        name, parameters, (int(output_bytes) // 4,), 0, output_bytes, 0, seconds / 4, 3 * seconds / 4
    )


FOUR = [block("a", 1, 10, 400), block("b", 2, 20, 40), block("c", 3, 30, 80), block("d", 2, 40, 8)]


def model_report(
    model: str = MLP, parts: str | None = None, dataset: str = "digits", batch_size: int = 8
) -> str:
    return "\n".join(sections(model, dataset, batch_size, parts, 80, NO_IMPORTS))


# Proposed split points


def test_balanced_split_reports_time_parameters_and_traffic() -> None:
    half = balanced_split(FOUR, 10, 2)
    assert (half.split_points, half.seconds, half.parameters, half.sent_bytes) == (
        ["c"],
        [3, 5],
        [30, 70],
        [40],
    )
    assert half.largest == 5 / 8
    third = balanced_split(FOUR, 10, 3)
    assert (third.split_points, third.parameters, third.sent_bytes) == (["c", "d"], [30, 30, 40], [40, 80])


def test_larger_batches_are_split_where_fewer_bytes_pass() -> None:
    blocks = [block("a", 1e-3, output_bytes=4e5), block("b", 2e-4, output_bytes=4), block("c", 1e-3)]
    assert balanced_split(blocks, 0, 2).split_points == ["b"]
    assert balanced_split(blocks, 1, 2).split_points == ["c"]  # 0.4 MB take 3.2 ms


def test_proposed_split_points_are_valid_sweep_yaml() -> None:
    lines = split_lines(FOUR, run_of("lenet", "digits", 10, NO_IMPORTS), [2, 3], 80)
    text = "\n".join(lines)
    assert [parse_yaml(line, "")["split_points"] for line in lines if "split_points:" in line] == [
        ["c"],
        ["c", "d"],
    ]
    assert "2 stages: 37.5% + 62.5% of the time; slowest 1.25 × an even share" in text
    assert "parameters: 30 + 70" in text
    assert "sent between stages per step: 400\N{NO-BREAK SPACE}B forward" in text  # for 10 samples
    assert "400\N{NO-BREAK SPACE}B and 800\N{NO-BREAK SPACE}B forward" in text


def test_wrapped_split_points_are_valid_yaml() -> None:
    blocks = [block(f"block{number}", parameters=10**8) for number in range(40)]
    lines = split_lines(blocks, run_of("lenet", "digits", 10, NO_IMPORTS), [40], 80)
    assert max(map(len, lines)) <= 80
    assert parse_yaml("\n".join(lines[1:]), "")["split_points"] == [block.name for block in blocks[1:]]


@pytest.mark.parametrize("name", MODELS.entries)
def test_proposed_split_points_are_valid_for_the_model(name: str) -> None:
    names = MODELS.parse(name).names
    blocks = [block(each, seconds=at % 3 + 1) for at, each in enumerate(names)]
    for parts in range(1, len(names) + 1):
        proposed = balanced_split(blocks, 10, parts).split_points
        assert split_points.validation_error(names, proposed, parts) is None


# The table


def test_block_table_lists_every_block_and_its_sum() -> None:
    text = model_report()
    _, _, *rows = text.split("\n\n")[1].splitlines()
    assert [row.split()[0] for row in rows] == [*MODELS.parse(parse_yaml(MLP, "")).names, "sum"]
    parameters = 784 * 30 + 30 + 30 * 20 + 20 + 20 * 10 + 10
    assert rows[-1].split()[1] == f"{parameters:,}"
    shares = [float(row.split()[-1].rstrip("%")) for row in rows[:-1]]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert "images of 1×28×28, 10 classes, batch 8;" in text


def test_block_times_include_forward_and_backward() -> None:
    *_, last, total = block_lines(FOUR)
    assert last.split()[-2:] == ["2,000", "25.0%"]
    assert total.split()[-1] == "8,000"


@pytest.mark.parametrize("model", ["lenet", "mlp", "{name: wide_resnet, widen: 1}", "vgg_small"])
def test_output_fits_80_columns(model: str) -> None:
    assert max(map(len, model_report(model, batch_size=2).splitlines())) <= 80


def test_large_numbers_fit_80_columns() -> None:
    large = BlockProfile("log_softmax", 99_999_999, (1024, 128, 128), 9.99e12, 9.99e11, 9.99e11, 9, 90)
    assert max(map(len, block_lines([large, large]))) <= 80


# Meshes


def test_a_mesh_shows_the_shards_of_each_rank_and_its_groups() -> None:
    text = "\n".join(sections("lenet", "fashion_mnist", 8, None, 80, NO_IMPORTS, mesh="data=2,tensor=4"))
    rows = [line.split() for line in text.splitlines() if re.match(" +[0-7]  ", line)]
    sizes = [
        channels * (25 + 1) + 30 * channels * 25 + 30 + 15 * (120 + 1) + 10 * 15 + 10
        for channels in (3, 3, 2, 2)
    ]
    assert [row[1] for row in rows] == [f"{data},0,{shard}" for data in range(2) for shard in range(4)]
    assert [row[-7] for row in rows] == [f"{size:,}" for size in sizes * 2]
    assert [" ".join(row[-6:]) for row in rows[3:5]] == ["3 7 · 0 … 3", "0 4 · 4 … 7"]
    assert max(map(len, text.splitlines())) <= 80


def test_stages_of_a_mesh_do_not_divide_pairs() -> None:
    """conv1 … conv2 and fc1 … fc2 leave 8 stages of 13 blocks."""
    points = "pool2, relu2, dropout, pool3, flatten, fc1, log_softmax"
    lenet = "lenet", "fashion_mnist", 8, None, 80, NO_IMPORTS, "nll"
    assert f"time of blocks: {points}\n" in "\n".join(sections(*lenet, "pipeline=8,tensor=2"))
    with pytest.raises(InputError, match=rf"9 stages .* 8 .*possible split points: {points}"):
        [*sections(*lenet, "pipeline=9,tensor=2")]


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ("data=2,data=2", "--mesh data=2,data=2: 'data=2' .*each dimension once"),
        ("data=0,tensor=2", "'data=0' .*allowed: "),
        ("tensor", "'tensor' .*allowed: "),
        (f"tensor={'9' * 5000}", "'tensor=9+' .*allowed: "),
        ("tensor=٣", "'tensor=٣' .*allowed: "),
        ("expert=2", "mesh.expert: unknown key.*allowed: data, pipeline, tensor"),
        ("tensor=11", "--mesh tensor=11: .*1 to 10 ranks"),
    ],
)
def test_errors_of_a_mesh_name_the_option(mesh: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        [*sections("lenet", "fashion_mnist", 8, None, 80, NO_IMPORTS, mesh=mesh)]


# Arguments


def test_stage_counts() -> None:
    run = run_of(MLP, "digits", 8, NO_IMPORTS)
    assert stage_counts("2, 5,2", run) == [2, 5]
    assert stage_counts(None, run) == [2, 3, 4]
    assert stage_counts(None, run_of("{name: mlp, hidden: []}", "digits", 8, NO_IMPORTS)) == [
        2,
        3,
    ]  # the model has 3 blocks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "telepathy"}, "model telepathy: .*known: fedavg_cnn, gpt, lenet, lenet5, mlp"),
        (
            {"model": "{name: mlp, hiden: [1]}"},
            r"model .name: mlp, hiden: \[1\].: hiden: unknown key .*'hidden'.*; allowed: hidden",
        ),
        ({"model": "{name: "}, "model .name: "),
        ({"dataset": "moon"}, "--dataset moon: .*known: digits"),
        ({"model": "lenet", "dataset": "cifar10"}, "lenet cannot train on cifar10: .*28×28"),
        ({"batch_size": 0}, "--batch-size 0: "),
        ({"parts": "1"}, "--parts 1: '1' .*allowed: whole numbers from 2"),
        ({"parts": "2,"}, "--parts 2,: '' "),
        ({"parts": "two"}, "--parts two: 'two' "),
        ({"parts": "9" * 5000}, "--parts 9+: '9+' .*allowed: whole numbers from 2"),
        ({"parts": "8"}, "--parts 8: .*7 blocks: flatten, fc1"),
    ],
)
def test_input_errors_name_value_and_allowed_values(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model_report(**arguments)  # type: ignore[arg-type]


def test_model_command(capsys: pytest.CaptureFixture[str]) -> None:
    cli.app(["model", MLP, "--batch-size", "4", "--parts", "2"], standalone_mode=False)
    text = capsys.readouterr().out
    assert text.startswith("mlp hidden=[30, 20] on fashion_mnist\nimages of 1×28×28, 10 classes, batch 4;")
    assert len(re.findall(r"split_points: \[\w+\]", text)) == 1


def test_error_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # makes the import fail
    monkeypatch.delitem(sys.modules, "trainer.training.profile", raising=False)
    with pytest.raises(InputError, match="torch"):
        model_report()


def test_input_errors_do_not_need_torch() -> None:
    command = (
        "import sys; from orchestrator import cli\n"
        "try: cli.app(['model', 'mlp', '--parts', '1'], standalone_mode=False)\n"
        "except Exception as error: print(error)\n"
        "print('loaded:', *sorted({'torch', 'mpi4py', 'altair'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", command], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout.startswith("--parts 1: ")
    assert done.stdout.endswith("loaded:\n")
