"""The docker compose commands of a run. Starts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.docker.compose import COMPOSE, ComposeProject, compose_project, warm_project
from trainer.spec.run_spec import RunSpec

RUNS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "mpi": {"strategy": "all_reduce", "transport": "mpi"},
    "rpc": {"strategy": "rpc_split"},
    "single": {"strategy": "hogwild"},
}


def made(
    directory: Path = Path("/results/s/run"), topology: str = "ddp", cores: int = 64, **fields: Any
) -> ComposeProject:
    run = RunSpec.model_validate({**RUNS[topology], "nodes": 4, **fields})
    return compose_project(run, RunPaths(directory), Path("/data"), "1234 17.00 pid:[4]", cores)


# The project, whose name labels all containers and networks


def test_project_depends_on_the_directory_alone() -> None:
    assert made().project == made(lr=0.5, topology="mpi").project
    assert made(Path("/results/a")).project != made(Path("/results/b")).project
    assert made(Path("/results/s/run")).project == made(Path("/results/s/../s/run")).project


def test_project_is_a_valid_name_for_compose_and_dns() -> None:
    project = made(Path("/Größe/mit Leerzeichen/[x]")).project
    assert project.startswith("shardyard-")
    assert project.isascii()
    assert project.replace("-", "").isalnum()
    assert project == project.lower()
    assert len(f"{project}-launcher-1") < 64


# The command


@pytest.mark.parametrize(
    ("topology", "scale"),
    [("ddp", 4), ("mpi", 4), ("rpc", 3), ("single", 1)],  # rpc's master is the fourth
)
def test_scale(topology: str, scale: int) -> None:
    run = made(topology=topology)
    assert run.scale == scale
    assert run.files == (COMPOSE / f"{topology}.yml",)
    assert run.up == (
        *("compose", "--progress", "quiet", "-f", str(COMPOSE / f"{topology}.yml"), "-p", run.project),
        *("up", "-d", "--no-build", "--scale", f"node={scale}", "coordinator"),
    )


def test_down() -> None:
    run = made()
    assert run.down[: len(run.command)] == run.command
    assert {"down", "--volumes", "--remove-orphans"} <= set(run.down)


def test_gpu_overlay() -> None:
    run = made(transport="nccl")
    assert run.files == (COMPOSE / "ddp.yml", COMPOSE / "gpu.yml")
    assert run.command[3:7] == ("-f", str(COMPOSE / "ddp.yml"), "-f", str(COMPOSE / "gpu.yml"))


@pytest.mark.parametrize("topology", RUNS)
def test_compose_files_exist(topology: str) -> None:
    assert all(file.is_file() for file in made(topology=topology).files)


# The environment


def test_environment(tmp_path: Path) -> None:
    run = made(tmp_path / "s" / ".." / "run", cpus=1.5, memory_mb=512, pids=100, shm_mb=64)
    assert run.environment == {
        "SHARDYARD_SPEC": f"{tmp_path}/run/spec.json",
        "SHARDYARD_RESULTS": f"{tmp_path}/run",
        "SHARDYARD_RUN": "live",
        "SHARDYARD_WARM": "",
        "SHARDYARD_DATA": "/data",
        "SHARDYARD_CHECKPOINTS": "",  # even if the user exports it
        "SHARDYARD_CODE": "",
        "SHARDYARD_ORCHESTRATOR_ID": "1234 17.00 pid:[4]",
        "SHARDYARD_FETCH": "skip",
        "SHARDYARD_IMAGE": "shardyard-trainer",
        "SHARDYARD_CPUS": "64",
        "SHARDYARD_CPU_QUOTA": "1.5",
        "SHARDYARD_MEMORY_MB": "512",
        "SHARDYARD_PIDS": "100",
        "SHARDYARD_SHM_MB": "64",
    }


def test_warm_containers_differ_in_project_scale_and_directory(tmp_path: Path) -> None:
    run = made(tmp_path / "run", topology="rpc")
    warm = warm_project(run, tmp_path / "warm", 7, tmp_path / "spec.json")
    assert (warm.files, warm.slower_cpus, warm.topology) == (run.files, {}, "rpc")
    assert f"node={warm.scale}" == "node=7" == warm.up[-2]
    assert warm.project == made(tmp_path / "warm").project != run.project
    changed = {name: value for name, value in warm.environment.items() if value != run.environment[name]}
    assert changed == {
        "SHARDYARD_SPEC": f"{tmp_path}/spec.json",
        "SHARDYARD_RESULTS": f"{tmp_path}/warm",
        "SHARDYARD_RUN": "",
        "SHARDYARD_WARM": "1",
    }


def test_checkpoint_directory(tmp_path: Path) -> None:
    run = made(tmp_path, checkpoint_steps=10)
    assert run.environment["SHARDYARD_CHECKPOINTS"] == f"{tmp_path}/checkpoints/docker"


def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = compose_project(
        RunSpec.model_validate(RUNS["ddp"]), RunPaths(Path("out/run")), Path("data"), "", cores=1
    )
    found = {name: run.environment[f"SHARDYARD_{name}"] for name in ("SPEC", "RESULTS", "DATA")}
    assert found == {
        "SPEC": f"{tmp_path}/out/run/spec.json",
        "RESULTS": f"{tmp_path}/out/run",
        "DATA": f"{tmp_path}/data",
    }


LIMITS = ("CPU_QUOTA", "MEMORY_MB", "PIDS", "SHM_MB")


@pytest.mark.parametrize(
    ("topology", "share"), [("ddp", 1), ("mpi", 1), ("rpc", 1), ("single", 4)], ids=lambda part: str(part)
)
def test_limits(topology: str, share: int) -> None:
    run = made(topology=topology, cpus=0.5, memory_mb=300, pids=40, shm_mb=20)
    found = [float(run.environment[f"SHARDYARD_{name}"]) for name in LIMITS]
    assert found == [share * 0.5, share * 300, share * 40, share * 20]


@pytest.mark.parametrize(
    ("topology", "cpus", "cores", "quota"),
    [
        ("single", 1.0, 2, "2"),  # four nodes of one core each, on two cores
        ("single", 0.25, 2, "1"),
        ("ddp", 2.0, 2, "2"),
        ("ddp", 4.0, 2, "2"),
        ("ddp", 0.4, 2, "0.4"),
        ("single", 0.1, 2, "0.4"),
        ("single", 0.3, 64, "1.2"),  # not 1.2000000000000002
    ],
)
def test_quota_is_at_most_the_engine_s_cores(topology: str, cpus: float, cores: int, quota: str) -> None:
    run = made(topology=topology, cpus=cpus, cores=cores)
    assert run.environment["SHARDYARD_CPU_QUOTA"] == quota
    assert run.environment["SHARDYARD_CPUS"] == str(cores)  # until all ranks are ready
    assert run.quota_pending is (float(quota) < cores)
    assert run.limit_cpus("a", "b") == [("update", "--cpus", quota, "a", "b")]


@pytest.mark.parametrize(
    ("topology", "containers"),
    [
        ("ddp", ["node-1", "node-2", "node-3", "node-4"]),
        ("mpi", ["launcher", "node-1", "node-2", "node-3", "node-4"]),
        ("rpc", ["master", "node-1", "node-2", "node-3"]),  # the master is node 0
    ],
)
def test_each_slower_node_has_a_quota_of_its_own(topology: str, containers: list[str]) -> None:
    run = made(topology=topology, cpus=0.4, node_speed={0: 0.5, 2: 0.25, 3: 0.25})
    assert run.quota_pending
    first, second, third, fourth = containers[-4:]
    limits = {command[2]: command[3:] for command in run.limit_cpus(*containers)}
    assert limits == {"0.4": (*containers[:-4], second), "0.2": (first,), "0.1": (third, fourth)}
