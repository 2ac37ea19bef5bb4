"""Roles of a container, and the prefix of a rank's lines on the console."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from trainer import __main__ as rank
from trainer.cluster import __main__ as container
from trainer.cluster import agent, coordinator, privileges
from trainer.cluster.commands import CHECKPOINTS
from trainer.data.base import DataError
from trainer.spec.registries import DATASETS
from trainer.spec.run_spec import RunSpec

# A container


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The spec file named in the container's environment."""
    for name in [name for name in os.environ if name.startswith("SHARDYARD_")]:
        monkeypatch.delenv(name)
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"strategy": "ddp"}))
    monkeypatch.setenv("SHARDYARD_SPEC", str(path))
    monkeypatch.setenv("SHARDYARD_TOPOLOGY", "ddp")
    return path


@pytest.fixture
def owned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, ...]]:
    """Calls that change owners and modes."""
    taken: list[tuple[Path, ...]] = []
    monkeypatch.setattr(privileges, "drop_privileges_to_owner", lambda *arguments: taken.append(arguments))
    monkeypatch.setattr(privileges, "make_writable_for_nodes", lambda directory: taken.append((directory,)))
    return taken


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("role", ["node", "launcher", "master"])
def test_agent_roles(spec: Path, monkeypatch: pytest.MonkeyPatch, role: str, warm: bool) -> None:
    monkeypatch.setattr(agent, "main", lambda role, topology, warm: (role, topology, warm))
    monkeypatch.setenv("SHARDYARD_WARM", "1" if warm else "")
    found: Any = container.main([role])
    assert found == (role, "ddp", warm)


@pytest.mark.parametrize("arguments", [[], ["nodes"], ["node", "coordinator"], ["--help"]])
def test_unknown_role_lists_the_known_ones(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert container.main(arguments) == 2
    assert "node|launcher|master|coordinator|data|skip" in capsys.readouterr().err


def test_skip() -> None:
    assert container.main(["skip"]) == 0


Runs = list[tuple[str, Path, Path, dict[str, Any]]]


@pytest.fixture
def coordinated(monkeypatch: pytest.MonkeyPatch, owned: list[tuple[Path, ...]], spec: Path) -> Runs:
    runs: Runs = []

    def main(
        topology: str, file: Path, directory: Path, limits: dict[str, Any], scale: int | None = None
    ) -> Any:
        assert owned == [(spec, Path("/results"))]
        runs.append((topology, file, directory, limits if scale is None else {"scale": scale}))
        return 7, ["ok: 2 nodes"]

    monkeypatch.setattr(coordinator, "main", main)
    return runs


def test_coordinator_of_a_sweep(monkeypatch: pytest.MonkeyPatch, coordinated: Runs, spec: Path) -> None:
    """The spec has all fields; the container's limits may be those of several nodes."""
    monkeypatch.setenv("SHARDYARD_RUN", "live")
    monkeypatch.setenv("SHARDYARD_CPUS", "2")
    assert container.main(["coordinator"]) == 7
    assert coordinated == [("ddp", spec, Path("/results/live"), {})]


def test_coordinator_whose_nodes_may_start_later(
    monkeypatch: pytest.MonkeyPatch, coordinated: Runs, spec: Path
) -> None:
    monkeypatch.setenv("SHARDYARD_RUN", "live")
    monkeypatch.setenv("SHARDYARD_SCALE", "3")
    assert container.main(["coordinator"]) == 7
    assert coordinated == [("ddp", spec, Path("/results/live"), {"scale": 3})]


def test_coordinator_of_warm_containers(
    monkeypatch: pytest.MonkeyPatch, owned: list[tuple[Path, ...]], coordinated: Runs, spec: Path
) -> None:
    def serve(topology: str, directory: Path) -> int:
        assert owned == [(spec, Path("/results"))]
        assert (topology, directory) == ("ddp", Path("/results"))
        return 5

    monkeypatch.setattr(coordinator, "serve", serve)
    monkeypatch.setenv("SHARDYARD_WARM", "1")
    assert container.main(["coordinator"]) == 5
    assert coordinated == []


def test_coordinator_of_a_bare_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], coordinated: Runs
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setenv("SHARDYARD_HOST_RESULTS", "./results")
    for name, value in {"CPUS": "0.5", "MEMORY_MB": "512", "PIDS": "100", "SHM_MB": ""}.items():
        monkeypatch.setenv(f"SHARDYARD_{name}", value)
    assert container.main(["coordinator"]) == 7
    ((_, _, directory, limits),) = coordinated
    assert limits == {"cpus": 0.5, "memory_mb": 512, "pids": 100}
    assert re.fullmatch(r"/results/up-ddp-\d{4}-\d\d-\d\dT\d{6}Z", str(directory))
    assert capsys.readouterr().out == f"ok: 2 nodes\n  results: ./results/{directory.name}\n"


