"""Mistakes in messages about a sweep file or an option: file, key path, value, what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.sweeps.load import load_sweep
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec

FIELDS = ", ".join(RunSpec.model_fields)
KEYS = (
    "name, description, lab, runtime, base, repeat, until_decided, budget, tolerance, questions, quick, "
    "requirements, blocks, ray, slurm"
)
BLOCK_KEYS = "name, base, axes, repeat, skip, published, quick"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.yml"


def load_error(path: Path, text: str, *sets: str, **options: Any) -> str:
    """The error message for a file with this text and these options."""
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_sweep(path, sets, **options)
    return str(caught.value)


def test_the_keys_of_a_file(path: Path) -> None:
    for text, messages in (
        *((text, [f"must be a mapping with the keys {KEYS}"]) for text in ("", "# x", "- a: s", "serial")),
        ("blocks: [{}]", ["name: is missing"]),
        ("name: s", ["blocks: is missing"]),
        ("name: s\nblocks: []", ["blocks: []: List should have at least 1 item after validation, not 0"]),
        ("name: s\nblock: [{}]", [f"block: unknown key (did you mean 'blocks'?); allowed: {KEYS}"]),
        ("name: s\nblocks: [{}, {axis: {}}]",
         [f"blocks[1].axis: unknown key (did you mean 'axes'?); allowed: {BLOCK_KEYS}"]),
        ("name: s\nblocks: [{axes: {nodes: 3}}]", ["blocks[0].axes.nodes: 3 is not allowed; it must be"]),
        ("name: s\nblocks: [{axes: [nodes]}]", ["blocks[0].axes: ['nodes'] is not allowed; it must"]),
        ("name: My Sweep\nblocks: [{}]", ["name: 'My Sweep' is not allowed; it must be 1 to 64 lower"]),
        ('name: "s\\n"\nblocks: [{}]', [r"name: 's\n' is not allowed"]),
        ("name: s\nruntime: nomad\nblocks: [{}]", ["runtime: 'nomad' is not allowed; it must be docker"]),
        ("name: s\nslurm: {x: 1}\nblocks: [{}]", ["slurm.x: unknown key; allowed: "]),
        ("name: 3\nbase: 4\nfoo: 5\nblocks: [{bsae: {}}]",
         ["name: 3 is not allowed; it must be a valid string", "base: 4 is not allowed",
          "blocks[0].bsae: unknown key (did you mean 'base'?)", "foo: unknown key"]),
    ):  # fmt: skip
        lines = load_error(path, text).splitlines()
        starts = [f"{path}: {message}" for message in messages]
        assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts
    for name in ("x" * 5000, "[" + "1, " * 3000 + "]"):
        assert len(load_error(path, f"name: {name}\nblocks: [{{}}]")) < len(str(path)) + 250


PLACES = {
    "base: {{strategy: ddp, {}: {}}}\nblocks: [{{}}]": "base",
    "blocks: [{{base: {{strategy: ddp}}}}, {{base: {{strategy: ddp, {}: {}}}}}]": "blocks[1].base",
    "blocks: [{{base: {{strategy: ddp}}, axes: {{{}: [{}]}}}}]": "blocks[0].axes",
    "blocks: [{{base: {{strategy: ddp}}, skip: [{{{}: {}}}]}}]": "blocks[0].skip[0]",
}


def test_an_unknown_field_of_a_run_is_named_with_its_place(path: Path) -> None:
    for text, place in PLACES.items():
        for field in ("lrr", "Strategy", "lr.x", "nodes.count", "x.y", "''"):
            message = load_error(path, "name: s\n" + text.format(field, 1))
            near = {"lrr": " (did you mean 'lr'?)", "Strategy": " (did you mean 'strategy'?)"}.get(
                field, ""
            )
            name = repr(field.strip("'"))
            assert message == f"{path}: {place}: unknown key {name}{near}; allowed: {FIELDS}"


def test_a_bad_value_is_named_with_its_place_or_option(path: Path) -> None:
    by_option = "name: s\nbase: {strategy: ddp, lr: 1}\nblocks: [{axes: {seed: [1, 2]}}]"
    for field, value, message in (
        ("lr", ".nan", "nan is not allowed; it must be a finite number"),
        ("epochs", "1e1", "10.0 is not allowed; it must be a valid integer"),
        ("processes_per_node", "65", "65 is not allowed; it must be less than or equal to 64"),
        ("transport", "mpi", "ddp cannot use mpi; allowed: gloo, nccl"),
        ("model.dropout", "1", "1 is not allowed; it must be less than 1"),
    ):
        for text, place in [*PLACES.items()][:3]:
            index = "[0]" if "axes" in place else ""
            found = load_error(path, "name: s\n" + text.format(field, value))
            assert found == f"{path}: {place}.{field}{index}: {message}"
        found = load_error(path, by_option, f"{field}={value}")
        assert found == f"--set {field}={value}: {message}"


def test_an_unknown_name_lists_the_known_ones(path: Path) -> None:
    for field, registry in REGISTRIES.items():
        text = f"name: s\nblocks: [{{base: {{strategy: ddp}}, axes: {{{field}: [qqqq]}}}}]"
        assert registry.known.startswith(", ".join(registry.entries))
        message = f"'qqqq': unknown {registry.kind}; known: {registry.known}"
        assert load_error(path, text) == f"{path}: blocks[0].axes.{field}[0]: {message}"
        assert load_error(path, text, f"{field}=qqqq") == f"--set {field}=qqqq: {message}"


LINK = "strategy: ddp, nodes: 2, link"
FAULT = "strategy: ddp, nodes: 2, faults"
MEDIAN = "strategy: {name: local_sgd, aggregation: median}, nodes: 3, byzantine"
COMPRESSION = "strategy.compression"
SYNTHETIC = "dataset: {name: synthetic, samples: 9}"
TEN = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"
CROSS = (
    "100,001 combinations of the axes' values; allowed: at most 10,000, with those that skip leaves out. "
    "Most are in blocks[1]: seed (10) × lr (10) × epochs (10) × batch_size (10) × nodes (10)"
)
FIVE_AXES = ", ".join(f"{name}: {TEN}" for name in ("seed", "lr", "epochs", "batch_size", "nodes"))


def test_a_block(path: Path) -> None:
    for block, message in (
        ("{}", ".strategy: is missing"),
        ("{base: {strategy.init: x}}", ".base.strategy.init: sets a parameter, but PATH: blocks[0] has "),
        ("{base: {strategy: {name: one_shot, inti: x}}}",
         ".base.strategy.inti: unknown key (did you mean 'init'?); allowed: init"),
        ("{axes: {strategy: [ddp, {name: one_shot, init: x}]}}",
         ".axes.strategy[1].init: 'x' is not allowed; it must be 'broadcast' or 'independent'"),
        (f"{{base: {{strategy: all_reduce}}, axes: {{{COMPRESSION}: [sign, {{name: sign, ratio: 1}}]}}}}",
         ".axes.strategy.compression[1].ratio: unknown key; allowed: no parameters"),
        ("{base: {strategy: {name: ddp, compression: top_k}}}",
         ".base.strategy.compression: 'top_k': unknown compression of ddp; known: none, fp16, power_sgd"),
        ("{base: {strategy: ddp, warm_up_epochs: 4}}",
         ".base.warm_up_epochs: 4 epochs of warm-up are more than epochs; allowed: 0 to 3"),
        ("{base: {strategy: serial}, axes: {nodes: [1, 2]}}", ".axes.nodes[1]: serial cannot run on 2"),
        (f"{{base: {{strategy: ddp, {SYNTHETIC}}}, axes: {{nodes: [4, 5], processes_per_node: [2]}}}}",
         ".axes.processes_per_node[0]: 10 ranks (5 × 2) are more than the 9 training samples"),
        ("{base: {strategy: ddp, nodes: 2}, axes: {node_speed: [null, {2: 0.5}]}}", ".axes.node_speed[1]"),
        ("{base: {strategy: ddp}, axes: {seed: []}}", ".axes.seed: is an empty list; at least one value"),
        ("{base: {strategy: ddp}, skip: [{strategy: dpp}]}", ".skip[0].strategy: 'dpp': unknown "),
        ("{base: {strategy: ddp}, skip: [{nodes: [1, two]}]}", ".skip[0].nodes: 'two' is not allowed"),
        # Repetitions
        ("{base: {strategy: ddp}, repeat: 3, axes: {seed: [0]}}",
         ".repeat: 3 cannot be combined with PATH: blocks[0].axes.seed, which is [0]; allowed: one"),
        ("{base: {repeat: 3}}", ".base: 'repeat' is not a field of a run; write it beside"),
        ("{base: {strategy: ddp, seed: 4294967295}, repeat: 2}",
         ".repeat (its seeds): 4294967296 is not allowed; it must be less than 4294967296"),
        # Forms in several parts
        (f"{{base: {{{FAULT}: [{{at: {{epoch: 1}}}}]}}}}",
         ".base.faults[0]: {'at': {'epoch': 1}}: none instead of one action; allowed: exactly one of"),
        (f"{{base: {{{FAULT}: [{{kill: {{nod: 1}}, at: {{epoch: 1}}}}]}}}}",
         ".base.faults[0].kill.nod: unknown key (did you mean 'node'?); allowed: node, return_after"),
        (f"{{base: {{{FAULT}: [{{kill: {{node: 1}}, at: {{random: {{stps: [1, 2]}}}}}}]}}}}",
         ".base.faults[0].at.random.stps: unknown key (did you mean 'steps'?); allowed: steps, seed"),
        (f"{{base: {{{MEDIAN}: {{nods: [0], attack: noise}}}}}}",
         ".base.byzantine.nods: unknown key (did you mean 'nodes'?); allowed: nodes, attack"),
        (f"{{base: {{{MEDIAN}: {{nodes: [0], attack: {{name: noise, stdd: 1}}}}}}}}",
         ".base.byzantine.attack.stdd: unknown key (did you mean 'std'?); allowed: std"),
        (f"{{base: {{{MEDIAN}: {{nodes: [0], attack: nois}}}}}}",
         ".base.byzantine.attack: 'nois': unknown attack (did you mean 'noise'?)"),
        (f"{{base: {{{LINK}: {{default: {{loss: 0.1}}, nods: 1}}}}}}",
         ".base.link.nods: unknown key (did you mean 'nodes'?); allowed: default, nodes, pairs, bandwidth"),
        (f"{{base: {{{LINK}: {{nodes: {{? '{'1' * 5000}' : {{}}}}}}}}}}", ".base.link.nodes."),
        (f"{{base: {{{LINK}: {{pairs: {{? '0-1٣' : {{}}}}}}}}}}", ".base.link.pairs."),
        (f"{{}}, {{base: {{strategy: ddp}}, axes: {{{FIVE_AXES}}}}}", CROSS),
    ):  # fmt: skip
        found = load_error(path, f"name: s\nblocks: [{block}]")
        start = "" if message == CROSS else "blocks[0]"
        assert found.startswith(f"{path}: {start}{message.replace('PATH', str(path))}")


DDP = "{base: {strategy: ddp}}"
AXIS = "{base: {strategy: ddp}, axes: {nodes: [1]}}"
COUNTS = ("", "2,", "two", "1.5", "2 3", "[1]", "-1", "٣", "0x2", "9" * 5000)
HOGWILD = "PATH: blocks[0].base.transport: hogwild cannot use gloo; allowed: memory (with --set strateg"
ONE_OF_TWO = "--nodes 2 sets nodes, too; allowed: one of the two"


def test_an_option_and_what_it_makes_invalid(path: Path) -> None:
    for blocks, sets, options, message in (
        (DDP, ["lr"], {}, "--set lr: must have the form key=value"),
        (DDP, ["lrr=1"], {}, "--set lrr=1: unknown key 'lrr' (did you mean 'lr'?); allowed: strategy, "),
        (DDP, ["strategy.inti=1"], {}, "--set strategy.inti=1: unknown key; allowed: uneven, compression"),
        (DDP, ["lr=[1"], {}, "--set lr=[1"),
        (AXIS, ["lr=1", "nodes=3"], {"nodes": "2"}, f"--set nodes=3: {ONE_OF_TWO}"),
        (AXIS, [], {"nodes": "2,0"}, "--nodes 2,0: 0 is not allowed; it must be greater than or equal"),
        (DDP, [], {"nodes": "2"}, "--nodes 2: no block of PATH varies nodes; use --set nodes=N"),
        *((AXIS, [], {"nodes": count}, f"--nodes {count}: must be whole numbers") for count in COUNTS),
        (f"{AXIS}, {{base: {{strategy: serial, nodes: 2}}}}", [], {"nodes": "1"},
         "PATH: blocks[1].base.nodes: serial cannot run on 2"),  # not an error of the option
        (DDP, [], {"repeat": 0}, "--repeat 0: must be 1 to 1000"),
        ("{base: {strategy: ddp}, axes: {seed: [0, x]}}", [], {"repeat": 2}, "PATH: blocks[0].axes.seed"),
        ("{base: {strategy: ddp}, axes: {seed: [true]}}", [], {"repeat": 2}, "PATH: blocks[0].axes.seed"),
        (DDP, [], {"quick": True}, "PATH: has no `quick` values"),
        ("{base: {strategy: ddp, checkpoint_epochs: 2}}", ["epochs=1"], {},
         "PATH: blocks[0].base.checkpoint_epochs: 2"),
        ("{base: {strategy: ddp, transport: gloo}}", ["strategy=hogwild"], {}, HOGWILD),
    ):  # fmt: skip
        found = load_error(path, f"name: s\nblocks: [{blocks}]", *sets, **options)
        assert found.startswith(message.replace("PATH", str(path)))


def test_a_question_selects_two_configurations(path: Path) -> None:
    block = "{base: {strategy: ddp}, axes: {nodes: [2, 4], seed: [0, 1]}}"
    for against, message in (
        (", against: {node: 4}", "questions[0].against: unknown key 'node'"),
        (", against: {nodes: 8}", 'questions[0].against: no run matches {"nodes": 8}'),
        (", against: {strategy: ddp}", "differ in more than the seed"),
        (", against: {nodes: 2}", "select the same runs"),
        ("", "questions[0].against: is missing"),
    ):
        question = f"{{measure: accuracy, compare: {{nodes: 2}}{against}}}"
        assert message in load_error(path, f"name: s\nquestions: [{question}]\nblocks: [{block}]")
