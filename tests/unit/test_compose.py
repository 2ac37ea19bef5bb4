"""From a launch plan to a docker compose command. Nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.docker.compose import COMPOSE, LIVE, Cluster, cluster
from trainer.spec.run_spec import RunSpec

RUNS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "mpi": {"strategy": "all_reduce", "transport": "mpi"},
    "rpc": {"strategy": "rpc_split"},
    "single": {"strategy": "hogwild"},
}


def made(
    directory: Path = Path("/results/s/run"), topology: str = "ddp", cores: int = 64, **fields: Any
) -> Cluster:
    run = RunSpec.model_validate({**RUNS[topology], "nodes": 4, **fields})
    return cluster(run, RunPaths(directory), Path("/data"), "1234 17.00 pid:[4]", cores)


# The project: its name is the label by which everything is found again


def test_a_run_s_project_is_the_same_each_time_and_that_of_its_directory() -> None:
    assert made().project == made(lr=0.5, topology="mpi").project
    assert made(Path("/results/a")).project != made(Path("/results/b")).project
    assert made(Path("/results/s/run")).project == made(Path("/results/s/../s/run")).project


def test_a_project_has_a_name_that_compose_takes_and_that_is_a_host_s_too() -> None:
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
def test_how_many_containers_of_service_node_there_are(topology: str, scale: int) -> None:
    run = made(topology=topology)
    assert run.scale == scale
    assert run.files == (COMPOSE / f"{topology}.yml",)
    assert run.up == (
        *("compose", "--progress", "quiet", "-f", str(COMPOSE / f"{topology}.yml"), "-p", run.project),
        *("up", "-d", "--no-build", "--scale", f"node={scale}", "coordinator"),
    )


def test_down_names_the_same_project_and_leaves_nothing() -> None:
    run = made()
    assert run.down[: len(run.compose)] == run.compose
    assert {"down", "--volumes", "--remove-orphans"} <= set(run.down)


def test_gpus_are_an_overlay() -> None:
    run = made(transport="nccl")
    assert run.files == (COMPOSE / "ddp.yml", COMPOSE / "gpu.yml")
    assert run.compose[3:7] == ("-f", str(COMPOSE / "ddp.yml"), "-f", str(COMPOSE / "gpu.yml"))


@pytest.mark.parametrize("topology", RUNS)
def test_the_files_that_are_named_exist(topology: str) -> None:
    assert all(file.is_file() for file in made(topology=topology).files)


# The environment


def test_environment(tmp_path: Path) -> None:
    run = made(tmp_path / "s" / ".." / "run", cpus=1.5, memory_mb=512, pids=100, shm_mb=64)
    assert run.environment == {
        "SHARDYARD_SPEC": f"{tmp_path}/run/spec.json",
        "SHARDYARD_RESULTS": f"{tmp_path}/run",
        "SHARDYARD_RUN": LIVE,
        "SHARDYARD_DATA": "/data",
        "SHARDYARD_CHECKPOINTS": "",  # whatever is exported
        "SHARDYARD_ORCHESTRATOR_ID": "1234 17.00 pid:[4]",
        "SHARDYARD_FETCH": "skip",
        "SHARDYARD_IMAGE": "shardyard-trainer",
        "SHARDYARD_CPUS": "1.5",
        "SHARDYARD_MEMORY_MB": "512",
        "SHARDYARD_PIDS": "100",
        "SHARDYARD_SHM_MB": "64",
    }


def test_checkpoints_lie_in_the_run_s_directory_apart_from_those_of_processes(tmp_path: Path) -> None:
    run = made(tmp_path, checkpoint_steps=10)
    assert run.environment["SHARDYARD_CHECKPOINTS"] == f"{tmp_path}/checkpoints/docker"


def test_relative_paths_are_not_relative_to_the_compose_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = cluster(RunSpec.model_validate(RUNS["ddp"]), RunPaths(Path("out/run")), Path("data"), "", cores=1)
    found = {name: run.environment[f"SHARDYARD_{name}"] for name in ("SPEC", "RESULTS", "DATA")}
    assert found == {
        "SPEC": f"{tmp_path}/out/run/spec.json",
        "RESULTS": f"{tmp_path}/out/run",
        "DATA": f"{tmp_path}/data",
    }


LIMITS = ("CPUS", "MEMORY_MB", "PIDS", "SHM_MB")


@pytest.mark.parametrize(
    ("topology", "share"), [("ddp", 1), ("mpi", 1), ("rpc", 1), ("single", 4)], ids=lambda part: str(part)
)
def test_limits_are_a_node_s_and_one_container_has_those_of_all_its_nodes(
    topology: str, share: int
) -> None:
    run = made(topology=topology, cpus=0.5, memory_mb=300, pids=40, shm_mb=20)
    found = [float(run.environment[f"SHARDYARD_{name}"]) for name in LIMITS]
    assert found == [share * 0.5, share * 300, share * 40, share * 20]


@pytest.mark.parametrize(
    ("topology", "cpus", "cores", "quota"),
    [
        ("single", 1.0, 2, "2"),  # four nodes with a core each, on two cores
        ("single", 0.25, 2, "1"),
        ("ddp", 2.0, 2, "2"),
        ("ddp", 4.0, 2, "2"),
        ("ddp", 0.4, 2, "0.4"),
        ("single", 0.1, 2, "0.4"),
        ("single", 0.3, 64, "1.2"),  # and not 1.2000000000000002
    ],
)
def test_no_quota_is_beyond_the_engine_s_cores(topology: str, cpus: float, cores: int, quota: str) -> None:
    assert made(topology=topology, cpus=cpus, cores=cores).environment["SHARDYARD_CPUS"] == quota
