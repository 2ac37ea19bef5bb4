"""Mistakes in what runtime docker refuses, and in the container that tries users' components."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import NotFound

from orchestrator.errors import InputError
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.docker import runtime as module
from orchestrator.runtimes.docker import sandbox
from orchestrator.runtimes.docker.engine import Engine, EngineError
from orchestrator.runtimes.docker.runtime import DockerRuntime, check_mounts, check_readable, links_missing
from orchestrator.runtimes.docker.sandbox import ContainerSandbox
from orchestrator.sandbox.base import Limits, Program, SandboxError
from orchestrator.sweeps.trials import Trials
from tests.unit.docker_support import FAST
from trainer.spec.run_spec import RunSpec


def spec(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "ddp", "nodes": 2, **fields})


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> DockerRuntime:
    client: Any = SimpleNamespace(api=None)
    engine = Engine(client, "unix:///x.sock", "26.1.5", "2.26.1", 4)
    for name, answer in {"image_trouble": None, "image_id": "sha256:1", "reach": engine, "gpus": 1}.items():
        monkeypatch.setattr(module, name, lambda *_, answer=answer: answer)
    return DockerRuntime(cold=True)


def test_plan_has_all_commands_on_the_checked_image(runtime: DockerRuntime, tmp_path: Path) -> None:
    assert runtime.unsupported_reason(spec()) is None
    plan = runtime.plan(spec(cpus=0.5, link=FAST), RunPaths(tmp_path), tmp_path)
    (compose,) = plan.cluster.processes
    assert compose.environment.items() >= {"SHARDYARD_SERVE": "1", "SHARDYARD_IMAGE": "sha256:1"}.items()


def test_runs_that_the_engine_cannot_execute_are_refused(
    runtime: DockerRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "cpus 0.1 × node_speed 0.09 is a quota of 0.009 for node 0, and the engine enforces 0.01 or more"
    missing = "image x is not there: make image"
    monkeypatch.setattr(module, "image_trouble", lambda engine: missing)
    assert runtime.unsupported_reason(spec()) == f"{missing}; or use --runtime local"
    monkeypatch.setattr(module, "image_trouble", lambda engine: None)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(module, "TUN", Path("/none/tun"))
    for fields, reason in (
        ({"cpus": 4}, None),
        ({"cpus": 4.5}, "cpus: 4.5 for a node, and the engine has 4; lower cpus"),
        ({"cpus": 0.1, "node_speed": [1, 0.1]}, None),
        ({"cpus": 0.1, "node_speed": [0.09, 1]}, slow),
        ({"link": FAST}, f"link: {links_missing()}"),
        ({"transport": "nccl"}, "transport nccl needs a GPU for every rank: 2 needed, 1 found"),
    ):
        assert runtime.unsupported_reason(spec(**fields)) == reason
    assert "need /none/tun, which this machine lacks" in str(links_missing())


def test_without_an_engine(runtime: DockerRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def reach() -> Engine:
        raise EngineError("no engine answers")

    plan = runtime.plan(spec(), RunPaths(tmp_path), tmp_path)
    monkeypatch.setattr(module, "reach", reach)
    monkeypatch.setattr(module, "is_responding", lambda engine: False)
    assert runtime.unavailable_reason() == "no engine answers"
    assert runtime.clean() == 0
    with pytest.raises(InputError, match="no engine answers\nthen run the same command to resume"):
        runtime.create(plan)


def test_data_that_the_containers_user_cannot_read_is_named(tmp_path: Path) -> None:
    run = RunSpec.model_validate({"strategy": "serial", "dataset": "mnist", "model": "lenet"})
    data = tmp_path / "my data"
    file = data / run.dataset.files[0]
    file.parent.mkdir(parents=True)
    file.touch(0o604)
    directories = [each for each in file.parents if each.is_relative_to(data)]
    for path, mode, unreadable in ((file, 0o604, 0o600), *((each, 0o701, 0o704) for each in directories)):
        check_readable(data, run)
        path.chmod(unreadable)
        with pytest.raises(InputError, match=re.escape(f"{path}: ") + rf".*chmod -R o\+rX '{data}'"):
            check_readable(data, run)
        path.chmod(mode)


def test_directories_to_mount_belong_to_the_user_and_have_no_colon(tmp_path: Path) -> None:
    check_mounts(tmp_path, tmp_path / "new" / "data")  # the engine would create it as root
    assert (tmp_path / "new" / "data").stat().st_mode & 0o777 == 0o755
    for directories in ((tmp_path / "a:b", tmp_path), (tmp_path, tmp_path / "a:b")):
        with pytest.raises(InputError, match="a:b: Docker cannot mount a path with a colon"):
            check_mounts(*directories)
    assert not (tmp_path / "a:b").exists()


# The container that tries users' components, or runs a submission


def test_the_image_of_sandboxes_is_prepared_once_and_what_they_leave_is_removed(
    runtime: DockerRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[str] = []
    for name in ("remove_orphans", "Reaper", "remove_of_orchestrator"):
        monkeypatch.setattr(module, name, lambda *_, name=name: done.append(name) or name)
    monkeypatch.setattr(module, "image_with", lambda engine, path: f"with {path.name}")
    (tmp_path / "needs.txt").write_text("numpy")
    plain = Program(["module"], {}, Limits(), {})
    needing = replace(plain, requirements=tmp_path / "needs.txt")
    for program, image in ((plain, "sha256:1"), (needing, "with needs.txt"), (plain, "sha256:1")):
        for _ in range(2):
            assert vars(runtime.sandbox(program))["_image"] == image
    assert done == ["remove_orphans", "Reaper", "remove_orphans"]
    runtime.remove_sandboxes()
    assert done[3:] == ["remove_of_orchestrator"]
    monkeypatch.setattr(module, "image_trouble", lambda engine: "no image")
    with pytest.raises(InputError, match="no image"):
        DockerRuntime().sandbox(plain)


class OneContainer:
    """An engine with one container, whose output the test sends through `container`."""

    def __init__(self) -> None:
        self.client = SimpleNamespace(api=self, containers=self)
        self.state = {"Running": True, "OOMKilled": False, "ExitCode": 0}
        self.error: Exception | None = None
        self.removed: list[str] = []
        self.container, self.own = socket.socketpair()

    def create(self, image: str, **settings: Any) -> Any:
        self.asked = {"image": image, **settings}
        return SimpleNamespace(id="c1")

    def attach_socket(self, identifier: str, params: Any) -> Any:
        return SimpleNamespace(_sock=self.own)

    def start(self, identifier: str) -> None:
        if self.error:
            raise self.error

    def inspect_container(self, identifier: str) -> dict[str, Any]:
        self.start(identifier)
        return {"State": self.state}

    def remove_container(self, identifier: str, force: bool, v: bool) -> None:
        assert (force, v) == (True, True)
        self.removed.append(identifier)

    def opened(self, code: Path = Path("/x"), data: Path = Path("/x")) -> ContainerSandbox:
        engine: Any = self
        trials = Trials(code.parent, data)
        trials.use_memory(700)
        trials._staged = SimpleNamespace(directory=code)  # type: ignore[assignment]
        made = ContainerSandbox(engine, "sha256:1", trials._program())
        made.open()
        return made


@pytest.fixture
def engine() -> Iterator[OneContainer]:
    made = OneContainer()
    with made.container, made.own:
        yield made


def test_it_has_a_nodes_limits_and_sees_only_what_it_needs(engine: OneContainer, tmp_path: Path) -> None:
    code, data = tmp_path / "code", tmp_path / "data"
    for mounted in ([tmp_path, code], [tmp_path, code, data]):  # the second time, there are data
        engine.opened(code, data)
        found = engine.asked
        assert found["entrypoint"] == ["python", "-m", "trainer.components"]
        assert (found["image"], found["network_mode"], found["pids_limit"]) == ("sha256:1", "none", 512)
        assert found["mem_limit"] == found["memswap_limit"] == "700m"
        mounts = [(mount["Source"], mount["Target"], mount["ReadOnly"]) for mount in found["mounts"]]
        assert mounts == [(str(path), str(path), True) for path in mounted]
        data.mkdir(exist_ok=True)


def test_answers_are_read_from_its_standard_output_alone(engine: OneContainer) -> None:
    trial = engine.opened()
    for stream, data in ((1, b"ab"), (2, b"noise"), (1, b""), (1, b"cdefg")):
        engine.container.sendall(bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data)
    assert [trial.read(3, 5.0) for _ in range(3)] == [b"ab", b"cde", b"fg"]
    assert trial.printed.line == "noise"
    with pytest.raises(TimeoutError):
        trial.read(1, 0.01)
    engine.container.close()
    assert trial.read(1, 5.0) == b""


def test_its_end_is_described_and_it_is_removed(
    engine: OneContainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "END_S", -1.0)
    trial = engine.opened()
    assert "closed the channel" in trial.ending()
    for killed, code, ending in ((True, 137, "700 MiB"), (False, 137, "SIGKILL"), (False, 3, "code 3")):
        engine.state = {"Running": False, "OOMKilled": killed, "ExitCode": code}
        assert ending in trial.ending()
    engine.error = NotFound("gone")
    assert trial.ending() == "was stopped"
    engine.error = ConnectionError("no socket")
    for failing in (trial.ending, engine.opened):  # the second removes what has not started
        with pytest.raises(SandboxError, match="no socket"):
            failing()
    for _ in range(2):
        trial.close()
    assert engine.removed == ["c1", "c1"]
