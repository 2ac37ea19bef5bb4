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


LISTED = """srun: error:  mpi/pmix_v4: init: (null) [0]: mpi_pmix.c:195: pmi/pmix: can not load PMIx library
srun: error: Couldn't load specified plugin name for mpi/pmix: Plugin init() callback failed
srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types"""


@pytest.mark.parametrize(
    ("stderr", "code", "trouble"),
    [
        (LISTED, 1, "can not load PMIx library"),
        ("srun: error: Invalid account or account/partition combination specified", 1, None),
        ("srun: Job 15 to start at 2030-01-01T01:01:01 on nodes yard1", 0, None),
    ],
)
def test_pmix_that_srun_lists_need_not_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stderr: str, code: int, trouble: str | None
) -> None:
    stub(monkeypatch, tmp_path, "srun", f'cat >&2 <<"TEXT"\n{stderr}\nTEXT\nexit {code}')
    found = commands.pmix_trouble()
    assert (found is None) is (trouble is None)
    assert str(trouble) in str(found)


@pytest.mark.parametrize(
    ("error", "named"),
    [
        ("sinfo: fatal: Could not establish a configuration source", "SLURM_CONF"),
        ("slurm_load_partitions: Unable to contact slurm controller (connect failure)", "connect failure"),
    ],
)
def test_cluster_that_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: str, named: str
) -> None:
    for name in commands.COMMANDS:
        stub(monkeypatch, tmp_path, name, f'echo "{error}" >&2; exit 1')
    assert named in str(commands.unavailable_reason())


def test_hint_at_the_help_is_not_the_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "sbatch: unrecognized option '--nonsense'\nTry \"sbatch --help\" for more information"
    stub(
        monkeypatch,
        tmp_path,
        "sbatch",
        f"cat >&2 <<'TEXT'\n{text}\nTEXT\nexit 1".replace("'TEXT'", '"TEXT"'),
    )
    with pytest.raises(SlurmError, match=r"^unrecognized option '--nonsense'$"):
        commands.try_submission(["--nonsense"])


@pytest.mark.parametrize("name", ["PARTITION", "TIMELIMIT", "EXPORT", "NO_REQUEUE", "OPEN_MODE"])
def test_variables_do_not_override_the_script(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv(f"SBATCH_{name}", "theirs")
    monkeypatch.setenv("SBATCH_CLUSTERS", "kept")
    stub(monkeypatch, tmp_path, "sbatch", f'echo "${{SBATCH_{name}-none}} $SBATCH_CLUSTERS"')
    assert commands.submit(["sbatch", "--parsable", "x"]) == "none kept"


@pytest.mark.parametrize(
    ("partitions", "lines", "minutes"),
    [
        (None, ["debug*|infinite", "short|10:00"], None),
        (None, ["debug|10:00", "long*|2-00:00:00"], 2880),
        ("long,short", ["long*|1:30:00", "short|10:30"], 10),
        ("nope", [], None),
    ],
)
def test_longest_time_limit(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    partitions: str | None,
    lines: list[str],
    minutes: int | None,
) -> None:
    stub(monkeypatch, tmp_path, "sinfo", "true; " + "; ".join(f"echo '{line}'" for line in lines))
    assert commands.longest_minutes(partitions) == minutes
