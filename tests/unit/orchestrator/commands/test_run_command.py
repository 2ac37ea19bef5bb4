"""Mistakes in `shardyard run`: what the serial run shares, default nodes, directories, errors."""

from __future__ import annotations

from orchestrator.commands.run import directory_of, load_run
from orchestrator.sweeps.load import Sweep
from orchestrator.sweeps.yaml import parse_yaml


def described(sweep: Sweep) -> list[tuple[str, str, int, int]]:
    return [(run.name_of("strategy"), run.transport, run.nodes, run.epochs) for run in sweep.runs]


def test_the_reference_shares_what_a_serial_run_can_have() -> None:
    sets = ["epochs=2", "transport=gloo", "strategy.compression=fp16", "link={latency_ms: 1}"]
    sweep = load_run("all_reduce", 4, sets, repeat=2, compare=True)
    assert described(sweep) == 2 * [("serial", "memory", 1, 2)] + 2 * [("all_reduce", "gloo", 4, 2)]
    blocks = parse_yaml(sweep.source, "")["blocks"]
    assert [block["base"]["strategy"] for block in blocks] == ["serial", "all_reduce"]
    assert sweep.spec.name == "all_reduce-gloo-n4"


def test_the_number_of_nodes_has_a_default() -> None:
    for strategy, nodes in (("serial", 1), ("ddp", 2), ("parameter_server", 2), ("hybrid", 2)):
        (run,) = load_run(strategy).runs
        assert run.nodes == max(nodes, run.strategy.min_nodes)


def test_other_fields_have_another_directory_and_other_seeds_do_not() -> None:
    one = load_run("ddp", 2)
    assert directory_of(one) == directory_of(load_run("ddp", 2, repeat=5))
    others = [load_run("ddp", 2, ["lr=0.1"]), load_run("ddp", 2, compare=True)]
    assert len({directory_of(each) for each in (one, *others)}) == 3
