"""Mistakes in the assignment of ranks: order, gaps, counts, limits, errors of specs that do not fit."""

from __future__ import annotations

import os
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cluster_support import FIELDS, registered
from trainer.node.rank_assignment import AssignmentError, assign_ranks, needed_agents, read_spec

MPI = ["launcher", "node-2", "node-3"]


@pytest.mark.parametrize(
    ("topology", "each", "ranks", "needed"),
    [
        ("ddp", 1, {"node-2": (0,), "node-3": (1,), "node-10": (2,)}, ["node-2", "node-3"]),
        ("ddp", 2, {"node-2": (0, 1), "node-3": (2, 3), "node-10": (4, 5)}, ["node-2", "node-3"]),
        ("mpi", 1, {"launcher": (), "node-2": (0,), "node-3": (1,), "node-10": (2,)}, MPI),
        # The master is one of the nodes.
        ("rpc", 1, {"master": (0,), "node-2": (1,), "node-3": (2,), "node-10": (3,)}, ["master", "node-2"]),
        # All ranks run in the first container.
        ("single", 1, {"node-2": (0, 1, 2), "node-3": (), "node-10": ()}, ["node-2"]),
    ],
)
def test_ranks_follow_container_numbers_in_any_order_of_registration(
    topology: str, each: int, ranks: dict[str, tuple[int, ...]], needed: list[str]
) -> None:
    fields = {**FIELDS[topology], "processes_per_node": each}
    for order in permutations(registered(topology, 10, 3, 2)):
        assignment = assign_ranks(topology, fields, order)
        assert [(agent.name, agent.ranks) for agent in assignment.agents] == [*ranks.items()]
        assert assignment.spec.world_size == sum(map(len, ranks.values()))
        assert assignment.spec.topology == topology
        assert all(rank in assignment.agent_of(rank).ranks for rank in range(assignment.spec.world_size))
        # Of warm containers, a smaller run needs the first nodes, and all others.
        two = needed_agents(topology, {**fields, "nodes": 2}, order)
        assert sorted(agent.name for agent in two) == needed
        assert assign_ranks(topology, {**fields, "nodes": 2}, two).spec.nodes == 2


SPEED, LINK = {"node_speed": [1, 0.25]}, {"link": {"bandwidth_mbit": 10}}


@pytest.mark.parametrize(
    ("topology", "fields", "limits", "message"),
    [
        ("ddp", {"nodes": 4}, {}, "the run has 4 nodes, 2 registered: use --scale node=4"),
        ("ddp", {"nodes": 1}, {}, "the run has 1 nodes, 2 registered: use --scale node=1"),
        ("rpc", {"nodes": 4}, {}, "the run has 4 nodes, 3 registered: use --scale node=3"),
        ("ddp", {"strategy": "rpc_split"}, {}, "use compose/rpc.yml, not compose/ddp.yml"),
        ("single", {"strategy": "ddp"}, {}, "use compose/ddp.yml, not compose/single.yml"),
        ("single", {"strategy": "serial"}, {}, "serial cannot run on 2 nodes"),
        ("ddp", {"cpus": 2}, {"cpus": 1.0}, "SHARDYARD_CPUS=2"),
        ("ddp", SPEED, {"cpus": 1.0}, "node_speed"),
        ("ddp", LINK, {"cpus": 1.0}, "link: only the orchestrator"),
        ("ddp", {"strategy": "ddq"}, {}, "strategy: unknown strategy; known: serial, "),
        ("ddp", {"lr": -1.0, "nodes": "two"}, {}, "not 'two'; lr: "),
        ("ddp", {"epoch": 3}, {}, "epoch: "),
        ("ddp", {"transport": "mpi"}, {}, "ddp cannot use mpi"),
    ],
)
def test_run_that_does_not_fit_the_containers(
    topology: str, fields: dict[str, Any], limits: dict[str, float], message: str
) -> None:
    with pytest.raises(AssignmentError) as caught:
        assign_ranks(topology, {**FIELDS[topology], **fields}, registered(topology, 1, 2), limits)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("topology", "cpus"), [("ddp", 0.8), ("mpi", 0.8), ("rpc", 0.8), ("single", 0.4)])
def test_limits_of_the_containers_are_copied_to_the_spec(topology: str, cpus: float) -> None:
    """The nodes of topology single share one container."""
    limits = {"cpus": 0.8, "memory_mb": 512}
    for same in ({"memory_mb": 512}, {"cpus": 0.8}):
        spec = assign_ranks(topology, {**FIELDS[topology], **same}, registered(topology, 1, 2), limits).spec
        assert (spec.cpus, spec.memory_mb) == (pytest.approx(cpus), 512)


def test_a_spec_that_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "spec.json")
    with pytest.raises(AssignmentError, match=r"spec\.json: is a pipe"):
        read_spec(tmp_path / "spec.json")
