"""Which agent gets which ranks, and the errors of containers that do not fit the spec."""

from __future__ import annotations

import json
import os
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cluster_support import FIELDS, assigned, index_of, nodes, other, registered
from trainer.cluster.rank_assignment import (
    ROLES,
    AssignmentError,
    RankAssignment,
    assign_ranks,
    needed_agents,
    read_spec,
)


def ranks(assignment: RankAssignment) -> dict[str, tuple[int, ...]]:
    return {agent.name: agent.ranks for agent in assignment.agents}


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        ("ddp", {"node-1": (0,), "node-2": (1,), "node-3": (2,)}),
        ("mpi", {"launcher": (), "node-1": (0,), "node-2": (1,), "node-3": (2,)}),
        ("rpc", {"master": (0,), "node-1": (1,), "node-2": (2,), "node-3": (3,)}),
        # All ranks run in the first container.
        ("single", {"node-1": (0, 1, 2), "node-2": (), "node-3": ()}),
    ],
)
def test_ranks_of_a_topology(topology: str, expected: dict[str, tuple[int, ...]]) -> None:
    assignment = assigned(topology, 1, 2, 3)
    assert ranks(assignment) == expected
    assert assignment.spec.world_size == sum(len(own) for own in expected.values())
    assert assignment.spec.topology == topology
    for rank in range(assignment.spec.world_size):
        assert rank in assignment.agent_of(rank).ranks


def test_nodes_of_unequal_speed_are_rejected_in_a_bare_up() -> None:
    fields = {**FIELDS["ddp"], "node_speed": [1, 0.25]}
    agents = registered("ddp", 1, 2)
    assert assign_ranks("ddp", fields, agents).spec.is_slower(1)
    with pytest.raises(AssignmentError, match="node_speed"):
        assign_ranks("ddp", fields, agents, {"cpus": 1.0})


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        ("ddp", {"node-2", "node-3"}),
        ("mpi", {"node-2", "node-3", "launcher"}),
        ("rpc", {"node-2", "master"}),  # the master is one of the nodes
        ("single", {"node-2"}),
    ],
)
def test_needed_agents_are_the_first_nodes_and_all_others(topology: str, expected: set[str]) -> None:
    fields = {**FIELDS[topology], "nodes": 2}
    for order in permutations(registered(topology, 10, 3, 2)):
        needed = needed_agents(topology, fields, order)
        assert {agent.name for agent in needed} == expected
        assert len(needed) == len(expected)
        assert assign_ranks(topology, fields, needed).spec.nodes == 2


@pytest.mark.parametrize("topology", ROLES)
def test_largest_run_needs_all_agents(topology: str) -> None:
    agents = registered(topology, 1) if topology == "single" else registered(topology, 1, 2, 3)
    fields = {**FIELDS[topology], "nodes": 3 + (topology == "rpc")}
    assert {agent.name for agent in needed_agents(topology, fields, agents)} == {
        agent.name for agent in agents
    }


@pytest.mark.parametrize("topology", ROLES)
def test_roles_of_every_topology(topology: str) -> None:
    assert topology in FIELDS
    assert {agent.role for agent in assigned(topology, 1).agents} == set(ROLES[topology])


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        ("ddp", {"node-2": (0, 1), "node-10": (2, 3)}),
        ("mpi", {"launcher": (), "node-2": (0, 1), "node-10": (2, 3)}),
        ("single", {"node-2": (0, 1, 2, 3), "node-10": ()}),
    ],
)
def test_several_ranks_per_node(topology: str, expected: dict[str, tuple[int, ...]]) -> None:
    assert ranks(assigned(topology, 10, 2, processes_per_node=2)) == expected


def test_gaps_in_container_numbers() -> None:
    assignment = assigned("ddp", 10, 9, 2, 11, 100)
    assert [(agent.ordinal, agent.ranks) for agent in assignment.agents] == [
        (2, (0,)),
        (9, (1,)),
        (10, (2,)),
        (11, (3,)),
        (100, (4,)),
    ]


def test_order_of_registration_does_not_matter() -> None:
    agents = registered("rpc", 1, 2, 10)
    assignments = [assign_ranks("rpc", FIELDS["rpc"], order) for order in permutations(agents)]
    assert all(each == assignments[0] for each in assignments)


def test_addresses_and_keys_are_preserved() -> None:
    assignment = assigned("mpi", 3, 2)
    found = {agent.name: (agent.address, agent.public_keys) for agent in assignment.agents}
    assert found == {
        "launcher": ("10.0.0.100", {"key": "key-of-launcher"}),
        "node-2": ("10.0.0.2", {"host_key": "key-2"}),
        "node-3": ("10.0.0.3", {"host_key": "key-3"}),
    }


# The number of nodes


