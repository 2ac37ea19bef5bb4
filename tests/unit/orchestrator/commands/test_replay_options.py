"""The cluster on which the command `replay` replays a run."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.commands.replay import Options, parse_link
from orchestrator.errors import InputError
from trainer.spec.run_spec import RunSpec
from trainer.time_model.described import cluster_of_run

LINK = parse_link("100mbit/1ms")


def run(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "ddp", "nodes": 3, **fields})


@pytest.mark.parametrize(
    ("fields", "given", "speeds"),
    [
        ({}, (), [1, 1, 1]),
        ({"node_speed": {0: 0.5}}, (), [0.5, 1, 1]),
        ({"node_speed": {-1: 0.25}}, (), [1, 1, 0.25]),
        ({"node_speed": {0: 0.5}}, (1, 0.1, 2, 3), [1, 0.1, 2]),
        ({"node_speed": {0: 0.5}}, (1,), [1, 1, 1]),
    ],
)
def test_nodes_have_the_speeds_of_the_run_unless_others_are_given(
    fields: dict[str, Any], given: tuple[float, ...], speeds: list[float]
) -> None:
    spec = run(**fields, processes_per_node=2)
    cluster = Options(LINK, given).cluster(cluster_of_run(spec), spec)
    assert cluster.node_speed == speeds
    assert [cluster.speed_of(rank) for rank in range(6)] == [speeds[rank // 2] for rank in range(6)]


def test_too_few_speeds_are_an_error() -> None:
    with pytest.raises(InputError, match=r"--node-speed 1,0\.5: 2 speeds, and .* has 3 nodes"):
        Options(LINK, (1, 0.5)).cluster(cluster_of_run(run()), run())
