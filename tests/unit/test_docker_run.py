"""A run of runtime docker under way: what is told of containers that an engine says it has."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.runtimes.docker import runtime as module
from tests.unit.docker_support import Place, Row, container, ended


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


# Exits and names


def test_while_compose_starts_them_the_run_goes_on(place: Place) -> None:
    state = place.run.wait(0)
    assert (state.exits, state.running, state.trouble) == ({}, 1, None)
    assert place.up.argv == ["docker", "--host", "unix:///x.sock", *place.cluster.up]
    assert place.up.environment.items() >= place.cluster.environment.items()
    assert place.api.filters == {"label": f"com.docker.compose.project={place.cluster.project}"}


def test_who_has_ended_is_named_by_rank_and_not_by_number(place: Place) -> None:
    place.assign_ranks("ddp", 10, 2, 5)
    place.up.returncode = 0
    place.api.codes = {"node-2": 0, "node-5": 137, "node-10": 3, "coordinator-1": 1}
    place.api.rows = [
        ended("node", 10),
        ended("node", 2),
        ended("node", 5),
        ended("coordinator"),
        ended("data"),
    ]
    state = place.run.wait(5)
    assert state.exits == {"node 2": 3, "node 0": 0, "node 1": -9, "coordinator": 1}
    assert (state.running, state.trouble) == (0, None)


@pytest.mark.parametrize(
    ("topology", "rows", "names"),
    [
        ("mpi", [ended("launcher"), ended("node", 4)], {"launcher", "node 1"}),
        ("rpc", [ended("master"), ended("node", 1), ended("node", 4)], {"node 0", "node 1", "node 2"}),
        ("single", [ended("node", 1)], {"node 0"}),
    ],
)
def test_names_in_the_other_topologies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topology: str, rows: list[Row], names: set[str]
) -> None:
    place = Place(tmp_path, monkeypatch, topology)
    place.assign_ranks(topology, 1, 4)
    place.api.rows = rows
    assert place.run.wait(5).exits.keys() == names


def test_nodes_of_several_ranks_are_numbered_as_nodes(place: Place) -> None:
    place.assign_ranks("ddp", 1, 7, processes_per_node=2)
    place.api.rows = [ended("node", 7), ended("node", 1)]
    assert place.run.wait(5).exits.keys() == {"node 0", "node 1"}


@pytest.mark.parametrize(
    ("topology", "names"), [("ddp", {"node 0", "node 1"}), ("rpc", {"node 0", "node 1", "node 2"})]
)
def test_before_the_roll_is_called_nobody_has_another_s_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topology: str, names: set[str]
) -> None:
    place = Place(tmp_path, monkeypatch, topology)
    place.api.rows = [ended("node", 1), ended("node", 2)] + [ended("master")] * (topology == "rpc")
    assert place.run.wait(5).exits.keys() == names


@pytest.mark.parametrize(
    ("told", "code"), [(0, 0), (1, 1), (125, 125), (128, 128), (137, -9), (139, -11), (143, -15)]
)
def test_exit_codes_above_128_are_signals(place: Place, told: int, code: int) -> None:
    place.api.codes = {"node-1": told}
    place.api.rows = [ended("node", 1), container("node", 2)]
    assert place.run.wait(5).exits == {"node 0": code}


def test_a_container_that_ended_is_asked_once_why(place: Place) -> None:
    place.api.rows = [ended("node", 1), container("node", 2)]
    for _ in range(3):
        place.run.wait(0)
    assert place.api.inspected == ["node-1"]


def test_what_only_fetches_data_or_was_never_started_does_not_count(place: Place) -> None:
    place.up.returncode = 0
    place.api.rows = [container("data"), container("node", 1), container("coordinator", 1, "created", "")]
    assert place.run.wait(0).running == 1


def test_wait_returns_when_someone_ends_and_not_before(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.up.returncode = 0
    place.api.rows = [container("node", 1), container("node", 2)]
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            place.api.rows = [ended("node", 1), container("node", 2)]

    monkeypatch.setattr(time, "sleep", sleep)
    state = place.run.wait(60)
    assert (state.exits, state.running, len(looks)) == ({"node 0": 0}, 1, 3)


# Trouble


def test_a_node_that_does_not_answer_any_more_is_stuck(place: Place) -> None:
    place.assign_ranks("ddp", 3, 4)
    place.api.rows = [container("node", 3), container("node", 4, health="unhealthy")]
    assert place.run.wait(5).trouble == "node 1 is stuck: it does not answer any more"
    place.api.rows = [container("node", 3), container("node", 4, health="health: starting")]
    assert place.run.wait(0).trouble is None


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (
            "pulling\n\nError response from daemon: no space left\n",
            "Error response from daemon: no space left",
        ),
        ("", "exit code 17"),
        ("x" * 5000, "x" * 300),
    ],
)
def test_compose_that_fails_has_the_last_word(place: Place, said: str, complaint: str) -> None:
    place.up.returncode = 17
    place.paths.log("compose").write_text(said)
    state = place.run.wait(5)
    assert state.trouble == f"docker compose failed: {complaint}"


def test_compose_that_fails_because_a_node_has_ended_is_not_the_cause(place: Place) -> None:
    place.up.returncode = 1
    place.api.codes = {"node-1": 2}
    place.api.rows = [ended("node", 1)]
    state = place.run.wait(5)
    assert (state.exits, state.trouble) == ({"node 0": 2}, None)


def test_an_engine_that_died_ends_the_run(place: Place) -> None:
    place.api.rows = [ended("node", 1), container("node", 2)]
    place.run.wait(5)
    place.api.error, place.alive = ConnectionError("no socket"), False
    state = place.run.wait(5)
    assert state.trouble == "the Docker engine died in mid-run (ConnectionError)"
    assert (state.exits, state.running) == ({"node 0": 0}, 0)


def test_an_engine_that_is_slow_once_has_not_died(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.api.rows = [container("node", 1)]
    before = place.run.wait(0)
    place.api.error = TimeoutError()
    assert place.run.wait(0) == before
    monkeypatch.setattr(module, "DEAF_S", -1.0)  # but one that trains_until_shutdown so has
    assert "died in mid-run (TimeoutError)" in str(place.run.wait(0).trouble)


# A node that is slower


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch, bottleneck_cpus=0.25)


def test_the_last_node_is_held_back_once_and_when_all_are_there(slow: Place) -> None:
    slow.api.rows = [container("node", 10), container("node", 9), container("coordinator")]
    assert slow.run.wait(0).trouble is None
    slow.api.rows.append(container("node", 2, "created"))
    slow.run.wait(0)
    assert slow.commands == []
    slow.api.rows[-1] = container("node", 2)
    slow.run.wait(0)
    slow.run.wait(0)
    assert [command[3:] for command in slow.commands] == [["update", "--cpus", "0.25", "node-10"]]


def test_an_engine_that_does_not_hold_a_node_back_ends_the_run(slow: Place) -> None:
    slow.answer = SimpleNamespace(returncode=1, stderr="Error response from daemon: no\n")
    slow.api.rows = [container("node", number) for number in (1, 2, 3)]
    trouble = "the engine does not hold the last node back: Error response from daemon: no"
    assert slow.run.wait(0).trouble == trouble


def test_nodes_that_are_alike_are_left_alone(place: Place) -> None:
    place.api.rows = [container("node", number) for number in (1, 2, 3)]
    place.run.wait(0)
    assert place.commands == []
