"""Mistakes in the expansion of sweep files: order, precedence, duplicates, skip entries, seeds, options."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands.labs import absent
from orchestrator.errors import InputError
from orchestrator.shipped import SWEEPS
from orchestrator.sweeps.load import Sweep, load_sweep
from tests.unit.conftest import PROJECT
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec

Load = Callable[..., Sweep]
DDP, ONE_SHOT = "{strategy: ddp}", "{strategy: one_shot}"


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """`load(blocks, base, *sets, nodes=…)`: load a sweep with this text as `blocks:` and `base:`.

    head: other lines of the file. options: of `load_sweep`.
    """

    def load(blocks: str, base: str = "{}", *sets: str, head: str = "", **options: Any) -> Sweep:
        path = tmp_path / "s.yml"
        path.write_text(f"name: s\nbase: {base}\n{head}\nblocks: {blocks}\n")
        return load_sweep(path, sets, **options)

    return load


def values(sweep: Sweep, fields: str) -> list[Any]:
    """Of each run the values of the fields: the name of a component, or a parameter as `strategy.init`."""

    def value(run: RunSpec, field: str) -> Any:
        name, _, parameter = field.partition(".")
        if parameter:
            return run.model_dump(mode="json")[name][parameter]
        return run.name_of(name) if name in REGISTRIES else getattr(run, name)

    found = [tuple(value(run, field) for field in fields.split()) for run in sweep.runs]
    return found if " " in fields else [only for (only,) in found]


def test_a_file_expands_to_its_runs(load: Load) -> None:
    for base, blocks, fields, expected in (
        # The order of the file, in which the last axis varies fastest; equal runs are one.
        ("{}", "[{axes: {strategy: [one_shot, all_reduce], nodes: [2, 1], seed: [0, 1]}}]",
         "strategy nodes seed", [*product(("one_shot", "all_reduce"), (2, 1), (0, 1))]),
        (DDP, "[{axes: {nodes: [1, 2, 1]}}, {base: {lr: 0.05}, axes: {nodes: [2]}}]", "nodes", [1, 2]),
        (DDP, "[{}, {base: {timeout_s: 9}}]", "timeout_s", [600]),
        # A block replaces what the file says, and an axis what its block says.
        ("{strategy: ddp, lr: 1, epochs: 7}", "[{base: {lr: 2}, axes: {lr: [3]}}, {base: {lr: 2}}, {}]",
         "lr epochs", [(3, 7), (2, 7), (1, 7)]),
        # Parameters of components, also of a default one, replace those in its long form.
        (ONE_SHOT, "[{axes: {strategy.init: [independent, broadcast]}}]", "strategy.init",
         ["independent", "broadcast"]),
        ("{strategy: serial, model.dropout: 0.1}", "[{}]", "model model.dropout", [("lenet", 0.1)]),
        (DDP, "[{axes: {model: [{name: lenet, dropout: 0}], model.dropout: [0.1]}}]", "model.dropout",
         [0.1]),
        (DDP, "[{axes: {nodes: [2, 3], node_speed: [null, {-1: 0.5}]}}]", "nodes node_speed",
         [(2, None), (2, [1.0, 0.5]), (3, None), (3, [1.0, 1.0, 0.5])]),
        # `repeat` of the file or, instead, of the block; seeds from that of the base on.
        (DDP, "[{repeat: 3}]", "seed", [0, 1, 2]),
        (DDP, "[{base: {seed: 7}, repeat: 2}]", "seed", [7, 8]),
        (DDP, "[{base: {seed: 4294967295}, repeat: 1}]", "seed", [4294967295]),
        (DDP, "[{repeat: 4, skip: [{seed: [1, 2]}]}]", "seed", [0, 3]),
        (DDP + "\nrepeat: 2", "[{repeat: 1}, {axes: {nodes: [2, 3]}}]", "nodes seed",
         [(1, 0), *product((2, 3), (0, 1))]),
    ):  # fmt: skip
        assert values(load(blocks, base), fields) == expected


STRATEGIES = "{strategy: [{name: one_shot, init: independent}, ddp], nodes: [1, 2]}"
COMPRESSIONS = "{strategy.compression: [none, {name: top_k, ratio: 0.1}, {name: top_k, ratio: 0.2}]}"
SPEEDS = "{node_speed: [null, [0.5, 1], {1: 0.25}, {1: 0.5}]}"
THREADS = "{cpus: [1, 2, 4.5], processes_per_node: [1, 2]}"
TWO, SUM = "{strategy: ddp, nodes: 2}", "{strategy: all_reduce}"


def test_skip_leaves_out_what_matches_in_every_form(load: Load) -> None:
    another = "{base: {strategy: serial, nodes: 1, processes_per_node: 1, node_speed: null}}"
    for base, axes, entry, left in (
        ("{}", STRATEGIES, "{strategy: ddp}", [0, 1]),
        ("{}", STRATEGIES, "{strategy: ddp, nodes: 2}", [0, 1, 2]),
        ("{}", STRATEGIES, "{strategy: [ddp, one_shot], nodes: [1, 5]}", [1, 3]),
        ("{}", STRATEGIES, "{seed: 0, strategy: ddp}", [0, 1]),  # seed is a default
        ("{}", STRATEGIES, "{transport: mpi, nodes: 2}", [0, 2, 3]),  # the default of one_shot
        ("{}", STRATEGIES, "{model.dropout: 0.5, nodes: 2}", [0, 2]),
        ("{}", STRATEGIES, "{strategy.init: independent}", [2, 3]),
        (SUM, COMPRESSIONS, "{strategy.compression: none}", [1, 2]),
        (SUM, COMPRESSIONS, "{strategy.compression: {name: top_k, ratio: 0.2}}", [0, 1]),
        (SUM, COMPRESSIONS, "{strategy: {name: all_reduce, compression: top_k}}", [0]),
        (SUM, COMPRESSIONS, "{strategy.compression: [none, top_k], seed: 0}", []),
        (DDP, THREADS, "{threads: [2, 4]}", [0, 1, 3]),  # derived from the quota
        (TWO, SPEEDS, "{node_speed: {0: 0.5}}", [0, 2, 3]),
        (TWO, SPEEDS, "{node_speed: {-2: 0.5}}", [0, 2, 3]),
        (TWO, SPEEDS, "{node_speed: [0.5, 1]}", [0, 2, 3]),
        (TWO, SPEEDS, "{node_speed: [{0: 0.5}, {1: 0.25}]}", [0, 3]),
        (TWO, SPEEDS, "{node_speed: [null, [1, 0.25]]}", [1, 3]),
    ):
        all_runs = load(f"[{{axes: {axes}}}]", base).runs
        *runs, _ = load(f"[{{axes: {axes}, skip: [{entry}]}}, {another}]", base).runs
        assert runs == [all_runs[number] for number in left], entry


def test_a_skip_entry_that_matches_nothing_is_an_error(load: Load) -> None:
    axes, wrong = "{strategy: [serial, ddp], nodes: [1, 2]}", r"skip\[1\]: matches none of the block's 4 "
    for entry in ("{dataset: mnist}", "{strategy: ddp, nodes: 9}", "{strategy.init: broadcast}"):
        blocks = f"[{{axes: {axes}, skip: [{{strategy: serial}}, {entry}]}}]"
        with pytest.raises(InputError, match=wrong):
            load(blocks)
        assert len(load(blocks, "{}", "seed=1").runs) == 2  # an option may have removed what it matches
    within = f"[{{axes: {axes}, skip: [{{strategy: serial}}, {{strategy: serial, nodes: 2}}]}}]"
    assert values(load(within), "strategy nodes") == [("ddp", 1), ("ddp", 2)]
    with pytest.raises(InputError, match="no runs; skip excludes every combination"):
        load("[{skip: [{strategy: ddp}]}]", DDP)


def test_options_replace_what_the_file_says(load: Load) -> None:
    for base, blocks, sets, options, fields, expected in (
        (DDP, "[{axes: {lr: [0.1, 0.2], seed: [0, 1]}}, {base: {lr: 0.3}}]", ["lr=1e-3"], {}, "lr seed",
         [(1e-3, 0), (1e-3, 1)]),
        (DDP, "[{}]", ["model={name: mlp, hidden: [4]}"], {}, "model.hidden", [[4]]),
        ("{strategy: {name: one_shot, init: broadcast}}", "[{axes: {nodes: [1, 2]}}]",
         ["strategy.init=independent"], {}, "strategy.init nodes", [*product(["independent"], (1, 2))]),
        (DDP, "[{}]", ["lr=0.1", "lr=0.2", "strategy=one_shot", "strategy.init=independent"], {},
         "lr strategy.init", [(0.2, "independent")]),  # the later one wins
        (DDP, "[{axes: {nodes: [2, 3]}}]", ["node_speed={0: 0.5}"], {}, "node_speed",
         [[0.5, 1.0], [0.5, 1.0, 1.0]]),
        # Another component drops the parameters of the one of the file, wherever they are.
        (DDP, "[{base: {model.dropout: 0.1}}]", ["model=mlp"], {}, "model", ["mlp"]),
        (DDP, "[{axes: {model.dropout: [0.1, 0.2]}}]", ["model=mlp"], {}, "model", ["mlp"]),
        ("{strategy: ddp, model: lenet, model.dropout: 0.1}", "[{}]", ["model=mlp"], {}, "model", ["mlp"]),
        # --nodes replaces axes alone.
        (DDP, "[{base: {strategy: serial}}, {axes: {nodes: [8], seed: [0, 1]}}]", [], {"nodes": "1, 4"},
         "strategy nodes seed", [("serial", 1, 0), *product(["ddp"], (1, 4), (0, 1))]),
        # --repeat starts at the smallest seed, and --set seed replaces repetitions.
        (DDP, "[{repeat: 5}]", [], {"repeat": 3}, "seed", [0, 1, 2]),
        (DDP, "[{base: {seed: 4}}]", [], {"repeat": 3}, "seed", [4, 5, 6]),
        (DDP, "[{axes: {seed: [9, 5, 6, 7]}}]", [], {"repeat": 3}, "seed", [5, 6, 7]),
        (DDP, "[{axes: {seed: [9, 5]}}]", ["seed=2"], {"repeat": 3}, "seed", [2, 3, 4]),
        (DDP, "[{repeat: 5}, {axes: {nodes: [2]}}]", ["seed=3"], {"head": "repeat: 2"}, "nodes seed",
         [(1, 3), (2, 3)]),
        ("{}", "[{base: {strategy: ddp}}, {base: {strategy: one_shot}, quick: {seed: [0, 1]}}]", [],
         {"quick": True, "head": "repeat: 5\nquick: {seed: [0]}"}, "strategy seed",
         [("ddp", 0), ("one_shot", 0), ("one_shot", 1)]),
    ):  # fmt: skip
        sweep = load(blocks, base, *sets, **options)
        assert values(sweep, fields) == expected
        given = {name: value for name, value in options.items() if name != "head"}
        texts = [f"--{name}" if value is True else f"--{name} {value}" for name, value in given.items()]
        assert sweep.overrides == [f"--set {each}" for each in sets] + texts


def test_shipped_sweeps_have_a_baseline_and_labs_a_source_and_a_quick_form(tmp_path: Path) -> None:
    for path in sorted(SWEEPS.rglob("*.yml")):
        sweep = load_sweep(path)
        assert sweep.source == path.read_text()
        assert (sweep.spec.name, bool(sweep.spec.description)) == (path.stem, True)
        serial = [run for run in sweep.runs if run.name_of("strategy") == "serial"]
        assert any(run.strategy.trains for run in serial), path
        if sweep.spec.lab:
            assert "# Source: " in sweep.source
            quick = load_sweep(path, quick=True)
            assert not absent(quick, tmp_path)  # needs no download
            trained = [
                sum(run.epochs * run.dataset.train_samples for run in each.runs) for each in (quick, sweep)
            ]
            assert trained[0] < trained[1]
            page = (PROJECT / "docs" / "labs" / f"{path.stem}.md").read_text()
            assert all(f"- {fact}\n" in page for fact in sweep.spec.lab.differences(sweep.runs))
