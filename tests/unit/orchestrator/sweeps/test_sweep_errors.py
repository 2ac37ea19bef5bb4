"""Every mistake in a sweep file or its options is an InputError: file, key path, value, what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.sweeps.load import load_sweep
from trainer.core.registry import Registry
from trainer.spec.registries import DATASETS, MODELS, OPTIMIZERS, PARTITIONERS, STRATEGIES, TRANSPORTS
from trainer.spec.run_spec import RunSpec

FIELDS = ", ".join(RunSpec.model_fields)


def load_error(path: Path, text: str, *sets: str, **options: Any) -> str:
    """The error message for a file with this text and these options."""
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_sweep(path, sets, **options)
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.yml"


# The file as a whole


KEYS = (
    "name, description, lab, runtime, base, repeat, until_decided, budget, tolerance, questions, quick, "
    "requirements, blocks, ray, slurm, swarm"
)
NO_MAPPING = f": must be a mapping with the keys {KEYS}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            NO_MAPPING,
        ),
        (
            "# only a comment\n",
            NO_MAPPING,
        ),
        (
            "- name: s\n",
            NO_MAPPING,
        ),
        (
            "serial",
            NO_MAPPING,
        ),
        ('name: s\nbase: {"\\ud800": 1}\n', ":2: half of a surrogate pair, which is no character"),
        ("name: s\nname: t\n", ":2: duplicate key 'name', also in line 1"),
        ("name: s\nblocks: [{base: {lr: 1, lr: 2}}]\n", ":2: duplicate key 'lr', also in line 2"),
        ("name: s\nblocks: [{\n", ":3: "),
        ("name: s\n\tblocks: []\n", ":2: "),
    ],
)
def test_file(path: Path, text: str, message: str) -> None:
    assert load_error(path, text).startswith(f"{path}{message}")


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.yml: no such file"):
        load_sweep(tmp_path / "absent.yml")
    with pytest.raises(InputError, match="is a directory, not a regular file"):
        load_sweep(tmp_path)


# Size

BILLION = "\n".join(
    ["a: &a0 [1, 2, 3, 4]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9))]
)


@pytest.mark.parametrize(
    ("text", "line", "fact"),
    [
        (BILLION, 5, "at most 10,000"),  # 4 · 9⁴ values in the fifth line
        ("name: s\nbase: &b {strategy: serial, faults: [*b]}", 2, "contains the alias"),
        ("name: s\nbase: &b [[*b]]", 2, "contains the alias"),
    ],
)
def test_aliases_that_grow(path: Path, text: str, line: int, fact: str) -> None:
    message = load_error(path, text)
    assert message.startswith(f"{path}:{line}: ")
    assert fact in message


def test_aliases_of_a_usual_file(path: Path) -> None:
    path.write_text(
        "name: s\nbase: &b {strategy: serial}\nblocks: [{base: *b}, {base: {<<: *b, seed: 1}}, {base: *b}]"
    )
    assert [run.seed for run in load_sweep(path).runs] == [0, 1]


def test_large_file(path: Path) -> None:
    assert "1,048,576 bytes" in load_error(path, "#" * (2**20 + 1))
    with pytest.raises(InputError, match="is a device"):
        load_sweep(Path("/dev/zero"))


def test_too_many_combinations(path: Path) -> None:
    ten = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"
    axes = ", ".join(f"{name}: {ten}" for name in ("seed", "lr", "epochs", "batch_size", "nodes"))
    message = load_error(path, f"name: s\nblocks: [{{}}, {{base: {{strategy: ddp}}, axes: {{{axes}}}}}]")
    for fact in ("100,001 combinations", "at most 10,000", "blocks[1]", "seed (10) × lr (10)"):
        assert fact in message


def test_long_values_are_shortened(path: Path) -> None:
    for name in ("x" * 5000, "[" + "1, " * 3000 + "]"):
        assert len(load_error(path, f"name: {name}\nblocks: [{{}}]")) < len(str(path)) + 250


# The file's own keys


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("blocks: [{}]", ["name: is missing"]),
        ("name: s", ["blocks: is missing"]),
        ("name: s\nblocks: []", ["blocks: []: ", "at least 1 item"]),
        ("name: s\nblocks: {}", ["blocks: {} is not allowed; it must be a valid list"]),
        ("name: s\nblocks: [3]", ["blocks[0]: 3 is not allowed; it must be"]),
        (
            "name: s\nblock: [{}]",
            [f"block: unknown key (did you mean 'blocks'?); allowed: {KEYS}"],
        ),
        (
            "name: s\nblocks: [{}, {axis: {}}]",
            [
                "blocks[1].axis: unknown key (did you mean 'axes'?); "
                "allowed: name, base, axes, repeat, skip, published, quick"
            ],
        ),
        ("name: s\nblocks: [{axes: {nodes: 3}}]", ["blocks[0].axes.nodes: 3 is not allowed", "valid list"]),
        ("name: s\nblocks: [{axes: [nodes]}]", ["blocks[0].axes: ['nodes'] is not allowed", "mapping"]),
        ("name: s\nblocks: [{skip: {nodes: 1}}]", ["blocks[0].skip: {'nodes': 1} is not allowed"]),
        ("name: s\nblocks: [{base: 1}]", ["blocks[0].base: 1 is not allowed"]),
        ("name: s\nbase: 1\nblocks: [{}]", ["base: 1 is not allowed"]),
        ("name: s\nbase: {1: 2}\nblocks: [{}]", ["base[1]", "1 is not allowed; it must be a valid string"]),
        ("name: 3\nblocks: [{}]", ["name: 3 is not allowed; it must be a valid string"]),
        (
            "name: My Sweep\nblocks: [{}]",
            ["name: 'My Sweep' is not allowed; it must be 1 to 64 lower-case letters"],
        ),
        ("name: ../up\nblocks: [{}]", ["name: '../up' is not allowed"]),
        ('name: "s\\n"\nblocks: [{}]', [r"name: 's\n' is not allowed"]),
        (
            "name: s\nblock: 1\nblocks: [{bsae: {}}]",
            [
                "block: unknown key (did you mean 'blocks'?)",
                "blocks[0].bsae: unknown key (did you mean 'base'?)",
            ],
        ),
        ("name: s\ndescription: 3\nblocks: [{}]", ["description: 3 is not allowed"]),
        (
            "name: s\nruntime: nomad\nblocks: [{}]",
            ["runtime: 'nomad' is not allowed; it must be docker or local"],
        ),
        ("name: 3\nblocks: 4\nfoo: 5", ["name: 3", "blocks: 4", "foo: unknown key"]),  # all errors at once
    ],
)
def test_sweep_keys(path: Path, text: str, messages: list[str]) -> None:
    lines = load_error(path, text).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    for message in messages:
        assert any(message in line for line in lines), lines


# Fields of runs: the error names the key path


@pytest.mark.parametrize("field", ["lrr", "Strategy", "lr.x", "nodes.count", "x.y", ""])
@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("base: {{strategy: ddp, '{}': 1}}\nblocks: [{{}}]", "base"),
        ("blocks: [{{base: {{strategy: ddp}}}}, {{base: {{'{}': 1}}}}]", "blocks[1].base"),
        ("blocks: [{{base: {{strategy: ddp}}, axes: {{'{}': [1]}}}}]", "blocks[0].axes"),
        ("blocks: [{{base: {{strategy: ddp}}, skip: [{{'{}': 1}}]}}]", "blocks[0].skip[0]"),
    ],
)
def test_unknown_field(path: Path, text: str, place: str, field: str) -> None:
    message = load_error(path, "name: s\n" + text.format(field))
    near = {"lrr": " (did you mean 'lr'?)", "Strategy": " (did you mean 'strategy'?)"}.get(field, "")
    assert message == f"{path}: {place}: unknown key {field!r}{near}; allowed: {FIELDS}"


VALUES = [
    ("lr", ".nan", "nan is not allowed; it must be a finite number"),
    ("lr", "'0.1'", "'0.1' is not allowed; it must be a valid number"),
    ("lr", "0", "0 is not allowed; it must be greater than 0"),
    ("lr", "true", "True is not allowed; it must be a valid number"),
    ("seed", "-1", "-1 is not allowed; it must be greater than or equal to 0"),
    ("seed", "1.0", "1.0 is not allowed; it must be a valid integer"),
    ("nodes", "20000", "20000 is not allowed; it must be less than or equal to 16384"),
    ("epochs", "1e1", "10.0 is not allowed; it must be a valid integer"),
    ("batch_size", "null", "None is not allowed; it must be a valid integer"),
    ("processes_per_node", "65", "65 is not allowed; it must be less than or equal to 64"),
    ("cpus", "0", "0 is not allowed; it must be greater than 0"),
    ("memory_mb", "0.5", "0.5 is not allowed; it must be a valid integer"),
    ("save_weights", "1", "1 is not allowed; it must be a valid boolean"),
    ("transport", "mpi", "ddp cannot use mpi; allowed: gloo, nccl"),
    ("model.dropout", "1", "1 is not allowed; it must be less than 1"),
]


@pytest.mark.parametrize(("field", "value", "message"), VALUES)
@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("base: {{strategy: ddp, {}: {}}}\nblocks: [{{}}]", "base."),
        ("blocks: [{{base: {{strategy: ddp}}}}, {{base: {{strategy: ddp, {}: {}}}}}]", "blocks[1].base."),
        ("blocks: [{{base: {{strategy: ddp}}, axes: {{{}: [{}]}}}}]", "blocks[0].axes."),
    ],
)
def test_bad_value(path: Path, text: str, place: str, field: str, value: str, message: str) -> None:
    index = "[0]" if "axes" in place else ""
    assert (
        load_error(path, "name: s\n" + text.format(field, value))
        == f"{path}: {place}{field}{index}: {message}"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("repeat: 0\nblocks: [{}]", "repeat: 0 is not allowed; it must be greater than or equal to 1"),
        (
            "blocks: [{repeat: 1001}]",
            "blocks[0].repeat: 1001 is not allowed; it must be less than or equal",
        ),
        ("blocks: [{repeat: 2.0}]", "blocks[0].repeat: 2.0 is not allowed; it must be a valid integer"),
        (
            "repeat: 3\nblocks: [{axes: {seed: [0, 1]}}]",
            "repeat: 3 cannot be combined with PATH: blocks[0].axes.seed, which is [0, 1]; allowed: one",
        ),
        (
            "blocks: [{}, {repeat: 3, axes: {seed: [0]}}]",
            "blocks[1].repeat: 3 cannot be combined with PATH: blocks[1].axes.seed, which is [0]; allowed",
        ),
        (
            "blocks: [{base: {repeat: 3}}]",
            "blocks[0].base: 'repeat' is not a field of a run; write it beside",
        ),
        ("blocks: [{axes: {repeat: [3]}}]", "blocks[0].axes: 'repeat' is not a field of a run"),
        ("blocks: [{base: {seed: x}, repeat: 2}]", "blocks[0].base.seed: 'x' is not allowed"),
        ("blocks: [{base: {seed: [0, 1]}, repeat: 2}]", "blocks[0].base.seed: [0, 1] is not allowed"),
        (
            "blocks: [{base: {seed: 4294967295}, repeat: 2}]",
            "blocks[0].repeat (its seeds): 4294967296 is not allowed; it must be less than 4294967296",
        ),
    ],
)
def test_bad_repetitions(path: Path, text: str, message: str) -> None:
    error = load_error(path, f"name: s\nbase: {{strategy: ddp}}\n{text}")
    assert error.startswith(f"{path}: {message.replace('PATH', str(path))}")


@pytest.mark.parametrize("count", [0, 1001])
def test_bad_repeat_option(path: Path, count: int) -> None:
    error = load_error(path, "name: s\nblocks: [{base: {strategy: ddp}}]", repeat=count)
    assert error == f"--repeat {count}: must be 1 to 1000"


@pytest.mark.parametrize("seeds", ["[0, x]", "[true]"])
def test_repeat_option_does_not_hide_a_bad_seed(path: Path, seeds: str) -> None:
    text = f"name: s\nblocks: [{{base: {{strategy: ddp}}, axes: {{seed: {seeds}}}}}]"
    assert "blocks[0].axes.seed" in load_error(path, text, repeat=2)


@pytest.mark.parametrize(("field", "value", "message"), VALUES)
def test_bad_value_of_an_option(path: Path, field: str, value: str, message: str) -> None:
    text = "name: s\nbase: {strategy: ddp, lr: 1}\nblocks: [{axes: {seed: [1, 2]}}]"
    assert load_error(path, text, f"{field}={value}") == f"--set {field}={value}: {message}"


@pytest.mark.parametrize(
    ("field", "registry"),
    [
        ("strategy", STRATEGIES),
        ("dataset", DATASETS),
        ("partitioner", PARTITIONERS),
        ("model", MODELS),
        ("optimizer", OPTIMIZERS),
        ("transport", TRANSPORTS),
    ],
)
def test_unknown_name_lists_the_known_ones(path: Path, field: str, registry: Registry[object]) -> None:
    text = f"name: s\nblocks: [{{base: {{strategy: ddp}}, axes: {{{field}: [nope]}}}}]"
    known = registry.known
    assert known.startswith(", ".join(registry.entries))
    message = f"'nope': unknown {registry.kind}; known: {known}"
    assert load_error(path, text) == f"{path}: blocks[0].axes.{field}[0]: {message}"
    assert load_error(path, text, f"{field}=nope") == f"--set {field}=nope: {message}"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "{at: {epoch: 1}}",
            "[0]: {'at': {'epoch': 1}}: none instead of one action; allowed: exactly one of",
        ),
        (
            "{kil: {node: 1}, at: {epoch: 1}}",
            "[0].kil: unknown key (did you mean 'kill'?); allowed: kill, pause, slow, cut_off, drop, at",
        ),
        (
            "{kill: {nod: 1}, at: {epoch: 1}}",
            "[0].kill.nod: unknown key (did you mean 'node'?); allowed: node, return_after",
        ),
        ("{kill: {node: 1}}", "[0].at: is missing"),
        (
            "{kill: {node: 1}, at: {random: {stps: [1, 2]}}}",
            "[0].at.random.stps: unknown key (did you mean 'steps'?); allowed: steps, seed",
        ),
        ("{kill: {node: 1}, at: {random: {steps: [0, 2]}}}", "[0].at.random.steps[0]: 0 is not allowed"),
        (
            "{kill: {node: 1}, at: {random: {steps: [{a: 1}, 2]}}}",
            "[0].at.random.steps[0]: {'a': 1} is not",
        ),
        ("3", "[0]: 3 is not allowed"),
    ],
)
def test_bad_fault(path: Path, fault: str, message: str) -> None:
    text = f"name: s\nblocks: [{{base: {{strategy: ddp, nodes: 2, faults: [{fault}]}}}}]"
    assert f"{path}: blocks[0].base.faults{message}" in load_error(path, text)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("{}", "blocks[0].strategy: is missing"),
        (
            "{base: {strategy: ddp, warm_up_epochs: 4}}",
            "blocks[0].base.warm_up_epochs: 4 epochs of warm-up are more than epochs; allowed: 0 to 3",
        ),
        (
            "{base: {strategy: serial}, axes: {nodes: [1, 2]}}",
            "blocks[0].axes.nodes[1]: serial cannot run on 2",
        ),
        (
            "{base: {strategy: ddp, nodes: 4, dataset: {name: synthetic, samples: 3}}}",
            "blocks[0].base.nodes: 4 nodes are more than the 3 training samples of synthetic",
        ),
        (
            "{base: {strategy: ddp, nodes: 4, partitioner: {name: classes, per_node: 2}}}",
            "blocks[0].base.partitioner: classes cannot partition digits among 4 nodes: with per_node 2",
        ),
        ("{base: {strategy: ddp}, axes: {seed: []}}", "blocks[0].axes.seed: is an empty list"),
        (
            "{base: {strategy: serial, processes_per_node: 4}}",
            "blocks[0].base.processes_per_node: serial cannot run on 4 ranks (1 × 4); allowed: 1",
        ),
        (
            "{base: {strategy: ddp, dataset: {name: synthetic, samples: 9}}, axes: {nodes: [4, 5], "
            "processes_per_node: [2]}}",
            "blocks[0].axes.processes_per_node[0]: 10 ranks (5 × 2) are more than the 9 training samples",
        ),
        (
            "{base: {strategy: {name: one_shot, inti: x}}}",
            "blocks[0].base.strategy.inti: unknown key (did you mean 'init'?); allowed: init",
        ),
        (
            "{base: {strategy: {name: serial, x: 1}}}",
            "blocks[0].base.strategy.x: unknown key; allowed: no parameters",
        ),
        (
            "{base: {strategy: {name: all_reduce, compression: {name: top_k, rate: 1}}}}",
            "blocks[0].base.strategy.compression.rate: unknown key; allowed: ratio",
        ),
        (
            "{base: {strategy: all_reduce}, axes: {strategy.compression: [sign, {name: sign, ratio: 1}]}}",
            "blocks[0].axes.strategy.compression[1].ratio: unknown key; allowed: no parameters",
        ),
        (
            "{base: {strategy: all_reduce, strategy.compression: {name: top_k, ratio: 0}}}",
            "blocks[0].base.strategy.compression.ratio: 0 is not allowed; it must be greater than 0",
        ),
        (
            "{base: {strategy: {name: ddp, compression: top_k}}}",
            "blocks[0].base.strategy.compression: 'top_k': unknown compression of ddp; "
            "known: none, fp16, power_sgd",
        ),
        (
            "{axes: {strategy: [ddp, {name: one_shot, init: x}]}}",
            "blocks[0].axes.strategy[1].init: 'x' is not allowed; it must be 'broadcast' or 'independent'",
        ),
        (
            "{base: {strategy: {init: x}}}",
            "blocks[0].base.strategy: {'init': 'x'}: write the strategy as",
        ),
        (
            "{base: {strategy: ddp, model: {name: mlp, hidden: [4, 0]}}}",
            "blocks[0].base.model.hidden[1]: 0 is not allowed; it must be greater than or equal to 1",
        ),
    ],
)
def test_block(path: Path, block: str, message: str) -> None:
    assert load_error(path, f"name: s\nblocks: [{block}]").startswith(f"{path}: {message}")


def test_rpc_allows_one_rank_per_node(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunSpec, "topology", "rpc")
    text = "name: s\nblocks: [{base: {strategy: ddp}, axes: {processes_per_node: [1, 2]}}]"
    assert load_error(path, text) == (
        f"{path}: blocks[0].axes.processes_per_node[1]: 2 is not allowed over gloo, "
        "where each node is one rank; allowed: 1"
    )


def test_strategy_parameter_without_a_strategy(path: Path) -> None:
    message = load_error(path, "name: s\nblocks: [{base: {strategy.init: broadcast}}]")
    assert "Undefined" not in message
    assert "strategy" in message


# Options


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("lr", "must have the form key=value"),
        ("=1", "must have the form key=value"),
        ("", "must have the form key=value"),
        ("lrr=1", f"unknown key 'lrr' (did you mean 'lr'?); allowed: {FIELDS}"),
        ("lr.x=1", f"unknown key 'lr.x'; allowed: {FIELDS}"),
        ("strategy.inti=1", "unknown key; allowed: no parameters"),
    ],
)
def test_set(path: Path, option: str, message: str) -> None:
    assert (
        load_error(path, "name: s\nblocks: [{base: {strategy: serial}}]", option)
        == f"--set {option}: {message}"
    )


def test_set_with_invalid_yaml(path: Path) -> None:
    assert load_error(path, "name: s\nblocks: [{base: {strategy: ddp}}]", "lr=[1").startswith("--set lr=[1")


def test_two_options_do_not_set_the_number_of_nodes(path: Path) -> None:
    text = "name: s\nblocks: [{base: {strategy: ddp}, axes: {nodes: [1]}}]"
    message = load_error(path, text, "lr=1", "nodes=3", nodes="2")
    assert message == "--set nodes=3: --nodes 2 sets nodes, too; allowed: one of the two"


@pytest.mark.parametrize("key", ["nodes: {NODE: {}}", "pairs: {0-NODE: {}}"])
@pytest.mark.parametrize("node", ["1" * 5000, "1٣"])
def test_nodes_of_links_are_short_numbers(path: Path, key: str, node: str) -> None:
    link = key.replace("0-NODE", f"? '0-{node}' ").replace("NODE", f"? '{node}' ")
    text = f"name: s\nblocks: [{{base: {{strategy: ddp, nodes: 2, link: {{{link}}}}}}}]"
    message = load_error(path, text)
    assert message.startswith(f"{path}: blocks[0].base.link")
    assert "should match pattern" in message


@pytest.mark.parametrize("nodes", ["", "2,", "two", "1.5", "2 3", "[1]", "-1", "٣", "0x2", "9" * 5000])
def test_nodes_option_needs_whole_numbers(path: Path, nodes: str) -> None:
    text = "name: s\nblocks: [{base: {strategy: ddp}, axes: {nodes: [1]}}]"
    assert load_error(path, text, nodes=nodes).startswith(f"--nodes {nodes}: must be whole numbers")


def test_nodes_option_with_invalid_values(path: Path) -> None:
    text = "name: s\nblocks: [{base: {strategy: ddp}, axes: {nodes: [1]}}]"
    message = load_error(path, text, nodes="2,0")
    assert message == "--nodes 2,0: 0 is not allowed; it must be greater than or equal to 1"
    text = "name: s\nblocks: [{base: {strategy: ddp}}]"
    assert (
        load_error(path, text, nodes="2")
        == f"--nodes 2: no block of {path} varies nodes; use --set nodes=N"
    )


def test_error_in_the_file_does_not_name_the_nodes_option(path: Path) -> None:
    blocks = "[{base: {strategy: ddp}, axes: {nodes: [1]}}, {base: {strategy: serial, nodes: 2}}]"
    text = f"name: s\nblocks: {blocks}"
    assert load_error(path, text, nodes="1").startswith(
        f"{path}: blocks[1].base.nodes: serial cannot run on 2"
    )


@pytest.mark.parametrize(
    ("selections", "message"),
    [
        ("compare: {nodes: 2}, against: {node: 4}", "questions[0].against: unknown key 'node'"),
        ("compare: {nodes: 2}, against: {nodes: 8}", 'questions[0].against: no run matches {"nodes": 8}'),
        ("compare: {strategy: ddp}, against: {nodes: 2}", "differ in more than the seed"),
        ("compare: {nodes: 2}, against: {nodes: 2}", "select the same runs"),
        ("compare: {nodes: 2}", "questions[0].against: is missing"),
    ],
)
def test_questions_select_two_configurations(path: Path, selections: str, message: str) -> None:
    text = f"""
name: s
questions: [{{measure: accuracy, {selections}}}]
blocks:
  - base: {{strategy: ddp}}
    axes: {{nodes: [2, 4], seed: [0, 1]}}
"""
    assert message in load_error(path, text)


@pytest.mark.parametrize(
    ("byzantine", "message"),
    [
        (
            "{nods: [0], attack: noise}",
            ".nods: unknown key (did you mean 'nodes'?); allowed: nodes, attack",
        ),
        ("{nodes: [0], attack: nois}", ".attack: 'nois': unknown attack (did you mean 'noise'?)"),
        ("{nodes: [0], attack: {name: noise, st: 1}}", ".attack.st: unknown key"),
        ("{nodes: [9], attack: noise}", ": nodes: node 9 does not exist; allowed: 0 to 2"),
        ("3", ": 3 is not allowed; it must be a mapping"),
    ],
)
def test_bad_byzantine_nodes(path: Path, byzantine: str, message: str) -> None:
    strategy = "{name: local_sgd, aggregation: median}"
    text = f"name: s\nblocks: [{{base: {{strategy: {strategy}, nodes: 3, byzantine: {byzantine}}}}}]"
    assert f"{path}: blocks[0].base.byzantine{message}" in load_error(path, text)
