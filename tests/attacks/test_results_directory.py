"""Attacks with a results directory: links, pipes and huge files that are read, links written through."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner, Result

from orchestrator.cli import app
from orchestrator.errors import InputError, StorageError
from orchestrator.execution.sweep_runner import _remove_previous_attempt
from orchestrator.prediction.measured_cluster import read_measured_cluster
from orchestrator.replay.run import ClusterTime
from orchestrator.report.model.comparison import read_comparison
from orchestrator.results.records import RunResult
from orchestrator.results.store import RESULT, RunPaths, SweepPaths, is_claimed, write_atomic
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.slurm.run import SlurmRun
from orchestrator.sweeps.load import load_sweep
from tests.support.traced_sweep import traced_sweep
from tests.unit.report_support import unrendered_figures
from trainer.core.record import MAX_DEPTH, MAX_KEYS, parse_object
from trainer.spec.run_spec import RunSpec

SECRET = "a secret of the user"
NAMES = ("secret", "result.json")
LOCAL = ("--runtime", "local")


@pytest.fixture(autouse=True)
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of the user, with files that the attacks try to read, change or remove."""
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "home"
    directory.mkdir()
    directory.chmod(0o755)
    for name in NAMES:
        (directory / name).write_text(SECRET)
    yield directory
    assert directory.stat().st_mode & 0o777 == 0o755
    assert {path.name: path.read_text() for path in directory.iterdir()} == dict.fromkeys(NAMES, SECRET)


@pytest.fixture
def paths(tmp_path: Path) -> SweepPaths:
    return traced_sweep(tmp_path / "out", runs=2)[0]


def huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(2**42)  # takes no room


# What is in place of a file, and what is said of it.
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "pipe"),
    "link": (lambda path: path.symlink_to(Path("home/secret").resolve()), "link"),
    "endless": (lambda path: path.symlink_to("/dev/zero"), "link"),
    "directory": (Path.mkdir, "directory"),
    "huge": (huge, "larger than"),
}


