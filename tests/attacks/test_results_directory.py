"""Attacks with a results directory: from ranks that write to it, or from whoever has sent it.

The promise: its files are read through no link below it, and only if they are regular files. What cannot be
used is named, in the row of its run where it belongs to one, and no command waits for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner, Result

from orchestrator.cli import app
from orchestrator.errors import InputError, StorageError
from orchestrator.prediction.measured_cluster import read_measured_cluster
from orchestrator.replay.run import ClusterTime, NoClusterTime
from orchestrator.report.model.comparison import read_comparison
from orchestrator.results.records import RunResult
from orchestrator.results.store import RESULT, RunPaths, SweepPaths, is_claimed, write_atomic
from orchestrator.runtimes.live_files import collect_live
from orchestrator.sweeps.load import load_sweep
from tests.support.traced_sweep import traced_sweep
from tests.unit.report_support import unrendered_figures
from trainer.core.record import MAX_DEPTH, MAX_KEYS, parse_object
from trainer.spec.output_limits import OutputLimits
from trainer.spec.run_spec import RunSpec

SECRET = "a secret of the user"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of the user, with a file that the attacks try to read, change or remove."""
    directory = tmp_path / "home"
    directory.mkdir()
    directory.chmod(0o755)
    (directory / "secret").write_text(SECRET)
    (directory / "result.json").write_text(SECRET)
    return directory


@pytest.fixture(autouse=True)
def nothing_outside_changes(outside: Path) -> Iterator[None]:
    yield
    assert outside.stat().st_mode & 0o777 == 0o755
    assert {path.name: path.read_text() for path in outside.iterdir()} == {
        "secret": SECRET,
        "result.json": SECRET,
    }


@pytest.fixture
def paths(tmp_path: Path) -> SweepPaths:
    return traced_sweep(tmp_path / "out", runs=2)[0]


def pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def link(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "secret")


def endless(path: Path, outside: Path) -> None:
    path.symlink_to("/dev/zero")


def directory(path: Path, outside: Path) -> None:
    path.mkdir()


