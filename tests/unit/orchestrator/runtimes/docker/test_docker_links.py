"""Links on runtime docker: the commands that set and connect them, and when they are executed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.docker import runtime as runtime_module
from orchestrator.runtimes.docker.compose import LINK, compose_project
from orchestrator.runtimes.docker.runtime import links_missing
from tests.unit.cluster_support import FIELDS, registered
from tests.unit.docker_support import FakeEngine, FakeRun, Row, Up, container, ended
from tests.unit.orchestrator.runtimes.docker.test_docker_warm import Sweep, running
from tests.unit.orchestrator.runtimes.docker.test_docker_warm import sweep as sweep  # a fixture
from trainer.cluster.commands import environment
from trainer.cluster.rank_assignment import AssignmentError, assign_ranks
from trainer.link_switch.control import Setup
from trainer.spec.run_spec import RunSpec

FAST, SLOW = {"bandwidth_mbit": 100}, {"bandwidth_mbit": 10}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    return FakeRun(tmp_path, monkeypatch, nodes=2, link=FAST)


def started(topology: str, nodes: int) -> list[Row]:
    return [*running(topology, nodes), container("switch")]


def setups(fake: FakeEngine) -> list[Setup]:
    """The links that were set, in order."""
    return [Setup.model_validate_json(command[-1]) for command in fake.commands if "exec" in command]


def plugs(fake: FakeEngine) -> list[Up]:
    return [each for each in fake.ups if "plug" in each.argv]


@pytest.mark.parametrize(
    ("fields", "linked"), [({"link": FAST}, True), ({}, False), ({"link": FAST, "nodes": 1}, False)]
)
def test_only_runs_with_links_have_a_switch(tmp_path: Path, fields: dict[str, Any], linked: bool) -> None:
    run = RunSpec.model_validate({"strategy": "ddp", "nodes": 2, **fields})
    found = compose_project(run, RunPaths(tmp_path), tmp_path, "owner", cores=4)
    assert found.linked is linked
    assert (str(LINK) in found.up) is linked


def test_links_are_set_before_nodes_are_connected(fake: FakeRun) -> None:
    fake.api.rows = started("ddp", 2)
    assert fake.run.wait(0).error is None
    assert setups(fake) == [], "compose still starts containers"
    fake.up.returncode = 0
    state = fake.run.wait(0)
    assert (state.error, state.running) == (None, 3), (
        "the switch does not end by itself, and does not count"
    )
    (setup,) = setups(fake)
    assert setup.addresses == ["10.0.4.1", "10.0.4.2"]
    assert (setup.nodes, setup.link.default.bandwidth_mbit) == (2, 100)
    assert [each.environment["SHARDYARD_NODE"] for each in plugs(fake)] == ["node-1", "node-2"]
    assert [each.argv[-2:] for each in plugs(fake)] == [["10.0.4.1", "10.0.4.2"], ["10.0.4.2", "10.0.4.1"]]
    fake.run.wait(0)
    assert len(plugs(fake)) == 2, "once"


def test_the_master_is_node_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRun(tmp_path, monkeypatch, "rpc", link=FAST)
    fake.api.rows = started("rpc", 2)
    fake.up.returncode = 0
    fake.run.wait(0)
    assert setups(fake)[0].addresses == ["10.0.6.1", "10.0.4.1", "10.0.4.2"]


def test_the_launcher_is_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRun(tmp_path, monkeypatch, "mpi", link=FAST)
    fake.api.rows = started("mpi", 3)
    fake.up.returncode = 0
    fake.run.wait(0)
    assert len(setups(fake)[0].addresses) == 3


def test_links_that_cannot_be_set_fail_the_run(fake: FakeRun) -> None:
    fake.api.rows = started("ddp", 2)
    fake.up.returncode = 0
    fake.answer.returncode, fake.answer.stderr = 1, "links: the switch does not answer"
    assert "the switch does not answer" in str(fake.run.wait(0).error)


def test_a_node_that_cannot_be_connected_fails_the_run(
    fake: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Up, "communicate", lambda self, timeout: (None, "compose\nlinks: no TUN device\n"))
    monkeypatch.setattr(Up, "poll", lambda self: 0)
    fake.up.returncode = 0
    start = fake._start

    def refused(argv: list[str], **options: Any) -> Up:
        started = start(argv, **options)
        started.returncode = 1
        return started

    monkeypatch.setattr("subprocess.Popen", refused)
    fake.api.rows = started("ddp", 2)
    assert str(fake.run.wait(0).error).endswith("links: no TUN device")


def test_a_switch_that_ends_fails_the_run(fake: FakeRun) -> None:
    fake.up.returncode = 0
    fake.api.rows = [*running("ddp", 2), ended("switch")]
    assert "switch" in str(fake.run.wait(0).error)


def test_a_run_ends_though_its_switch_runs(fake: FakeRun) -> None:
    fake.assign_ranks("ddp", 1, 2, link=FAST)
    fake.up.returncode = 0
    fake.api.rows = [ended("node", 1), ended("node", 2), ended("coordinator"), container("switch")]
    state = fake.run.wait(0)
    assert (state.running, state.error) == (0, None)
    assert state.exits.keys() == {"node 0", "node 1", "coordinator"}


def test_quotas_are_not_those_of_the_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRun(tmp_path, monkeypatch, nodes=2, link=FAST, cpus=0.5)
    fake.up.returncode = 0
    fake.api.rows = started("ddp", 2)
    fake.make_ready(0, 1)
    fake.run.wait(0)
    (update,) = [command for command in fake.commands if "update" in command]
    assert update[-2:] == ["node-1", "node-2"]


# Warm containers


def test_each_run_of_warm_containers_gets_its_own_links(sweep: Sweep) -> None:
    first = sweep.start(link=FAST)
    sweep.api.rows = started("ddp", 2)
    assert first.wait(0).error is None
    assert len(plugs(sweep.fake)) == 2
    sweep.finish(first)
    first.wait(0)
    first.stop()
    second = sweep.start_run(link=SLOW)
    assert [each.link.default.bandwidth_mbit for each in setups(sweep.fake)] == [100, 10]
    assert second.wait(0).error is None
    assert len(plugs(sweep.fake)) == 2, "the nodes are connected already"


def test_runs_without_links_have_containers_of_their_own(sweep: Sweep) -> None:
    one = sweep.start(link=FAST)
    sweep.api.rows = started("ddp", 2)
    other = sweep.start()
    assert sweep.nodes(one) is not sweep.nodes(other)
    assert not sweep.nodes(other).compose.linked


def test_a_lost_switch_replaces_warm_containers(sweep: Sweep) -> None:
    run = sweep.start(link=FAST)
    sweep.api.rows = started("ddp", 2)
    assert run.wait(0).error is None
    sweep.api.rows = running("ddp", 2)
    state = run.wait(0)
    assert state.nodes_lost
    assert "removed" in str(state.error)


def test_links_that_cannot_be_set_replace_warm_containers(sweep: Sweep) -> None:
    first = sweep.start(link=FAST)
    sweep.api.rows = started("ddp", 2)
    first.wait(0)
    sweep.finish(first)
    first.wait(0)
    first.stop()
    sweep.fake.answer.returncode, sweep.fake.answer.stderr = 1, "no answer"
    state = sweep.start_run(link=SLOW).wait(0)
    assert state.nodes_lost
    assert "no answer" in str(state.error)


def test_a_plan_shows_the_commands(sweep: Sweep) -> None:
    plan = sweep.plan(link=FAST)
    (links,), (_, *others) = plan.processes, plan.cluster.processes
    assert links.name == "links"
    assert json.loads(links.argv[-1])["link"]["default"]["bandwidth_mbit"] == 100
    assert [each.name for each in others[:2]] == ["plug"] * 2


# What is not possible


def test_links_need_tun_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sweep: Sweep) -> None:
    monkeypatch.setattr(runtime_module, "TUN", tmp_path / "tun")
    monkeypatch.setattr(runtime_module, "image_trouble", lambda engine: None)
    monkeypatch.setattr(runtime_module, "image_id", lambda engine: "sha256:1")
    monkeypatch.setattr("sys.platform", "linux")
    assert "tun" in str(links_missing())
    run = RunSpec.model_validate({**FIELDS["ddp"], "nodes": 2, "link": FAST})
    runtime = sweep.clusters.runtime
    assert str(runtime.unsupported_reason(run)).startswith("link")
    assert runtime.unsupported_reason(run.model_copy(update={"link": None})) is None
    (tmp_path / "tun").touch()
    assert links_missing() is None


def test_a_bare_up_has_no_links() -> None:
    fields = {**FIELDS["ddp"], "nodes": 2, "link": FAST}
    with pytest.raises(AssignmentError, match="link"):
        assign_ranks("ddp", fields, registered("ddp", 1, 2), {"cpus": 1.0})


@pytest.mark.parametrize(("link", "linked"), [(FAST, True), (None, False)])
def test_ranks_know_the_nodes_behind_the_switch(link: Any, linked: bool) -> None:
    assignment = assign_ranks("ddp", {**FIELDS["ddp"], "link": link}, registered("ddp", 1, 2, 3))
    found = environment(assignment, pid=1).get("SHARDYARD_LINKED", "")
    others = [each.address for each in assignment.agents if each != assignment.agent]
    assert found.split(",") == (others if linked else [""])