def damaged(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink(missing_ok=True)
    make(path)


def invoke(*arguments: str | Path) -> Result:
    """A command, which ends in order or with one clear message."""
    with unrendered_figures():
        done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exception is None or isinstance(done.exception, InputError | StorageError | SystemExit)
    assert SECRET not in done.output + str(done.exception)
    return done


def refusals(paths: SweepPaths, out: Path) -> list[str]:
    """What commands that read the directory say if they refuse it."""
    sweep, reference = paths.directory, traced_sweep(out / "reference", runs=2)[0].directory
    commands: list[tuple[str | Path, ...]] = [("report", sweep), ("replay", sweep)]
    commands += [("compare", reference, sweep, "--out", out / "compared.html")]
    commands += [("export", sweep, "--to", "csv", "--out", out / "csv")]
    done = [invoke(*command).exception for command in commands]
    for written in [*paths.directory.glob("report.*"), *paths.directory.glob("*.csv")]:
        assert SECRET not in written.read_text()
    return [str(each) for each in done if isinstance(each, InputError)]


@pytest.mark.parametrize(("make", "named"), DAMAGES.values(), ids=DAMAGES)
def test_what_is_no_file_is_the_cause_of_its_run_alone(
    tmp_path: Path, make: Callable[[Path], object], named: str
) -> None:
    paths, _ = traced_sweep(tmp_path / "out")
    first, second, third = read_comparison(paths).record.keys
    damaged(paths.run(first).result, make)
    for name in ("cluster.json", "timeline.window.json", "trace-0.bin", "spec.json"):
        damaged(paths.run(second).directory / name, make)
    assert refusals(paths, tmp_path) == []
    comparison = read_comparison(paths)
    assert named in comparison.unusable[first]
    assert named in getattr(comparison.clusters[second], "reason", "")
    assert isinstance(comparison.clusters[third], ClusterTime)
    assert {row.key for row in comparison.rows} == {second, third}
    assert first in paths.markdown.read_text()
    damaged(paths.record, make)
    os.mkfifo(paths.lock)
    assert not is_claimed(paths)
    refused = [*refusals(paths, tmp_path), str(invoke("watch", paths.directory).exception)]
    assert len(refused) == 5
    assert all("sweep.json" in each and named in each for each in refused)


def test_a_link_in_place_of_a_run_is_not_followed(paths: SweepPaths, outside: Path, tmp_path: Path) -> None:
    key = read_comparison(paths).record.keys[0]
    place = paths.run(key).directory
    place.rename(tmp_path / "moved")
    place.symlink_to(outside)
    assert refusals(paths, tmp_path) == []
    assert f"is in {key}, which is a symbolic link" in read_comparison(paths).unusable[key]


def test_a_result_has_so_many_values_and_no_more(paths: SweepPaths) -> None:
    """A parser makes 5 GB of 100 MB of empty lists."""

    def keys(count: int) -> str:
        return "{" + ",".join(f'"{number}": 0' for number in range(count)) + "}"

    key = read_comparison(paths).record.keys[0]
    for text, named in (
        ('{"ranks": [' + "[]," * (RESULT.values // 2 + 1) + "[]]}", "values"),
        (keys(MAX_KEYS + 1), "keys"),
        ('{"environment": ' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}", "nested"),
    ):
        paths.run(key).result.write_text(text)
        assert named in read_comparison(paths).unusable[key]
    assert parse_object(keys(MAX_KEYS), "text")
    assert parse_object('{"a": ' * MAX_DEPTH + "1" + "}" * MAX_DEPTH, "text")


def test_the_first_wrong_value_of_a_list_is_the_only_error() -> None:
    """An error of pydantic takes hundreds of times the bytes of a value in a file."""
    for ranks in ([[]] * 1000, [{"seconds": dict.fromkeys(map(str, range(1000)), "")}]):
        with pytest.raises(ValidationError) as raised:
            RunResult.model_validate({"ranks": ranks})
        assert raised.value.error_count() < 100


def test_speeds_of_nodes_that_no_run_has_are_refused(paths: SweepPaths) -> None:
    assert invoke("replay", paths.directory, "--node-speed", "1,1").exception is None
    for count in (3, 500):
        refused = invoke("replay", paths.directory, "--node-speed", ",".join(["1"] * count)).exception
        assert str(refused).startswith(f"--node-speed: {count} speeds, and no run has more than 2")


def test_costs_of_a_cluster_are_read_from_a_regular_file_with_transports(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    for text in ("", "{}", '{"runtime": "local", "nodes": "processes", "transports": {}}'):
        file.write_text(text)
        with pytest.raises(InputError, match=f"^--cluster {file}: "):
            read_measured_cluster(file)
    for kind in ("pipe", "endless", "huge"):
        damaged(file, DAMAGES[kind][0])
        with pytest.raises(InputError, match=f"{file}: is "):
            read_measured_cluster(file)


def test_questions_about_fields_that_runs_lack_are_unanswered(paths: SweepPaths, tmp_path: Path) -> None:
    odd = {"nodes": {"a": [1]}, "strategy.x": None, "__class__": 1, "<b>": "<script>", "node_speed": "x"}
    asked = {"measure": "accuracy", "against": {"nodes": 2}}
    questions = [{**asked, "compare": {name: value}} for name, value in odd.items()]
    paths.record.write_text(json.dumps({**json.loads(paths.record.read_text()), "questions": questions}))
    assert refusals(paths, tmp_path) == []
    assert "<script>" not in paths.markdown.read_text()


def test_commands_write_through_no_link_in_place_of_a_directory(paths: SweepPaths, outside: Path) -> None:
    file, new = outside.parent / "sweep.yml", outside.parent / "new"
    file.write_text("{name: s, base: {dataset: digits, model: mlp}, blocks: [{base: {strategy: serial}}]}")
    (run,) = load_sweep(file).runs
    places = [new / name for name in (run.key, "code", ".warm", ".warm-up-run")]
    commands: dict[Path, list[str | Path]] = {
        place: ["sweep", file, "--out", new, *LOCAL] for place in places
    }
    commands[paths.directory / "plots"] = ["report", paths.directory]
    for name in ("export", "export/csv"):
        commands[paths.directory / name] = ["export", paths.directory, "--to", "csv"]
    for place, command in commands.items():
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(outside)
        refused = invoke(*command).exception
        assert isinstance(refused, InputError)
        assert str(place) in str(refused)
        place.unlink()


def test_a_run_writes_through_no_link_in_place_of_checkpoints(tmp_path: Path, outside: Path) -> None:
    run = RunPaths(tmp_path / "run")
    run.directory.mkdir()
    run.checkpoints.symlink_to(outside)
    _remove_previous_attempt(run)
    assert not run.checkpoints.is_symlink()


def test_files_are_written_through_no_link(tmp_path: Path, outside: Path) -> None:
    path = tmp_path / "file"
    for link in (path.with_name(f".file.{os.getpid()}"), path):
        link.symlink_to(outside / "secret")
    write_atomic(path, "text")
    assert (path.is_symlink(), path.read_text()) == (False, "text")


def test_links_and_pipes_of_ranks_are_not_kept(tmp_path: Path, outside: Path) -> None:
    spec = RunSpec(strategy="all_reduce", transport="gloo", nodes=2, save_weights=True)
    paths = RunPaths(tmp_path / "run")
    paths.live.mkdir(parents=True)
    (paths.live / paths.weights.name).symlink_to(outside / "secret")
    (paths.live / paths.trace(0).name).symlink_to(outside / "secret")
    os.mkfifo(paths.live / paths.trace(1).name)
    SlurmRun(LaunchPlan(spec, paths, tmp_path), Mock()).collect()
    assert [each.name for each in paths.directory.iterdir()] == [paths.events.name]
