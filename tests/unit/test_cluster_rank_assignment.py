"""The roll: who gets which ranks, and what is said where the members do not make up the run."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest

from tests.unit.cluster_support import FIELDS, called, nodes, other, present, seat
from trainer.cluster.rank_assignment import ROLES, AssignmentError, RankAssignment, assign_ranks


def ranks(assignment: RankAssignment) -> dict[str, tuple[int, ...]]:
    return {member.name: member.ranks for member in assignment.members}


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        ("ddp", {"node-1": (0,), "node-2": (1,), "node-3": (2,)}),
        ("mpi", {"launcher": (), "node-1": (0,), "node-2": (1,), "node-3": (2,)}),
        ("rpc", {"master": (0,), "node-1": (1,), "node-2": (2,), "node-3": (3,)}),
        # The processes cannot be apart: all are in the first node, the others are seats.
        ("single", {"node-1": (0, 1, 2), "node-2": (), "node-3": ()}),
    ],
)
def test_ranks_of_a_topology(topology: str, expected: dict[str, tuple[int, ...]]) -> None:
    assignment = called(topology, 1, 2, 3)
    assert ranks(assignment) == expected
    assert assignment.spec.world_size == sum(len(held) for held in expected.values())
    assert assignment.spec.topology == topology
    for rank in range(assignment.spec.world_size):
        assert rank in assignment.holder(rank).ranks


def test_a_bare_up_has_nobody_who_could_hold_a_node_back() -> None:
    fields = {**FIELDS["ddp"], "bottleneck_cpus": 0.25}
    members = present("ddp", 1, 2)
    assert assign_ranks("ddp", fields, members).spec.is_bottleneck(1)
    with pytest.raises(AssignmentError, match="cannot be had from a bare `up`"):
        assign_ranks("ddp", fields, members, {"cpus": 1.0})


@pytest.mark.parametrize("topology", ROLES)
def test_every_known_topology_is_tested_here(topology: str) -> None:
    assert topology in FIELDS
    assert {member.role for member in called(topology, 1).members} == set(ROLES[topology])


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        ("ddp", {"node-2": (0, 1), "node-10": (2, 3)}),
        ("mpi", {"launcher": (), "node-2": (0, 1), "node-10": (2, 3)}),
        ("single", {"node-2": (0, 1, 2, 3), "node-10": ()}),
    ],
)
def test_ranks_fill_one_node_after_the_other(topology: str, expected: dict[str, tuple[int, ...]]) -> None:
    assert ranks(called(topology, 10, 2, processes_per_node=2)) == expected


def test_numbers_with_gaps_count_as_numbers_and_not_as_text() -> None:
    assignment = called("ddp", 10, 9, 2, 11, 100)
    assert [(member.ordinal, member.ranks) for member in assignment.members] == [
        (2, (0,)),
        (9, (1,)),
        (10, (2,)),
        (11, (3,)),
        (100, (4,)),
    ]


def test_who_comes_first_makes_no_difference() -> None:
    everyone = present("rpc", 1, 2, 10)
    rosters = [assign_ranks("rpc", FIELDS["rpc"], order) for order in permutations(everyone)]
    assert all(assignment == rosters[0] for assignment in rosters)


def test_what_a_member_has_said_and_where_it_is_stay_with_it() -> None:
    assignment = called("mpi", 3, 2)
    found = {member.name: (member.address, member.hello) for member in assignment.members}
    assert found == {
        "launcher": ("10.0.0.100", {"key": "key-of-launcher"}),
        "node-2": ("10.0.0.2", {"host_key": "key-2"}),
        "node-3": ("10.0.0.3", {"host_key": "key-3"}),
    }


# How many there are


@pytest.mark.parametrize(("topology", "counted"), [("ddp", 4), ("mpi", 4), ("rpc", 5), ("single", 4)])
def test_the_number_of_nodes_is_found_out_where_it_is_not_given(topology: str, counted: int) -> None:
    assert called(topology, 1, 2, 3, 4).spec.nodes == counted
    assert called(topology, 1, 2, 3, 4, nodes=counted).spec.nodes == counted


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ("ddp", "the run has 4 nodes, 2 came: use --scale node=4"),
        ("mpi", "the run has 4 nodes, 2 came: use --scale node=4"),
        ("rpc", "the run has 4 nodes, 3 came: use --scale node=3"),  # the master is one of them
    ],
)
def test_another_number_of_nodes_than_the_run_has(topology: str, message: str) -> None:
    with pytest.raises(AssignmentError) as caught:
        called(topology, 1, 2, nodes=4)
    assert str(caught.value) == message


def test_too_many_came() -> None:
    with pytest.raises(AssignmentError, match="the run has 1 nodes, 2 came: use --scale node=1"):
        called("ddp", 1, 2, nodes=1)


def test_one_container_is_enough_for_all_processes_of_a_run() -> None:
    assert ranks(called("single", 1, nodes=3)) == {"node-1": (0, 1, 2)}


# A run that cannot be


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
def test_a_run_of_another_topology_says_which_file_to_use(
    topology: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(AssignmentError) as caught:
        assign_ranks(topology, fields, present(topology, 1, 2))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"strategy": "ddq"}, ["strategy: unknown strategy; known: serial, "]),
        ({"strategy": "ddp", "lr": -1.0, "epochs": "3"}, ["lr: ", "; epochs: "]),
        ({"strategy": "ddp", "epoch": 3}, ["epoch: "]),
        ({"strategy": "ddp", "nodes": "two"}, ["nodes: "]),
        ({"strategy": "ddp", "transport": "mpi"}, ["ddp cannot use mpi"]),
        ({}, ["strategy: "]),
    ],
)
def test_a_spec_that_is_not_valid_says_what_is_wrong_in_one_line(
    fields: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(AssignmentError) as caught:
        assign_ranks("ddp", fields, nodes(1, 2))
    message = str(caught.value)
    assert message.startswith("the run's spec is not valid: ")
    assert "\n" not in message
    for part in said:
        assert part in message


def test_more_nodes_than_a_strategy_can_use_is_a_message_too() -> None:
    with pytest.raises(AssignmentError, match="serial cannot run on 2 nodes"):
        assign_ranks("single", {"strategy": "serial"}, nodes(1, 2))


# The roster travels


@pytest.mark.parametrize("topology", ROLES)
def test_roster_and_back(topology: str) -> None:
    assignment = called(topology, 2, 10, lr=0.07, seed=3)
    for you, member in enumerate(assignment.members):
        arrived = RankAssignment.from_message(json.loads(json.dumps(assignment.as_message(you))))
        assert arrived.me == member
        assert (arrived.spec, arrived.members) == (assignment.spec, assignment.members)


def test_members_are_called_as_compose_shows_them() -> None:
    assert [member.name for member in (*nodes(3), other("launcher"))] == ["node-3", "launcher"]
    assert seat(called("rpc", 1, 2), "node-2") == 2


# Limits of a bare `up`


@pytest.mark.parametrize("topology", ROLES)
def test_what_the_containers_were_started_with_is_what_the_run_says(topology: str) -> None:
    limits = {"cpus": 0.8, "memory_mb": 512}
    spec = assign_ranks(topology, FIELDS[topology], present(topology, 1, 2), limits).spec
    # The nodes of topology single share one container.
    assert spec.cpus == pytest.approx(0.4 if topology == "single" else 0.8)
    assert spec.memory_mb == 512


def test_a_spec_that_says_otherwise_is_refused() -> None:
    with pytest.raises(
        AssignmentError, match="wants cpus 2, and the containers were started with 1: set SHARD"
    ):
        assign_ranks("ddp", {**FIELDS["ddp"], "cpus": 2}, present("ddp", 1, 2), {"cpus": 1.0})
    same = {**FIELDS["ddp"], "cpus": 2}
    assert assign_ranks("ddp", same, present("ddp", 1, 2), {"cpus": 2.0}).spec.cpus == 2
