"""Options of Slurm jobs in sweep files and site files."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import InputError
from orchestrator.runtimes.slurm.options import SlurmOptions, read_site_file, read_variables, site_path
from orchestrator.sweeps.load import load_sweep

SWEEP = "name: x\nbase: {strategy: serial}\nblocks: [{}]\nslurm: "


def test_sweep_wins_over_the_site() -> None:
    site = SlurmOptions(partition="long", account="lab", arguments=["--exclusive"])
    sweep = SlurmOptions(partition="short", arguments=[])
    assert sweep.over(site) == SlurmOptions(partition="short", account="lab", arguments=[])


def test_site_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = site_path()
    assert path == tmp_path / "shardyard" / "slurm.yml"
    assert read_site_file(path) == SlurmOptions()
    path.parent.mkdir()
    path.write_text("account: lab\ntime: '1:00:00'\n")
    assert read_site_file(path) == SlurmOptions(account="lab", time="1:00:00")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("{partion: debug}", ["partion", "partition"]),
        ("{time: 30}", ["slurm.time", "30"]),
        ("{time: soon}", ["slurm.time", "soon"]),
        (f"{{time: '{'9' * 5000}'}}", ["slurm.time"]),
        ("{time: '٣'}", ["slurm.time"]),
        ("{partition: 'a b'}", ["slurm.partition", "a b"]),
        ('{account: "a\\nb"}', ["slurm.account"]),
        ("{allocation: job}", ["slurm.allocation", "job", "run", "sweep"]),
        ("{mpi: pmi2}", ["slurm.mpi", "pmi2", "mpirun", "pmix"]),
        ("{arguments: --exclusive}", ["slurm.arguments"]),
        ("{arguments: [-x]}", ["slurm.arguments[0]", "-x", "--NAME=VALUE"]),
        ("{arguments: [--exclusive, --nodes=3]}", ["slurm.arguments[1]", "--nodes", "Shardyard sets"]),
        ('{arguments: ["--qos=a\\nrm"]}', ["slurm.arguments[0]"]),
        ("{container: {engine: docker, image: x}}", ["slurm.container.engine", "apptainer", "pyxis"]),
        ("{container: {engine: pyxis}}", ["slurm.container.image"]),
        ("{container: {engine: pyxis, image: --x}}", ["slurm.container.image", "--x"]),
        ("{container: {engine: pyxis, image: a b}}", ["slurm.container.image", "a b"]),
        ("{arguments: [--container-image=x]}", ["slurm.arguments[0]", "--container-image", "`container`"]),
        ("[debug]", ["slurm"]),
    ],
)
def test_invalid_options_name_file_key_and_value(tmp_path: Path, options: str, named: list[str]) -> None:
    sweep = tmp_path / "sweep.yml"
    sweep.write_text(SWEEP + options)
    with pytest.raises(InputError) as raised:
        load_sweep(sweep)
    for each in (str(sweep), *named):
        assert each in str(raised.value)


@pytest.mark.parametrize(
    "content", ["[a]", "partion: debug", "account: 3", "a: [", "account: a\naccount: b"]
)
def test_invalid_site_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "slurm.yml"
    path.write_text(content)
    with pytest.raises(InputError, match=r"slurm\.yml"):
        read_site_file(path)


def test_options_change_no_key(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.yml"
    keys = set()
    for options in ("{}", "{partition: debug, arguments: [--exclusive]}"):
        sweep.write_text(SWEEP + options)
        keys.add(load_sweep(sweep).runs[0].key)
    assert len(keys) == 1


def test_variables_of_sbatch_come_last() -> None:
    variables = read_variables({"SBATCH_PARTITION": "long", "SBATCH_TIMELIMIT": "30", "SBATCH_GRES": ""})
    assert variables == SlurmOptions(partition="long", time="30")
    assert SlurmOptions(partition="short").over(variables) == SlurmOptions(partition="short", time="30")


def test_invalid_variable_is_named() -> None:
    with pytest.raises(InputError, match=r"^SBATCH_TIMELIMIT: 'soon'"):
        read_variables({"SBATCH_TIMELIMIT": "soon"})