def test_data_is_downloaded_with_the_privileges_of_the_owner(
    monkeypatch: pytest.MonkeyPatch, owned: list[tuple[Path, ...]], spec: Path
) -> None:
    fetched: list[tuple[str, Path]] = []
    spec.write_text(json.dumps({"strategy": "ddp", "dataset": "mnist"}))

    def prepare(self: Any, directory: Path) -> None:
        assert owned == [(spec, Path("/data"), CHECKPOINTS), (CHECKPOINTS,)]
        fetched.append((DATASETS.name_of(self), directory))

    monkeypatch.setattr(DATASETS.load("mnist"), "prepare", prepare)
    assert container.main(["data"]) == 0
    assert fetched == [("mnist", Path("/data"))]


def test_failed_download(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    owned: list[tuple[Path, ...]],
    spec: Path,
) -> None:
    def prepare(self: Any, directory: Path) -> None:
        raise DataError("mnist is not in /data")

    monkeypatch.setattr(DATASETS.load("digits"), "prepare", prepare)
    assert container.main(["data"]) == 1
    assert capsys.readouterr().err == "FAILED: mnist is not in /data\n"


BAD = ["", "[]", '{"dataset": "mnits"}', '{"dataset": {"name": "mnist", "x": 1}}']


@pytest.mark.parametrize("text", BAD)
def test_data_leaves_invalid_specs_to_the_coordinator(
    capsys: pytest.CaptureFixture[str], owned: list[tuple[Path, ...]], spec: Path, text: str
) -> None:
    spec.write_text(text)
    assert container.main(["data"]) == 0
    assert capsys.readouterr() == ("", "")


# A rank's process


@pytest.fixture
def prefixes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Prefixes passed to the event writers of ranks that do not train."""
    given: list[str] = []

    class Writer:
        def __init__(self, run: str, rank: int, out: Path | None, prefix: str) -> None:
            given.append(prefix)

    monkeypatch.setattr(rank, "EventWriter", Writer)
    monkeypatch.setattr(rank, "_load_data", lambda task, events: False)
    return given


@pytest.mark.parametrize(
    ("processes", "variable", "prefix"),
    [
        (1, None, "node-{rank} | "),
        (2, None, "rank {rank} | "),
        (1, "", ""),  # compose writes the node's name
        (2, "r{rank}: ", "r{rank}: "),
    ],
)
def test_prefix_of_a_rank_s_lines(
    spec: Path,
    monkeypatch: pytest.MonkeyPatch,
    prefixes: list[str],
    processes: int,
    variable: str | None,
    prefix: str,
) -> None:
    run = RunSpec.model_validate(
        {"strategy": "one_shot", "transport": "memory", "nodes": 2, "processes_per_node": processes}
    )
    spec.write_text(run.model_dump_json())
    if variable is not None:
        monkeypatch.setenv("SHARDYARD_PREFIX", variable)
    assert rank.main() == 1
    assert prefixes == [prefix]


def test_rank_writes_to_the_console_of_its_node(
    spec: Path, monkeypatch: pytest.MonkeyPatch, prefixes: list[str]
) -> None:
    redirected: list[Path] = []
    run = {"strategy": "all_reduce", "transport": "mpi", "nodes": 3, "processes_per_node": 2}
    spec.write_text(RunSpec.model_validate(run).model_dump_json())
    monkeypatch.setattr(rank, "_redirect_console", redirected.append)
    monkeypatch.setattr(rank, "Watchdog", lambda *_: pytest.fail("not redirected"))
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "6")
    for console in ("/logs/node-{node}.log", "/proc/7/fd/1"):
        monkeypatch.setenv("SHARDYARD_CONSOLE", console)
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "5")
        with pytest.raises(pytest.fail.Exception, match="not redirected"):
            rank.main()
    assert redirected == [Path("/logs/node-2.log"), Path("/proc/7/fd/1")]