@pytest.mark.parametrize(("topology", "count"), [("ddp", 4), ("mpi", 4), ("rpc", 5), ("single", 4)])
def test_number_of_nodes_defaults_to_the_containers(topology: str, count: int) -> None:
    assert assigned(topology, 1, 2, 3, 4).spec.nodes == count
    assert assigned(topology, 1, 2, 3, 4, nodes=count).spec.nodes == count


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ("ddp", "the run has 4 nodes, 2 registered: use --scale node=4"),
        ("mpi", "the run has 4 nodes, 2 registered: use --scale node=4"),
        ("rpc", "the run has 4 nodes, 3 registered: use --scale node=3"),  # the master counts as a node
    ],
)
def test_too_few_nodes(topology: str, message: str) -> None:
    with pytest.raises(AssignmentError) as caught:
        assigned(topology, 1, 2, nodes=4)
    assert str(caught.value) == message


def test_too_many_nodes() -> None:
    with pytest.raises(AssignmentError, match="the run has 1 nodes, 2 registered: use --scale node=1"):
        assigned("ddp", 1, 2, nodes=1)


def test_single_needs_one_container() -> None:
    assert ranks(assigned("single", 1, nodes=3)) == {"node-1": (0, 1, 2)}


# Invalid runs


@pytest.mark.parametrize(
    ("topology", "fields", "message"),
    [
        (
            "ddp",
            {"strategy": "all_reduce", "transport": "mpi"},
            "a run over mpi has topology mpi: use compose/mpi.yml, not compose/ddp.yml",
        ),
        (
            "ddp",
            {"strategy": "rpc_split"},
            "a run over rpc has topology rpc: use compose/rpc.yml, not compose/ddp.yml",
        ),
        (
            "single",
            {"strategy": "ddp"},
            "a run over gloo has topology ddp: use compose/ddp.yml, not compose/single.yml",
        ),
    ],
)
def test_wrong_topology_names_the_compose_file(topology: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(AssignmentError) as caught:
        assign_ranks(topology, fields, registered(topology, 1, 2))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        ({"strategy": "ddq"}, ["strategy: unknown strategy; known: serial, "]),
        ({"strategy": "ddp", "lr": -1.0, "epochs": "3"}, ["lr: ", "; epochs: "]),
        ({"strategy": "ddp", "epoch": 3}, ["epoch: "]),
        ({"strategy": "ddp", "nodes": "two"}, ["nodes: "]),
        ({"strategy": "ddp", "transport": "mpi"}, ["ddp cannot use mpi"]),
        ({}, ["strategy: "]),
    ],
)
def test_invalid_spec(fields: dict[str, Any], facts: list[str]) -> None:
    with pytest.raises(AssignmentError) as caught:
        assign_ranks("ddp", fields, nodes(1, 2))
    message = str(caught.value)
    assert message.startswith("the run's spec is not valid: ")
    assert "\n" not in message
    for fact in facts:
        assert fact in message


def test_more_nodes_than_the_strategy_supports() -> None:
    with pytest.raises(AssignmentError, match="serial cannot run on 2 nodes"):
        assign_ranks("single", {"strategy": "serial"}, nodes(1, 2))


# Messages


@pytest.mark.parametrize("topology", ROLES)
def test_message_round_trip(topology: str) -> None:
    assignment = assigned(topology, 2, 10, lr=0.07, seed=3)
    for index, agent in enumerate(assignment.agents):
        arrived = RankAssignment.from_message(json.loads(json.dumps(assignment.to_message(index))))
        assert arrived.agent == agent
        assert (arrived.spec, arrived.agents) == (assignment.spec, assignment.agents)


def test_agent_names() -> None:
    assert [agent.name for agent in (*nodes(3), other("launcher"))] == ["node-3", "launcher"]
    assert index_of(assigned("rpc", 1, 2), "node-2") == 2


# Limits of a bare `up`


@pytest.mark.parametrize("topology", ROLES)
def test_limits_of_the_containers_are_copied_to_the_spec(topology: str) -> None:
    limits = {"cpus": 0.8, "memory_mb": 512}
    spec = assign_ranks(topology, FIELDS[topology], registered(topology, 1, 2), limits).spec
    # The nodes of topology single share one container.
    assert spec.cpus == pytest.approx(0.4 if topology == "single" else 0.8)
    assert spec.memory_mb == 512


def test_limit_that_differs_from_the_spec() -> None:
    with pytest.raises(AssignmentError, match="SHARDYARD_CPUS=2"):
        assign_ranks("ddp", {**FIELDS["ddp"], "cpus": 2}, registered("ddp", 1, 2), {"cpus": 1.0})
    same = {**FIELDS["ddp"], "cpus": 2}
    assert assign_ranks("ddp", same, registered("ddp", 1, 2), {"cpus": 2.0}).spec.cpus == 2


def test_a_spec_that_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "spec.json")
    with pytest.raises(AssignmentError, match=r"spec\.json: is a pipe"):
        read_spec(tmp_path / "spec.json")
