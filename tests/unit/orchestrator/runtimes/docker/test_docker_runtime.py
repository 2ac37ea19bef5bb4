"""Runtime docker: the end of a run, and checks before one starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.docker import runtime as module
from orchestrator.runtimes.docker.engine import Engine, EngineError
from orchestrator.runtimes.docker.runtime import DockerRuntime
from tests.unit.conftest import event
from tests.unit.docker_support import FakeRun, container, ended
from trainer.spec.run_spec import RunSpec


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    return FakeRun(tmp_path, monkeypatch)


# Stopping a run


def test_stop_saves_logs_and_removes_everything(fake: FakeRun) -> None:
    fake.assign_ranks("ddp", 10, 2)
    fake.api.rows = [container("node", 10), ended("node", 2), container("coordinator"), container("data")]
    for _ in range(2):
        fake.run.stop()
    for _ in range(2):
        fake.cluster.delete()
    asked = [command[2:][command[2:].index("-p") + 2] for command in fake.commands]
    assert asked[:2] == ["stop", "down"]
    assert fake.removed == [fake.compose.project] * 2  # leftovers before the start; and now
    assert fake.up.returncode == -15
    logs = {path.name: path.read_text() for path in fake.paths.directory.glob("*.log")}
    assert logs == {
        "compose.log": "",
        "coordinator.log": "log of coordinator-1\n",
        "node-0.log": "log of node-2\n",
        "node-1.log": "log of node-10\n",
    }


def test_stop_ignores_errors_of_a_dead_engine(fake: FakeRun) -> None:
    fake.api.error, fake.alive = ConnectionError("no socket"), False
    fake.run.stop()
    fake.alive = True
    with pytest.raises(ConnectionError):  # the engine responds
        fake.run.stop()


def test_collect_moves_the_coordinator_s_files(fake: FakeRun) -> None:
    fake.assign_ranks("ddp", 1, 2)
    live = fake.paths.live
    for rank in (0, 1):
        (live / f"rank-{rank}.jsonl").write_text(event("start", rank, 5.0 - rank, pid=7).to_line() + "\n")
    (live / "usage.jsonl").write_text("{}\n")
    assert [each.rank for each in fake.run.new_events()] == [1, 0]
    fake.run.collect(fake.paths)
    lines = fake.paths.events.read_text().splitlines()
    assert [json.loads(line)["rank"] for line in lines] == [1, 0]
    assert fake.paths.usage.read_text() == "{}\n"
    assert not fake.paths.weights.exists()
    assert not live.exists()


def test_collect_without_events(fake: FakeRun) -> None:
    fake.run.collect(fake.paths)
    assert fake.paths.events.read_text() == ""


# The runtime


def spec(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "ddp", "nodes": 2, **fields})


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> DockerRuntime:
    client: Any = SimpleNamespace()
    engine = Engine(client, "unix:///x.sock", "26.1.5", "2.26.1", 4)
    monkeypatch.setattr(module, "reach", lambda: engine)
    monkeypatch.setattr(module, "image_trouble", lambda engine: None)
    return DockerRuntime(cold=True)


def absent(message: str) -> Callable[[], Engine]:
    def reach() -> Engine:
        raise EngineError(message)

    return reach


def test_runtime(runtime: DockerRuntime, tmp_path: Path) -> None:
    assert runtime.unavailable_reason() is None
    assert runtime.node_kind() == "containers of Docker 26.1.5"
    assert runtime.environment().items() >= {"docker": "26.1.5", "compose": "2.26.1"}.items()
    compose, quota = runtime.plan(spec(cpus=0.5), RunPaths(tmp_path), tmp_path).cluster.processes
    assert compose.argv[:3] == ["docker", "--host", "unix:///x.sock"]
    assert quota.argv[3:6] == ["update", "--cpus", "0.5"]
    assert compose.environment["SHARDYARD_RUN"] == "live"


@pytest.mark.parametrize(
    ("cpus", "lacking"), [(4, None), (4.5, "cpus: 4.5 for a node, and the engine has 4; lower cpus")]
)
def test_more_cpus_than_the_engine_has(
    runtime: DockerRuntime, monkeypatch: pytest.MonkeyPatch, cpus: float, lacking: str | None
) -> None:
    monkeypatch.setattr(module, "image_id", lambda engine: "sha256:1")
    assert runtime.unsupported_reason(spec(cpus=cpus)) == lacking


def test_quota_that_the_engine_cannot_enforce(
    runtime: DockerRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "image_id", lambda engine: "sha256:1")
    slow = {"nodes": 2, "cpus": 0.1}
    assert runtime.unsupported_reason(spec(**slow, node_speed=[1, 0.1])) is None
    reason = runtime.unsupported_reason(spec(**slow, node_speed=[0.09, 1]))
    assert reason is not None
    for named in ("cpus 0.1", "node_speed 0.09", "node 0", "0.01 or more"):
        assert named in reason


def test_without_the_image(runtime: DockerRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "image_trouble", lambda engine: "image x is not there: make image")
    assert runtime.unsupported_reason(spec()) == "image x is not there: make image; or use --runtime local"


def test_without_an_engine(runtime: DockerRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert runtime.unavailable_reason() is None
    monkeypatch.setattr(module, "reach", absent("no engine answers"))
    assert runtime.unavailable_reason() == "no engine answers"
    assert runtime.clean() == 0
    plan = runtime.plan(spec(), RunPaths(tmp_path), tmp_path)
    monkeypatch.setattr(module, "is_responding", lambda engine: False)
    with pytest.raises(InputError, match="no engine answers"):
        runtime.create(plan)
    with pytest.raises(InputError, match="no engine answers"):
        DockerRuntime().node_kind()
