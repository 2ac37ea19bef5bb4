"""The script of an allocation, and those of its runs. RENEW_GOLDEN=1 writes the golden ones again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.slurm.allocation_script import (
    AllocationJob,
    directives,
    is_warm,
    render,
    render_run,
    time_limit,
    warm_nodes,
)
from orchestrator.runtimes.slurm.options import SlurmOptions
from orchestrator.runtimes.slurm.script import Job
from trainer.spec.run_spec import RunSpec
from trainer.warm import client

GOLDEN = Path(__file__).resolve().parents[4] / "golden"
PATHS = RunPaths(Path("/shared/results/my sweep/ddp-100%"))


def run(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "ddp", "transport": "gloo", "nodes": 2, **fields})


RUNS = [
    run(),
    run(strategy="all_reduce", transport="mpi", nodes=3, processes_per_node=2, timeout_s=61.0),
    run(strategy="all_reduce", transport="memory", nodes=5),
]


def allocation(runs: Sequence[RunSpec] = RUNS, warm: bool = True, **options: Any) -> AllocationJob:
    return AllocationJob(
        runs=runs,
        directory=PATHS.allocation,
        options=SlurmOptions(allocation="sweep", **options),
        owner="shardyard 12 34/56 pid:[78]",
        token="0123abcd",
        minutes=time_limit(runs, None),
        warm=warm,
    )


def job(spec: RunSpec, **options: Any) -> Job:
    mpirun = Path("/shared/venv/bin/mpirun")
    return Job(spec, PATHS, Path("/shared/data"), SlurmOptions(**options), "", "", "", mpirun)


@pytest.fixture(autouse=True)
def shared_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/shared/venv/bin/python")
    for module in ("script", "allocation_script"):
        monkeypatch.setattr(
            f"orchestrator.runtimes.slurm.{module}.python_path", lambda: "/shared/shardyard"
        )
    monkeypatch.setattr(client, "__file__", "/shared/shardyard/trainer/warm/client.py")


@pytest.mark.parametrize("name", ["slurm_allocation.sh", "slurm_step.sh"])
def test_golden_scripts(name: str) -> None:
    made = {
        "slurm_allocation.sh": lambda: render(allocation(partition="long", arguments=["--qos=high"])),
        "slurm_step.sh": lambda: render_run(job(RUNS[0]), warm=True),
    }
    script = made[name]()
    if os.environ.get("RENEW_GOLDEN"):
        (GOLDEN / name).write_text(script)
    assert script == (GOLDEN / name).read_text()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_allocation_fits_every_run() -> None:
    assert {"--nodes=3", "--ntasks-per-node=2", "--cpus-per-task=3"} <= set(directives(allocation()))
    assert {"--nodes=3", "--ntasks=3", "--cpus-per-task=6"} <= set(warm_nodes(allocation()))


def test_no_warm_nodes_for_cold_runs() -> None:
    assert "trainer.slurm_allocation.node" in render(allocation())
    assert "trainer.slurm_allocation.node" not in render(allocation(warm=False))
    assert "client.py" not in render_run(job(RUNS[0]), warm=False)


@pytest.mark.parametrize(
    ("transport", "mpi", "warm"),
    [("gloo", "pmix", True), ("mpi", None, True), ("mpi", "mpirun", True), ("mpi", "pmix", False)],
)
def test_runs_that_can_be_warm(transport: str, mpi: Any, warm: bool) -> None:
    assert is_warm(run(strategy="all_reduce", transport=transport), SlurmOptions(mpi=mpi)) is warm


def test_step_uses_the_nodes_of_its_run() -> None:
    threads = render_run(job(RUNS[2]), warm=True)
    assert "srun --ntasks=1 " in threads
    assert "--nodes=1 --ntasks-per-node=1 --cpus-per-task=5 " in threads
    assert "mpirun -n 6 --map-by ppr:2:node " in render_run(job(RUNS[1]), warm=True)


@pytest.mark.parametrize(("allowed", "expected"), [(None, 34), (60, 34), (10, 10)])
def test_time_limit_fits_all_timeouts_or_is_the_longest_allowed(allowed: int | None, expected: int) -> None:
    assert time_limit([run(timeout_s=900.0), run(timeout_s=960.5)], allowed) == expected


def test_chosen_time_limit() -> None:
    assert "--time=1:00:00" in directives(allocation(time="1:00:00"))
