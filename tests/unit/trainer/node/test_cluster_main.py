"""Mistakes in the roles of a container: arguments, privileges, limits, what a bare `up` prints."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from trainer.data.base import DataError
from trainer.node import __main__ as container
from trainer.node import coordinator, lead, privileges, serving
from trainer.spec.registries import DATASETS

RESULTS, CHECKPOINTS = Path("/results"), Path("/checkpoints")
Calls = list[tuple[Any, ...]]


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The spec file named in the container's environment."""
    for name in [name for name in os.environ if name.startswith("SHARDYARD_")]:
        monkeypatch.delenv(name)
    path = tmp_path / "spec.json"
    monkeypatch.setenv("SHARDYARD_SPEC", str(path))
    monkeypatch.setenv("SHARDYARD_TOPOLOGY", "ddp")
    return path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, spec: Path) -> Calls:
    """What a role has called, in order."""
    made: Calls = []

    def fake(owner: Any, name: str, returned: Any = None) -> None:
        def call(*arguments: Any, **options: Any) -> Any:
            made.append((name, *(each for each in (*arguments, *options.values()) if each != spec)))
            return returned

        monkeypatch.setattr(owner, name, call)

    def drop(file: Path, *directories: Path) -> None:
        assert file == spec
        made.append(directories)

    monkeypatch.setattr(privileges, "drop_privileges_to_owner", drop)
    fake(privileges, "make_writable_for_nodes")
    fake(coordinator, "main", (7, ["ok: 2 nodes"]))
    fake(coordinator, "serve_containers", 5)
    fake(serving, "serve_container", 3)
    fake(serving, "serve_stream", 4)
    fake(lead, "main", 6)
    return made


@pytest.mark.parametrize("warm", ["", "1"])
def test_agent_roles(calls: Calls, monkeypatch: pytest.MonkeyPatch, warm: str) -> None:
    monkeypatch.setenv("SHARDYARD_WARM", warm)
    roles = ("node", "launcher", "master")
    assert [container.main([role]) for role in roles] == [3, 3, 3]
    assert calls == [("serve_container", role, "ddp", bool(warm)) for role in roles]


def test_unknown_role_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["nodes"], ["node", "coordinator"]):
        assert container.main(arguments) == 2
        assert "node|launcher|master|coordinator|data|skip" in capsys.readouterr().err
    assert container.main(["skip"]) == 0


def test_roles_outside_of_containers(calls: Calls) -> None:
    assert container.main(["lead", "{}"]) == 6
    assert container.main(["agent", "launcher", "10.0.0.1", "/tmp/own"]) == 4
    assert calls == [("main", "{}"), ("serve_stream", "launcher", "10.0.0.1", Path("/tmp/own"))]


def test_coordinator_of_a_sweep(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHARDYARD_SERVE", "1")
    assert container.main(["coordinator"]) == 5
    assert calls == [(RESULTS,), ("serve_containers", "ddp", RESULTS)]
    assert capsys.readouterr().out == ""


def test_coordinator_of_a_bare_up(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    variables = "CPUS=0.5 MEMORY_MB=512 PIDS=100 SHM_MB= HOST_RESULTS=./results"
    for name, _, value in (each.partition("=") for each in variables.split()):
        monkeypatch.setenv(f"SHARDYARD_{name}", value)
    assert container.main(["coordinator"]) == 7
    *_, directory, limits = calls[-1]
    assert limits == {"cpus": 0.5, "memory_mb": 512, "pids": 100}
    assert re.fullmatch(r"/results/up-ddp-\d{4}-\d\d-\d\dT\d{6}Z", str(directory))
    waits, *summary = capsys.readouterr().out.splitlines()
    assert waits == container.WAITS
    assert summary == ["ok: 2 nodes", f"  results: ./results/{directory.name}"]


def test_data_is_downloaded_with_the_privileges_of_the_owner(
    calls: Calls, spec: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(self: Any, directory: Path) -> None:
        assert calls == [(Path("/data"), CHECKPOINTS), ("make_writable_for_nodes", CHECKPOINTS)]
        raise DataError(f"mnist is not in {directory}")

    monkeypatch.setattr(DATASETS.load("mnist"), "prepare", prepare)
    spec.write_text('{"dataset": "mnist"}')
    assert container.main(["data"]) == 1
    assert capsys.readouterr().err == "FAILED: mnist is not in /data\n"
    # The coordinator reports what is wrong in a spec.
    for text in ("", "[]", '{"dataset": "mnits"}', '{"dataset": {"name": "mnist", "x": 1}}'):
        spec.write_text(text)
        assert container.main(["data"]) == 0
    out, err = capsys.readouterr()
    assert ({*out.splitlines()}, err) == ({container.PREPARES}, "")
