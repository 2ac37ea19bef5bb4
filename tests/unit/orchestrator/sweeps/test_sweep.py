"""Expansion of sweep files into runs: order, duplicates, skip entries and options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.sweeps.load import Sweep, load_sweep
from tests.unit.conftest import PROJECT
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec

Load = Callable[..., Sweep]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """`load(blocks, *sets, nodes=…)`: load a sweep with this text as `blocks:`.

    head: other lines of the file. options: of `load_sweep`.
    """

    def load(blocks: str, *sets: str, base: str = "{}", head: str = "", **options: Any) -> Sweep:
        path = tmp_path / "s.yml"
        path.write_text(f"name: s\nbase: {base}\n{head}\nblocks: {blocks}\n")
        return load_sweep(path, sets, **options)

    return load


def field_values(sweep: Sweep, *fields: str) -> list[tuple[Any, ...]]:
    """Field values of each run: the name of a component, or a parameter such as `strategy.init`."""

    def value(run: RunSpec, field: str) -> Any:
        name, _, parameter = field.partition(".")
        if parameter:
            return getattr(getattr(run, name), parameter)
        return run.name_of(name) if name in REGISTRIES else getattr(run, name)

    return [tuple(value(run, field) for field in fields) for run in sweep.runs]


# Expansion


def test_runs_have_the_order_of_the_file_and_the_last_axis_varies_fastest(load: Load) -> None:
    sweep = load("[{axes: {strategy: [one_shot, all_reduce], nodes: [2, 1], seed: [0, 1]}}]")
    names = ("one_shot", "all_reduce")
    assert field_values(sweep, "strategy", "nodes", "seed") == [
        (s, n, i) for s in names for n in (2, 1) for i in (0, 1)
    ]


def test_blocks_are_expanded_in_order_and_share_the_base(load: Load) -> None:
    sweep = load(
        "[{base: {strategy: serial}}, {base: {strategy: ddp, lr: 0.2}, axes: {nodes: [1, 2]}}]",
        base="{lr: 0.1, epochs: 7}",
    )
    assert field_values(sweep, "strategy", "nodes", "lr", "epochs") == [
        ("serial", 1, 0.1, 7),
        ("ddp", 1, 0.2, 7),
        ("ddp", 2, 0.2, 7),
    ]


def test_axis_overrides_block_base_overrides_file_base(load: Load) -> None:
    sweep = load(
        "[{base: {lr: 0.2}, axes: {lr: [0.3]}}, {base: {lr: 0.2}}, {}]", base="{strategy: ddp, lr: 0.1}"
    )
    assert field_values(sweep, "lr") == [(0.3,), (0.2,), (0.1,)]


def test_duplicate_runs_are_removed(load: Load) -> None:
    sweep = load(
        "[{axes: {nodes: [1, 2, 1]}}, {base: {lr: 0.05}, axes: {nodes: [2, 3]}}, {base: {timeout_s: 9}}]",
        base="{strategy: ddp}",
    )
    assert field_values(sweep, "nodes") == [(1,), (2,), (3,)]


def test_parameters_of_components(load: Load) -> None:
    sweep = load("[{base: {strategy: one_shot}, axes: {strategy.init: [independent, broadcast]}}]")
    assert field_values(sweep, "strategy.init") == [("independent",), ("broadcast",)]
    sweep = load("[{base: {strategy: serial, model.dropout: 0.1}}]")  # parameter of the default model
    assert field_values(sweep, "model", "model.dropout") == [("lenet", 0.1)]
    sweep = load(
        "[{axes: {model: [{name: lenet, dropout: 0.3}], model.dropout: [0.1]}}]", base="{strategy: ddp}"
    )
    assert field_values(sweep, "model.dropout") == [(0.1,)]


@pytest.mark.parametrize(
    ("entry", "remaining"),
    [
        ("{strategy: ddp}", [("one_shot", 1), ("one_shot", 2)]),
        ("{nodes: 2}", [("one_shot", 1), ("ddp", 1)]),
        ("{strategy: ddp, nodes: 2}", [("one_shot", 1), ("one_shot", 2), ("ddp", 1)]),
        ("{strategy: [ddp, one_shot], nodes: [1, 5]}", [("one_shot", 2), ("ddp", 2)]),
        (
            "{seed: 0, strategy: ddp}",
            [("one_shot", 1), ("one_shot", 2)],
        ),  # matches a field remaining at its default
        ("{strategy.init: independent}", [("ddp", 1), ("ddp", 2)]),
    ],
)
def test_skip(load: Load, entry: str, remaining: list[tuple[str, int]]) -> None:
    strategies = "[{name: one_shot, init: independent}, ddp]"
    sweep = load(f"[{{axes: {{strategy: {strategies}, nodes: [1, 2]}}, skip: [{entry}]}}]")
    assert field_values(sweep, "strategy", "nodes") == remaining


@pytest.mark.parametrize(
    "entry", ["{dataset: mnist}", "{strategy: ddp, nodes: 9}", "{strategy.init: broadcast}"]
)
def test_skip_that_matches_nothing(load: Load, entry: str) -> None:
    blocks = (
        f"[{{axes: {{strategy: [serial, ddp], nodes: [1, 2]}}, skip: [{{strategy: serial}}, {entry}]}}]"
    )
    with pytest.raises(
        InputError, match=r"blocks\[0\]\.skip\[1\]: matches none of the block's 4 combinations"
    ):
        load(blocks)
    assert len(load(blocks, "seed=1").runs) == 2  # an option may have removed what it matches


def test_skip_entry_within_another_one_is_no_error(load: Load) -> None:
    skip = "[{strategy: serial}, {strategy: serial, nodes: 2}]"
    blocks = f"[{{axes: {{strategy: [serial, ddp], nodes: [1, 2]}}, skip: {skip}}}]"
    assert field_values(load(blocks), "strategy", "nodes") == [("ddp", 1), ("ddp", 2)]


@pytest.mark.parametrize(
    "entry", ["{transport: mpi}", "{strategy.init: broadcast}", "{model.dropout: 0.5}"]
)
def test_skip_matches_defaults(load: Load, entry: str) -> None:
    sweep = load(
        f"[{{axes: {{nodes: [1, 2]}}, skip: [{entry}]}}, {{base: {{nodes: 3}}}}]",
        base="{strategy: one_shot}",
    )
    assert field_values(sweep, "nodes") == [(3,)]


@pytest.mark.parametrize(
    ("entry", "remaining"),
    [
        (
            "{strategy.compression: none}",
            [{"name": "top_k", "ratio": 0.1}, {"name": "top_k", "ratio": 0.2}],
        ),
        ("{strategy.compression: top_k}", [{"name": "none"}]),
        (
            "{strategy.compression: {name: top_k, ratio: 0.2}}",
            [{"name": "none"}, {"name": "top_k", "ratio": 0.1}],
        ),
        ("{strategy: {name: all_reduce, compression: top_k}}", [{"name": "none"}]),
        ("{strategy.compression: [none, top_k], seed: 0}", []),
    ],
)
def test_skip_matches_nested_components(load: Load, entry: str, remaining: list[Any]) -> None:
    axes = "{strategy.compression: [none, {name: top_k, ratio: 0.1}, {name: top_k, ratio: 0.2}]}"
    blocks = f"[{{axes: {axes}, skip: [{entry}]}}, {{base: {{nodes: 3}}}}]"
    *runs, _ = load(blocks, base="{strategy: all_reduce}").runs
    assert [run.model_dump(mode="json")["strategy"]["compression"] for run in runs] == remaining


def test_skip_matches_threads_derived_from_the_quota(load: Load) -> None:
    blocks = "[{axes: {cpus: [1, 2, 4.5], processes_per_node: [1, 2]}, skip: [{threads: [2, 4]}]}]"
    assert field_values(load(blocks, base="{strategy: ddp}"), "cpus", "processes_per_node", "threads") == [
        (1.0, 1, 1),
        (1.0, 2, 1),
        (2.0, 2, 1),
    ]


def test_node_speed_is_an_axis(load: Load) -> None:
    blocks = "[{axes: {nodes: [2, 3], node_speed: [null, {-1: 0.5}]}}]"
    assert field_values(load(blocks, base="{strategy: ddp}"), "nodes", "node_speed") == [
        (2, None),
        (2, [1.0, 0.5]),
        (3, None),
        (3, [1.0, 1.0, 0.5]),
    ]
    sets = field_values(
        load("[{axes: {nodes: [2, 3]}}]", "node_speed={0: 0.5}", base="{strategy: ddp}"), "node_speed"
    )
    assert sets == [([0.5, 1.0],), ([0.5, 1.0, 1.0],)]


@pytest.mark.parametrize(
    ("entry", "remaining"),
    [
        ("{node_speed: null}", 3),
        ("{node_speed: {0: 0.5}}", 3),
        ("{node_speed: {-2: 0.5}}", 3),
        ("{node_speed: [0.5, 1]}", 3),
        ("{node_speed: [{0: 0.5}, {1: 0.25}]}", 2),
        ("{node_speed: [null, [1, 0.25]]}", 2),
    ],
)
def test_skip_matches_node_speed_in_every_form(load: Load, entry: str, remaining: int) -> None:
    speeds = "[null, [0.5, 1], {1: 0.25}, {1: 0.5}]"
    blocks = f"[{{axes: {{node_speed: {speeds}}}, skip: [{entry}]}}]"
    assert len(load(blocks, base="{strategy: ddp, nodes: 2}").runs) == remaining


def test_node_speed_that_does_not_fit_names_its_place(load: Load) -> None:
    with pytest.raises(InputError, match=r"blocks\[0\]\.axes\.node_speed\[1\]: .*node 2.*allowed: 0 to 1"):
        load("[{axes: {node_speed: [null, {2: 0.5}]}}]", base="{strategy: ddp, nodes: 2}")
    with pytest.raises(InputError, match=r"base\.node_speed: .*speed 0; allowed: > 0"):
        load("[{base: {node_speed: [1, 0]}}]", base="{strategy: ddp, nodes: 2}")


@pytest.mark.parametrize("entry", ["{strategy: dpp}", "{nodes: two}", "{transport: tcp}"])
def test_invalid_skip_value(load: Load, entry: str) -> None:
    with pytest.raises(InputError, match="skip"):
        load(f"[{{base: {{strategy: ddp}}, skip: [{entry}]}}]")


def test_skip_entry_in_long_form(load: Load) -> None:
    blocks = "[{axes: {strategy: [serial, ddp]}, skip: [{strategy: {name: ddp}}]}]"
    assert field_values(load(blocks), "strategy") == [("serial",)]


def test_sweep_without_runs_is_an_error(load: Load) -> None:
    with pytest.raises(InputError, match="skip"):
        load("[{base: {strategy: ddp}, skip: [{strategy: ddp}]}]")


# Repetitions


def test_repeat_of_the_file_holds_for_every_block(load: Load) -> None:
    blocks = "[{base: {strategy: serial}}, {axes: {strategy: [ddp], nodes: [1, 2]}}]"
    assert field_values(load(blocks, head="repeat: 2"), "strategy", "nodes", "seed") == [
        ("serial", 1, 0),
        ("serial", 1, 1),
        *[("ddp", nodes, seed) for nodes in (1, 2) for seed in (0, 1)],
    ]


@pytest.mark.parametrize(
    ("block", "head", "seeds"),
    [
        ("{repeat: 3}", "", [0, 1, 2]),
        ("{repeat: 1}", "repeat: 5", [0]),  # the block's replaces the file's
        ("{base: {seed: 7}, repeat: 2}", "", [7, 8]),
        ("{base: {seed: 4294967295}, repeat: 1}", "", [4294967295]),
        ("{repeat: 4, skip: [{seed: [1, 2]}]}", "", [0, 3]),
        ("{axes: {seed: [3, 1]}}", "", [3, 1]),
    ],
)
def test_seeds_of_a_block(load: Load, block: str, head: str, seeds: list[int]) -> None:
    sweep = load(f"[{block}]", base="{strategy: ddp}", head=head)
    assert [run.seed for run in sweep.runs] == seeds


def test_repeat_does_not_change_runs(load: Load) -> None:
    repeated = load("[{repeat: 3}]", base="{strategy: ddp}").runs
    assert repeated == load("[{axes: {seed: [0, 1, 2]}}]", base="{strategy: ddp}").runs


@pytest.mark.parametrize(
    ("block", "sets", "seeds"),
    [
        ("{}", [], [0, 1, 2]),
        ("{repeat: 5}", [], [0, 1, 2]),
        ("{base: {seed: 4}}", [], [4, 5, 6]),
        ("{axes: {seed: [9, 5, 6, 7]}}", [], [5, 6, 7]),
        ("{axes: {seed: [9, 5]}}", ["seed=2"], [2, 3, 4]),
    ],
)
def test_repeat_option_starts_at_the_smallest_seed(
    load: Load, block: str, sets: list[str], seeds: list[int]
) -> None:
    sweep = load(f"[{block}]", *sets, base="{strategy: ddp}", repeat=3)
    assert [run.seed for run in sweep.runs] == seeds
    assert sweep.overrides[-1] == "--repeat 3"


def test_set_seed_replaces_repetitions(load: Load) -> None:
    """`--set` fixes a field in all runs."""
    sweep = load("[{repeat: 5}, {axes: {nodes: [2]}}]", "seed=3", base="{strategy: ddp}", head="repeat: 2")
    assert field_values(sweep, "nodes", "seed") == [(1, 3), (2, 3)]


@pytest.mark.parametrize("seed", ["0", "[0]"])
def test_quick_seed_replaces_repetitions(load: Load, seed: str) -> None:
    blocks = "[{base: {strategy: ddp}}, {base: {strategy: one_shot}, quick: {seed: [0, 1]}}]"
    sweep = load(blocks, head=f"repeat: 5\nquick: {{seed: {seed}}}", quick=True)
    assert field_values(sweep, "strategy", "seed") == [("ddp", 0), ("one_shot", 0), ("one_shot", 1)]


# Options


def test_set_overrides_bases_and_axes(load: Load) -> None:
    blocks = "[{axes: {lr: [0.1, 0.2], seed: [0, 1]}}, {base: {lr: 0.3}}]"
    sweep = load(blocks, "lr=1e-3", "model={name: mlp, hidden: [4]}", base="{strategy: ddp, lr: 9}")
    assert field_values(sweep, "lr", "seed") == [(1e-3, 0), (1e-3, 1)]
    assert sweep.runs[0].model.hidden == [4]  # type: ignore[attr-defined]
    assert sweep.overrides == ["--set lr=1e-3", "--set model={name: mlp, hidden: [4]}"]


def test_set_parameter(load: Load) -> None:
    blocks = "[{base: {strategy: {name: one_shot, init: broadcast}}, axes: {nodes: [1, 2]}}]"
    assert field_values(load(blocks, "strategy.init=independent"), "strategy.init", "nodes") == [
        ("independent", 1),
        ("independent", 2),
    ]


@pytest.mark.parametrize(
    "where",
    [
        "base",
        "axes",
        pytest.param("file"),
    ],
)
def test_set_component_drops_parameters_of_the_previous_one(load: Load, where: str) -> None:
    parameter = {"base": "model.dropout: 0.1", "axes": "model.dropout: [0.1, 0.2]", "file": ""}[where]
    block = f"[{{{'axes' if where == 'axes' else 'base'}: {{{parameter}}}}}]"
    base = "{strategy: ddp, model: lenet" + (", model.dropout: 0.1}" if where == "file" else "}")
    assert field_values(load(block, "model=mlp", base=base), "model") == [("mlp",)]


def test_later_set_wins(load: Load) -> None:
    sweep = load(
        "[{}]", "lr=0.1", "lr=0.2", "strategy=one_shot", "strategy.init=independent", base="{strategy: ddp}"
    )
    assert field_values(sweep, "lr", "strategy.init") == [(0.2, "independent")]


def test_nodes_option_replaces_only_nodes_axes(load: Load) -> None:
    blocks = "[{base: {strategy: serial}}, {base: {strategy: ddp}, axes: {nodes: [8, 9], seed: [0, 1]}}]"
    sweep = load(blocks, nodes="1, 4")
    assert field_values(sweep, "strategy", "nodes", "seed") == [
        ("serial", 1, 0),
        *[("ddp", nodes, seed) for nodes in (1, 4) for seed in (0, 1)],
    ]
    assert sweep.overrides == ["--nodes 1, 4"]


def test_options_do_not_affect_later_loads(load: Load) -> None:
    load("[{}]", "lr=0.9", "seed=3", base="{strategy: ddp}")
    assert field_values(load("[{}]", base="{strategy: ddp}"), "lr", "seed") == [(0.05, 0)]


def test_source_is_the_text_of_the_file(load: Load) -> None:
    assert load("[{base: {strategy: serial}}]  # why").source.endswith("# why\n")


# Shipped sweeps


@pytest.mark.parametrize("path", sorted((PROJECT / "sweeps").glob("*.yml")), ids=lambda path: path.stem)
def test_shipped_sweep(path: Path) -> None:
    sweep = load_sweep(path)
    assert sweep.spec.name == path.stem
    assert sweep.spec.description
    assert len({run.key for run in sweep.runs}) == len(sweep.runs) > 0
    assert any(run.name_of("strategy") == "serial" for run in sweep.runs), "no baseline to compare with"
