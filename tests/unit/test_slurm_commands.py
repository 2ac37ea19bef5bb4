"""The commands of Slurm, which are stubs."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.runtimes.slurm import commands
from orchestrator.runtimes.slurm.commands import QueuedJob, SlurmError


def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, script: str) -> None:
    command = tmp_path / name
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def test_error_is_the_last_line_of_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stub(
        monkeypatch,
        tmp_path,
        "sbatch",
        "echo 'sbatch: note' >&2; echo 'sbatch: error: Bad thing' >&2; exit 1",
    )
    with pytest.raises(SlurmError, match=r"^Bad thing$"):
        commands.submit(["sbatch", "--parsable", "x"])


def test_number_of_a_submitted_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stub(monkeypatch, tmp_path, "sbatch", "echo '12;cluster'")
    assert commands.submit(["sbatch", "--parsable", "x"]) == "12"


def test_queue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stub(monkeypatch, tmp_path, "squeue", "echo '12|shardyard 1 2/3 pid:[4]|/home/a|b'")
    assert commands.queued() == [QueuedJob("12", "shardyard 1 2/3 pid:[4]", Path("/home/a|b"))]


def test_accounting_remembers_what_the_controller_has_forgotten(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stub(monkeypatch, tmp_path, "scontrol", "echo 'error: Invalid job id specified' >&2; exit 1")
    stub(monkeypatch, tmp_path, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert commands.state("12") is None
    stub(monkeypatch, tmp_path, "sacct", "echo 'TIMEOUT|None|0:15|00:03:00'")
    found = commands.state("12")
    assert found is not None
    assert found.state == "TIMEOUT"


def test_nodes_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = [
        f"NodeName=n{n} NodeHostName={host} CPUTot=8 " for n, host in enumerate(("a", "a", "b", "here"))
    ]
    monkeypatch.setattr(commands, "machine_cores", lambda: 2.0)
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    stub(monkeypatch, tmp_path, "scontrol", "\n".join(f"echo {line}" for line in lines))
    assert commands.host_cores() == 18