def huge(path: Path, outside: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(2**42)  # takes no room


Damage = Callable[[Path, Path], None]
DAMAGES = {pipe: "pipe", link: "link", endless: "link", directory: "directory", huge: "larger than"}
damages = pytest.mark.parametrize(
    ("damage", "named"), DAMAGES.items(), ids=[each.__name__ for each in DAMAGES]
)


def invoke(*arguments: str | Path) -> Result:
    """A command, which ends in order or with one clear message."""
    with unrendered_figures():
        done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exception is None or isinstance(done.exception, InputError | StorageError | SystemExit)
    assert SECRET not in done.output + str(done.exception)
    return done


def commands(directory: Path, out: Path) -> Iterator[Result]:
    reference, _ = traced_sweep(out / "reference", runs=2)
    yield invoke("report", directory)
    yield invoke("compare", reference.directory, directory, "--out", out / "compared.html")
    yield invoke("export", directory, "--to", "csv", "--out", out / "csv")
    yield invoke("replay", directory)


@damages
def test_a_result_that_is_no_file_is_the_cause_of_its_run_alone(
    paths: SweepPaths, outside: Path, tmp_path: Path, damage: Damage, named: str
) -> None:
    first, second = sorted(each.parent for each in paths.directory.glob("*/result.json"))
    (first / "result.json").unlink()
    damage(first / "result.json", outside)
    done = [*commands(paths.directory, tmp_path)]
    comparison = read_comparison(paths)
    assert named in comparison.unusable[first.name]
    assert [row.key for row in comparison.rows] == [second.name]
    assert not any(isinstance(each.exception, InputError) for each in done)
    for written in [*paths.directory.glob("report.*"), *paths.directory.glob("*.csv")]:
        assert SECRET not in written.read_text()
    assert first.name in paths.markdown.read_text()


LARGE = {
    "lists": ('{"ranks": [' + "[]," * (RESULT.values // 2 + 1) + "[]]}", "values"),
    "keys": ("{" + ",".join(f'"{number}": 0' for number in range(MAX_KEYS + 1)) + "}", "keys"),
    "depth": ('{"environment": ' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}", "nested"),
}


@pytest.mark.parametrize("kind", LARGE)
def test_a_result_with_too_many_values_is_the_cause_of_its_run(paths: SweepPaths, kind: str) -> None:
    """A parser makes 5 GB of 100 MB of empty lists."""
    text, named = LARGE[kind]
    key = read_comparison(paths).record.keys[0]
    paths.run(key).result.write_text(text)
    assert named in read_comparison(paths).unusable[key]


@pytest.mark.parametrize(
    "fields",
    [{"ranks": [[]] * 1000}, {"ranks": [{"seconds": dict.fromkeys(map(str, range(1000)), "")}]}],
)
def test_the_first_wrong_value_of_a_list_is_the_only_error(fields: dict[str, object]) -> None:
    """An error of pydantic takes hundreds of times the bytes of a value in a file."""
    with pytest.raises(ValidationError) as raised:
        RunResult.model_validate(fields)
    assert raised.value.error_count() < 100


def test_a_record_may_be_as_deep_and_as_wide_as_the_limits() -> None:
    deep = '{"a": ' * MAX_DEPTH + "1" + "}" * MAX_DEPTH
    wide = "{" + ",".join(f'"{number}": 0' for number in range(MAX_KEYS)) + "}"
    for text in (deep, wide):
        assert parse_object(text, "text")


def test_speeds_of_nodes_that_no_run_has_are_refused(paths: SweepPaths) -> None:
    for count, refused in ((2, False), (3, True), (500, True)):
        done = invoke("replay", paths.directory, "--node-speed", ",".join(["1"] * count))
        assert isinstance(done.exception, InputError) == refused
        if refused:
            assert str(done.exception).startswith(
                f"--node-speed: {count} speeds, and no run has more than 2"
            )


def test_costs_of_no_transport_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    for text in ("", "{}", '{"runtime": "local", "nodes": "processes", "transports": {}}'):
        file.write_text(text)
        with pytest.raises(InputError, match=f"^--cluster {file}: "):
            read_measured_cluster(file)


@pytest.mark.parametrize("damage", [pipe, endless, directory, huge], ids=lambda each: each.__name__)
def test_costs_of_a_cluster_are_read_from_a_regular_file(
    tmp_path: Path, outside: Path, damage: Damage
) -> None:
    damage(tmp_path / "cluster.json", outside)
    with pytest.raises(InputError, match=f"{tmp_path}/cluster.json: is "):
        read_measured_cluster(tmp_path / "cluster.json")


@damages
def test_a_sweep_s_record_that_is_no_file_is_named(
    paths: SweepPaths, outside: Path, tmp_path: Path, damage: Damage, named: str
) -> None:
    paths.record.unlink()
    damage(paths.record, outside)
    for done in commands(paths.directory, tmp_path):
        assert isinstance(done.exception, InputError)
        assert "sweep.json" in str(done.exception)
        assert named in str(done.exception)
    watched = invoke("watch", paths.directory)
    assert isinstance(watched.exception, InputError)
    assert named in str(watched.exception)


def test_questions_about_fields_that_runs_do_not_have_are_unanswered(
    paths: SweepPaths, tmp_path: Path
) -> None:
    record = json.loads(paths.record.read_text())
    odd = {
        "nodes": {"a": [1]},
        "strategy.x": None,
        "__class__": 1,
        "<b>": "<script>",
        "link": [{}],
        "node_speed": "x",
    }
    record["questions"] = [
        {"measure": "accuracy", "compare": {name: value}, "against": {"nodes": 2}}
        for name, value in odd.items()
    ]
    paths.record.write_text(json.dumps(record))
    done = [*commands(paths.directory, tmp_path)]
    assert not any(isinstance(each.exception, InputError) for each in done)
    assert "<script>" not in paths.markdown.read_text()


@damages
def test_other_files_of_a_run_stop_no_command(
    paths: SweepPaths, outside: Path, tmp_path: Path, damage: Damage, named: str
) -> None:
    damaged, other = read_comparison(paths).record.keys
    for name in ("cluster.json", "timeline.window.json", "trace-0.bin", "spec.json"):
        path = paths.run(damaged).directory / name
        path.unlink(missing_ok=True)
        damage(path, outside)
    assert not any(isinstance(done.exception, InputError) for done in commands(paths.directory, tmp_path))
    times = read_comparison(paths).clusters
    assert isinstance(times[other], ClusterTime)
    time = times[damaged]
    assert isinstance(time, NoClusterTime)
    assert named in time.reason


def test_a_link_in_place_of_a_run_is_not_followed(paths: SweepPaths, outside: Path, tmp_path: Path) -> None:
    key = read_comparison(paths).record.keys[0]
    moved = paths.run(key).directory
    moved.rename(tmp_path / "moved")
    moved.symlink_to(outside)
    assert not any(isinstance(done.exception, InputError) for done in commands(paths.directory, tmp_path))
    assert f"is in {key}, which is a symbolic link" in read_comparison(paths).unusable[key]


# Sweeps that resume in the directory


SWEEP = """
name: trial
base: {dataset: {name: synthetic, samples: 64, test_samples: 16}, model: mlp, epochs: 1}
blocks: [{base: {strategy: serial}}]
"""


@pytest.fixture
def resumed(tmp_path: Path) -> tuple[Path, Path]:
    """A sweep file, and the directory of its only run."""
    file = tmp_path / "sweep.yml"
    file.write_text(SWEEP)
    (run,) = load_sweep(file).runs
    return file, tmp_path / "out" / run.key


@pytest.mark.parametrize("name", ["run", "code", "plots", ".warm", ".warm-up-run"])
def test_a_sweep_writes_through_no_link_in_place_of_a_directory(
    resumed: tuple[Path, Path], outside: Path, name: str
) -> None:
    file, run = resumed
    run.parent.mkdir()
    place = run if name == "run" else run.parent / name
    place.symlink_to(outside)
    done = invoke("sweep", file, "--runtime", "local", "--out", run.parent)
    assert isinstance(done.exception, InputError)
    assert str(place) in str(done.exception)


def test_a_sweep_writes_through_no_link_in_place_of_checkpoints(
    resumed: tuple[Path, Path], outside: Path
) -> None:
    file, run = resumed
    run.mkdir(parents=True)
    RunPaths(run).checkpoints.symlink_to(outside)
    assert invoke("sweep", file, "--runtime", "local", "--out", run.parent).exception is None
    assert RunPaths(run).result.is_file()


@pytest.mark.parametrize("name", ["plots", "export", "export/csv"])
def test_reports_and_exports_write_through_no_link_in_place_of_a_directory(
    paths: SweepPaths, outside: Path, name: str
) -> None:
    place = paths.directory / name
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(outside)
    command = ["report"] if name == "plots" else ["export", "--to", "csv"]
    done = invoke(*command, paths.directory)
    assert isinstance(done.exception, InputError)
    assert str(place) in str(done.exception)


def test_files_are_written_through_no_link(tmp_path: Path, outside: Path) -> None:
    path = tmp_path / "file"
    path.with_name(f".file.{os.getpid()}").symlink_to(outside / "secret")
    path.symlink_to(outside / "secret")
    write_atomic(path, "text")
    assert (path.is_symlink(), path.read_text()) == (False, "text")


def test_a_lock_that_is_no_file_stops_no_command(paths: SweepPaths, outside: Path) -> None:
    paths.lock.unlink(missing_ok=True)
    os.mkfifo(paths.lock)
    assert not is_claimed(paths)


def test_links_and_pipes_of_ranks_are_not_kept(tmp_path: Path, outside: Path) -> None:
    spec = RunSpec(strategy="all_reduce", transport="gloo", nodes=2, save_weights=True)
    paths = RunPaths(tmp_path / "out" / "run")
    paths.live.mkdir(parents=True)
    (paths.live / paths.weights.name).symlink_to(outside / "secret")
    (paths.live / paths.trace(0).name).symlink_to(outside / "secret")
    os.mkfifo(paths.live / paths.trace(1).name)
    collect_live(paths, OutputLimits.of(spec))
    assert [each.name for each in paths.directory.iterdir()] == [paths.events.name]
