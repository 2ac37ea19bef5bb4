"""`shardyard run`: one configuration without a sweep file."""

from __future__ import annotations

import pytest

from orchestrator.commands.run import directory_of, load_run
from orchestrator.errors import InputError
from orchestrator.sweeps.load import Sweep
from orchestrator.sweeps.yaml import parse_yaml


def described(sweep: Sweep) -> list[tuple[str, str, int, int]]:
    return [(run.name_of("strategy"), run.transport, run.nodes, run.epochs) for run in sweep.runs]


def test_one_configuration() -> None:
    sweep = load_run("all_reduce", 4, ["epochs=2", "transport=gloo"])
    assert described(sweep) == [("all_reduce", "gloo", 4, 2)]
    assert sweep.spec.name == "all_reduce-gloo-n4"


def test_the_reference_shares_what_a_serial_run_can_have() -> None:
    sets = ["epochs=2", "transport=gloo", "strategy.compression=fp16", "link={latency_ms: 1}"]
    sweep = load_run("all_reduce", 4, sets, repeat=2, compare=True)
    assert described(sweep) == 2 * [("serial", "memory", 1, 2)] + 2 * [("all_reduce", "gloo", 4, 2)]
    assert [block["base"]["strategy"] for block in parse_yaml(sweep.source, "")["blocks"]] == [
        "serial",
        "all_reduce",
    ]


@pytest.mark.parametrize(
    ("strategy", "nodes"),
    [("serial", 1), ("ddp", 2), ("parameter_server", 2), ("{name: local_sgd, local_steps: 5}", 2)],
)
def test_the_number_of_nodes_has_a_default(strategy: str, nodes: int) -> None:
    (run,) = load_run(strategy).runs
    assert run.nodes == max(nodes, run.strategy.min_nodes)


def test_other_fields_have_another_directory_and_other_seeds_do_not() -> None:
    one, other = load_run("ddp", 2), load_run("ddp", 2, ["lr=0.1"])
    assert directory_of(one) != directory_of(other)
    assert directory_of(one) == directory_of(load_run("ddp", 2, repeat=5))
    assert directory_of(one) != directory_of(load_run("ddp", 2, compare=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["all_reduc"], "did you mean 'all_reduce'"),
        (["dpd"], "^STRATEGY: 'dpd'"),
        (["dpd", 2, ["model=mlp"]], "FILE.py:NAME$"),
        (["{name: ddp, x: 1}"], "^STRATEGY: x: unknown key"),
        (["ddp", 0], "^--nodes 0: 0 is not allowed"),
        (["pipeline", 9, ["model=mlp"]], r"^STRATEGY: .*\(with --nodes 9, --set model=mlp\)$"),
        (["serial", 3], "serial cannot run on 3"),
        (["ddp", 10**200], "^--nodes 10+: 10+[.]+0+ is not allowed; it must be 1 to 16384"),
        (["ddp", 2, ["nodes=3"]], "^--set nodes=3: --nodes 2 sets nodes, too"),
        (["ddp", 2, ["strategy=gossip"]], "^--set strategy=gossip: STRATEGY sets strategy, too"),
        (["ddp", 2, ["epoch=3"]], "did you mean 'epochs'"),
        (["ddp", 2, ["transport=mpi"]], "allowed: gloo"),
        (["ddp", 2, (), 0], "--repeat 0"),
        (["serial", 1, (), 1, True], "the reference itself"),
        (["{name: ddp"], "^STRATEGY:1: "),
    ],
)
def test_bad_input_names_what_is_allowed(arguments: list, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(InputError, match=message):
        load_run(*arguments)
