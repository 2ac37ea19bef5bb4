"""Mistakes in the docker compose commands of a run: their project, scale, paths, limits and quotas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.docker.compose import COMPOSE, ComposeProject, compose_project, placed
from tests.unit.cluster_support import FIELDS
from tests.unit.docker_support import FAST
from trainer.spec.run_spec import RunSpec

LIMITS = ("CPU_QUOTA", "CPUS", "MEMORY_MB", "PIDS", "SHM_MB")


def made(
    directory: Path = Path("/results/s/run"), topology: str = "ddp", cores: int = 64, **fields: Any
) -> ComposeProject:
    run = RunSpec.model_validate({**FIELDS[topology], "nodes": 4, **fields})
    return compose_project(run, RunPaths(directory), Path("data"), "1234 17.00 pid:[4]", cores)


def test_project_depends_on_the_directory_alone_and_is_a_name_for_compose_and_dns() -> None:
    assert made().project == made(Path("/results/s/../s/run"), lr=0.5, topology="mpi").project
    assert made(Path("/results/a")).project != made(Path("/results/b")).project
    project = made(Path("/Größe/mit Leerzeichen/[x]")).project
    assert project.removeprefix("shardyard-").isalnum()
    assert project == project.lower().encode().decode("ascii")
    assert len(f"{project}-launcher-1") < 64


@pytest.mark.parametrize(
    ("topology", "fields", "scale", "files"),
    [
        ("ddp", {"transport": "nccl"}, 4, ["ddp.yml", "gpu.yml"]),
        ("ddp", {"link": FAST}, 4, ["ddp.yml", "link.yml"]),
        ("ddp", {"link": FAST, "nodes": 1}, 1, ["ddp.yml"]),
        ("mpi", {}, 4, ["mpi.yml"]),
        ("rpc", {}, 3, ["rpc.yml"]),  # the master is the fourth
        ("single", {}, 1, ["single.yml"]),
    ],
)
def test_commands_are_for_the_project_and_its_files(
    topology: str, fields: dict[str, Any], scale: int, files: list[str]
) -> None:
    run = made(topology=topology, **fields)
    chosen = [part for file in files for part in ("-f", str(COMPOSE / file))]
    command = ("compose", "--progress", "quiet", *chosen, "-p", run.project)
    assert all(file.is_file() for file in run.files)
    assert run.linked is ("link.yml" in files)
    assert run.up == (*command, "up", "-d", "--no-build", "--scale", f"node={scale}", "coordinator")
    assert run.down == (*command, "down", "--volumes", "--remove-orphans", "--timeout", "0")


def test_environment_has_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    common = {"SPEC": f"{tmp_path}/warm/spec.json", "RESULTS": f"{tmp_path}/warm", "SERVE": "1"}
    common |= {"DATA": f"{tmp_path}/data", "FETCH": "skip", "ORCHESTRATOR_ID": "1234 17.00 pid:[4]"}
    common |= {"CHECKPOINTS": "", "CODE": ""}  # even if the user exports others
    run = made(Path("s/../run"))
    for warm in ("", "1"):
        found = placed(run, Path("warm"), 7, warm=bool(warm))
        expected = {**common, "WARM": warm}
        assert {name: found.environment[f"SHARDYARD_{name}"] for name in expected} == expected
        assert (found.project, found.files, found.up[-2]) == (
            made(Path("warm")).project,
            run.files,
            "node=7",
        )
    directory = made(Path("run"), checkpoint_steps=10).environment["SHARDYARD_CHECKPOINTS"]
    assert directory == f"{tmp_path}/run/checkpoints/docker"


@pytest.mark.parametrize(
    ("topology", "cpus", "cores", "quota"),
    [
        ("single", 1.0, 2, "2"),  # four nodes of one core each, on two cores
        ("single", 0.3, 64, "1.2"),  # not 1.2000000000000002
        ("ddp", 4.0, 2, "2"),
        ("mpi", 0.4, 2, "0.4"),
        ("rpc", 2.0, 2, "2"),
    ],
)
def test_limits_are_those_of_all_nodes_of_a_container(
    topology: str, cpus: float, cores: int, quota: str
) -> None:
    """The quota is at most the engine's cores, and applies once all ranks are ready."""
    run = made(topology=topology, cpus=cpus, cores=cores, memory_mb=300, pids=40, shm_mb=20)
    share = 4 if topology == "single" else 1
    found = [run.environment[f"SHARDYARD_{name}"] for name in LIMITS]
    assert found == [quota, *map(str, (cores, share * 300, share * 40, share * 20))]
    assert run.quota_pending is (float(quota) < cores)
    assert run.limit_cpus("a", "b") == [("update", "--cpus", quota, "a", "b")]
