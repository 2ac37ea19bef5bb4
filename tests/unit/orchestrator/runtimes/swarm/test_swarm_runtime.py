"""Runtime `swarm` refuses what a swarm cannot do, and gives every machine the same image and files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest
import requests

from orchestrator.errors import InputError
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.docker.engine import Engine, EngineError
from orchestrator.runtimes.swarm import runtime as module
from orchestrator.runtimes.swarm.machines import Machine
from orchestrator.runtimes.swarm.options import SwarmOptions
from orchestrator.runtimes.swarm.runtime import SwarmRuntime, code_files, distributed_image
from tests.unit.cluster_support import FIELDS
from trainer.spec.run_spec import RunSpec


def machine(name: str, cores: float = 4.0, usable: bool = True, rack: str = "1") -> Machine:
    labels = {"node.hostname": name, "node.labels.rack": rack}
    return Machine(name, name, name, cores, "ready" if usable else "down", usable, labels)


def image(digests: list[str]) -> Any:
    return SimpleNamespace(
        id="sha256:12", attrs={"RepoDigests": digests, "Config": {"Entrypoint": ["python", "-m", "x"]}}
    )


def engine(digests: list[str]) -> Engine:
    client: Any = SimpleNamespace(
        images=SimpleNamespace(get=lambda name: image(digests)),
        info=lambda: {"Swarm": {"NodeID": "own"}},
    )
    return Engine(client, "unix:///m.sock", "26.1", "2.26", 2)


def run(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({**FIELDS["ddp"], "nodes": 3, **fields})


@pytest.fixture
def swarm(monkeypatch: pytest.MonkeyPatch) -> SwarmRuntime:
    monkeypatch.delenv("SHARDYARD_IMAGE", raising=False)
    monkeypatch.setattr(module, "image_trouble", lambda engine: None)
    found = [machine("one"), machine("two", rack="2"), machine("gone", usable=False)]
    monkeypatch.setattr(module, "own_machine", lambda engine: "one")
    monkeypatch.setattr(module, "machines", lambda engine: found)
    made = SwarmRuntime()
    made._engine = engine([])
    return made


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"node_speed": [1.0, 1.0, 0.5]}, "node_speed"),
        ({"checkpoint_epochs": 1}, "checkpoints"),
        ({"restarts": 1}, "lost rank"),
        ({"link": {"bandwidth_mbit": 100.0}}, "link"),
        ({"cpus": 8.0}, "node.hostname!=one"),
    ],
)
def test_what_a_swarm_cannot_do_is_refused(swarm: SwarmRuntime, fields: dict[str, Any], named: str) -> None:
    assert swarm.unsupported_reason(run()) is None
    assert named in str(swarm.unsupported_reason(run(**fields)))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (SwarmOptions(nodes_per_machine=1), "nodes_per_machine: 1 on 2 machines (one, two)"),
        (SwarmOptions(constraints=["node.labels.rack==3"]), "node.labels.rack==3"),
    ],
)
def test_more_nodes_than_there_is_room_for(swarm: SwarmRuntime, options: SwarmOptions, named: str) -> None:
    swarm.configure(options)
    assert named in str(swarm.unsupported_reason(run()))


def test_cores_are_those_of_the_machines_that_the_sweep_may_use(swarm: SwarmRuntime) -> None:
    assert swarm.cores() == 8
    swarm.configure(SwarmOptions(constraints=["node.hostname==one"]))
    assert swarm.cores() == 4


@pytest.mark.parametrize(
    ("name", "digests", "expected"),
    [
        ("shardyard-trainer", [], "sha256:12"),
        ("site/trainer:2", ["other@sha256:00", "site/trainer@sha256:34"], "site/trainer@sha256:34"),
        ("host:5000/trainer", ["host:5000/trainer@sha256:56"], "host:5000/trainer@sha256:56"),
        ("shardyard-trainer", ["site/trainer@sha256:34"], "sha256:12"),
    ],
)
def test_image_by_what_is_the_same_on_all_machines(
    monkeypatch: pytest.MonkeyPatch, name: str, digests: list[str], expected: str
) -> None:
    monkeypatch.setenv("SHARDYARD_IMAGE", name)
    assert distributed_image(engine(digests)) == expected


def test_the_coordinators_machine_must_take_tasks(
    swarm: SwarmRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "own_machine", lambda engine: "gone")
    assert "docker node update --availability active gone" in str(swarm.unsupported_reason(run()))


def test_the_master_of_rpc_is_not_counted(swarm: SwarmRuntime) -> None:
    swarm.configure(SwarmOptions(nodes_per_machine=1))
    assert swarm.unsupported_reason(RunSpec.model_validate({**FIELDS["rpc"], "nodes": 3})) is None


def test_managers_with_results_at_the_same_path_have_different_stacks(
    swarm: SwarmRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = set()
    for own in ("one", "two"):
        monkeypatch.setattr(module, "own_machine", lambda engine, own=own: own)
        names.add(swarm._project(run(), RunPaths(tmp_path), tmp_path).project)
    assert len(names) == 2


def test_plan_is_the_stack_and_writes_nothing(
    swarm: SwarmRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_compose_config", lambda engine, run: {"services": {}})
    plan = swarm.plan(run(), RunPaths(tmp_path / "run"), tmp_path / "data")
    (deploy,) = plan.cluster.processes
    assert deploy.argv[:5] == ["docker", "--host", "unix:///m.sock", "stack", "deploy"]
    assert '"spec"' in str(plan.cluster.script)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (requests.exceptions.ConnectionError("Connection refused"), "no Docker engine answers"),
        (
            docker.errors.APIError("503", explanation="This node is not a swarm manager."),
            "refuses: This node",
        ),
    ],
)
def test_an_engine_that_ends_during_a_sweep_is_no_full_disk(
    swarm: SwarmRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: OSError, named: str
) -> None:
    def ask(engine: Engine) -> list[Machine]:
        raise error  # the SDK's exceptions are of class OSError

    monkeypatch.setattr(module, "machines", ask)
    with pytest.raises(EngineError, match=named):
        swarm.plan(run(), RunPaths(tmp_path / "run"), tmp_path / "data")


def test_a_row_needs_no_answer_of_a_manager_that_has_ended(
    swarm: SwarmRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_compose_config", lambda engine, run: {"services": {}})
    swarm.plan(run(), RunPaths(tmp_path / "run"), tmp_path / "data")
    before = swarm.node_kind(), swarm.cores()
    monkeypatch.setattr(module, "machines", None)
    assert (swarm.node_kind(), swarm.cores()) == before == ("containers on 2 machines of a Docker Swarm", 8)


def test_files_of_users_code_are_named_by_their_path(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "net.py").write_text("x = 1")
    assert code_files(tmp_path) == {"a/net.py": str(tmp_path / "a" / "net.py")}
    (tmp_path / "a" / "__init__.py").touch()  # Swarm refuses an empty file
    assert code_files(tmp_path)["a/__init__.py"] == str(module.EMPTY)
    assert module.EMPTY.stat().st_size > 0
    (tmp_path / "a" / "words.txt").touch()
    with pytest.raises(InputError, match=r"a/words\.txt: is empty"):
        code_files(tmp_path)
    (tmp_path / "a" / "words.txt").unlink()
    (tmp_path / "a" / "data.npy").write_bytes(bytes(module.MAX_CONFIG_BYTES + 1))
    with pytest.raises(InputError, match=r"a/data\.npy"):
        code_files(tmp_path)
