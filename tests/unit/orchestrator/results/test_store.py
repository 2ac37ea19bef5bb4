"""Result files are written atomically, and a directory is locked by one sweep at a time."""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError, StorageError
from orchestrator.results import store
from orchestrator.results.store import (
    RunPaths,
    SweepPaths,
    SweepRecord,
    UnusableFile,
    check_same_sweep,
    claimed,
    read_record,
    read_result,
    read_usage,
    write_atomic,
)
from tests.unit.conftest import rank_fields, run_result
from trainer.core.cgroup import NodeUsage

RECORD = SweepRecord(
    name="s", description="größer", source="name: s\n", overrides=[], keys=["a"], environment={"cores": 2}
)


def test_write_creates_directories_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "result.json"
    write_atomic(path, "first, which is longer")
    write_atomic(path, "größer")
    assert path.read_text(encoding="utf-8") == "größer"
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]


def test_reader_never_sees_a_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    texts = {letter * 200_000 for letter in "ab"}
    write_atomic(path, min(texts))
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for text in texts:
                write_atomic(path, text)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert all(path.read_text() in texts for _ in range(50))
    finally:
        stop.set()
        writer.join()


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    write_atomic(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(OSError, match="No space") as caught:
        write_atomic(path, "new")
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"


def test_file_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "result.json", []

    def fsync(descriptor: int) -> None:
        seen.append((path.exists(), os.fstat(descriptor).st_size))

    monkeypatch.setattr(store.os, "fsync", fsync)
    write_atomic(path, "12345")
    assert seen == [(False, 5)]


# Reading


def test_result_round_trip(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path).run("some-key")
    assert read_result(paths.result) is None
    result = run_result(flags=["2 nodes × 1 thread"])
    write_atomic(paths.result, result.model_dump_json(indent=2))
    assert read_result(paths.result) == result
    assert paths.result == tmp_path / "some-key" / "result.json"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"not json",
        b"\xff\xfe",
        json.dumps({**json.loads(run_result().model_dump_json()), "version": 2}).encode(),
        json.dumps({**json.loads(run_result().model_dump_json()), "newer": 1}).encode(),
        run_result().model_dump_json().encode()[:-20],
        run_result(wall_s=123.25).model_dump_json().replace("123.25", "NaN").encode(),
        run_result(wall_s=123.25).model_dump_json().replace("123.25", "1e999").encode(),
        run_result(spec={"strategy": "telepathy"}).model_dump_json().encode(),
        b"[" * 100_000,
    ],
    ids=[
        "empty",
        "no fields",
        "no JSON",
        "no UTF-8",
        "version 2",
        "unknown field",
        "cut off",
        "NaN",
        "infinite",
        "unknown strategy",
        "nested",
    ],
)
def test_unusable_result_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with pytest.raises(UnusableFile) as caught:
        read_result(path)
    assert str(caught.value) == f"{path}: {caught.value.reason}"
    assert "\n" not in caught.value.reason
    assert len(caught.value.reason) < 400


def test_results_of_equal_nodes_from_before_node_speed_are_usable(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    result = run_result()
    older = {**json.loads(result.model_dump_json()), "spec": {**result.spec, "bottleneck_cpus": None}}
    path.write_text(json.dumps(older))
    assert read_result(path) == result


def test_result_with_bottleneck_cpus_names_its_successor(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(run_result(spec={"strategy": "ddp", "nodes": 2}).model_dump_json())
    read_result(path)
    path.write_text(path.read_text().replace('"nodes":2', '"nodes":2,"bottleneck_cpus":0.1'))
    with pytest.raises(
        UnusableFile, match=r"bottleneck_cpus .* earlier version, which node_speed replaces"
    ):
        read_result(path)


def test_result_that_contradicts_its_spec(tmp_path: Path) -> None:
    point = {"rank": 0, "epoch": 2, "train_s": 1.0, "loss": None, "accuracy": 0.5, "test_loss": 1.0}
    part = {"rank": 0, "epoch": 1, "samples": 3, "labels": [3], "digest": ""}
    part |= {"js_divergence": 0.0, "js_divergence_so_far": 0.0}
    for field, wrong in {
        "a rank in ranks": run_result(ranks=[{"rank": 1, **rank_fields()}]),  # of a run on one rank
        "epochs": run_result(epochs=[point]),
        "ranks.0.bytes_to": run_result(ranks=[{"rank": 0, **rank_fields(bytes_to=[1, 2])}]),
        "certificate.parts.0.labels": run_result(
            certificate={"verified": True, "splits": [], "parts": [part]}
        ),
    }.items():
        write_atomic(tmp_path / "result.json", wrong.model_dump_json())
        with pytest.raises(UnusableFile, match=f"is damaged: {re.escape(field)} contradicts"):
            read_result(tmp_path / "result.json")


def test_result_with_more_dropped_choices_than_choices(tmp_path: Path) -> None:
    counts: dict[str, Any] = {"expert_choices": 5, "dropped_choices": 5}
    written = run_result(ranks=[{"rank": 0, **rank_fields(**counts)}]).model_dump_json()
    (tmp_path / "result.json").write_text(written)
    assert read_result(tmp_path / "result.json")
    (tmp_path / "result.json").write_text(written.replace('"dropped_choices":5', '"dropped_choices":6'))
    with pytest.raises(UnusableFile, match=r"dropped_choices: .*at most expert_choices, which is 5"):
        read_result(tmp_path / "result.json")


def test_unreadable_result(tmp_path: Path) -> None:
    (tmp_path / "result.json").mkdir()
    with pytest.raises(UnusableFile, match="is a directory"):
        read_result(tmp_path / "result.json")


def test_record_round_trip(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    write_atomic(paths.record, RECORD.model_dump_json())
    assert read_record(paths) == RECORD


def test_directory_without_a_sweep(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match=r"no sweep\.json here; is this a results directory\?"):
            read_record(SweepPaths(directory))
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(UnusableFile, match=r"sweep\.json: is damaged or of another version: name: [^\n]*$"):
        read_record(SweepPaths(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(InputError):
        read_record(SweepPaths(tmp_path / "file"))


# One directory, one sweep


def finished(paths: SweepPaths, *keys: str, status: str = "ok") -> None:
    for key in keys:
        write_atomic(paths.run(key).result, run_result(status, key=key).model_dump_json())


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("s", {"a", "b"}),  # the same command resumes
        ("s", {"a", "b", "c"}),  # more seeds
        ("s", {"a", "c"}),  # b has not finished
    ],
)
def test_sweep_that_keeps_all_finished_runs_continues(tmp_path: Path, name: str, keys: set[str]) -> None:
    paths = SweepPaths(tmp_path)
    check_same_sweep(paths, name, keys)  # nothing is there yet
    write_atomic(paths.record, RECORD.model_copy(update={"keys": ["a", "b"]}).model_dump_json())
    finished(paths, "a")
    finished(paths, "b", status="failed")
    finished(paths, "of another record")
    check_same_sweep(paths, name, keys)


@pytest.mark.parametrize(
    ("name", "keys", "facts"),
    [
        ("s", {"a", "c"}, ["1 of 2 finished runs", "--out"]),
        ("s", {"c"}, ["2 of 2 finished runs", "--out"]),
        ("t", {"a", "b"}, ["2 finished runs of another sweep, 's'", "--out"]),
    ],
)
def test_sweep_that_would_lose_finished_runs_is_refused(
    tmp_path: Path, name: str, keys: set[str], facts: list[str]
) -> None:
    paths = SweepPaths(tmp_path)
    write_atomic(paths.record, RECORD.model_copy(update={"keys": ["a", "b"]}).model_dump_json())
    finished(paths, "a", "b")
    with pytest.raises(InputError) as caught:
        check_same_sweep(paths, name, keys)
    assert str(caught.value).startswith(f"{tmp_path}: ")
    for fact in facts:
        assert fact in str(caught.value)


def test_another_sweep_may_replace_one_without_finished_runs(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    write_atomic(paths.record, RECORD.model_dump_json())
    finished(paths, *RECORD.keys, status="failed")
    check_same_sweep(paths, "t", {"c"})


@pytest.mark.parametrize("content", [None, "{"])
def test_without_a_record_all_finished_runs_count(tmp_path: Path, content: str | None) -> None:
    paths = SweepPaths(tmp_path)
    if content:
        paths.record.write_text(content)
    finished(paths, "a", "b")
    check_same_sweep(paths, "s", {"a", "b"})
    with pytest.raises(InputError, match="1 of 2"):
        check_same_sweep(paths, "s", {"a"})


# Locking


def test_directory_is_claimed_by_one_sweep_at_a_time(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path / "new" / "out")
    with claimed(paths):
        assert paths.directory.is_dir()
        with pytest.raises(InputError, match="in use by another sweep"), claimed(paths):
            pytest.fail("claimed twice")
        with claimed(SweepPaths(tmp_path / "other")):
            pass
    with claimed(paths):  # released
        pass


def test_failed_sweep_releases_its_claim(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), claimed(SweepPaths(tmp_path)):
        raise KeyboardInterrupt
    with claimed(SweepPaths(tmp_path)):
        pass


def test_directory_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError) as caught, claimed(SweepPaths(directory)):
            pytest.fail("claimed a file")
        assert str(caught.value).startswith(f"{directory}: is not a directory; ")
        assert "--out" in str(caught.value)
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(InputError, match="is a link to nowhere, which does not exist"):
        claimed(SweepPaths(tmp_path / "link")).__enter__()
    with pytest.raises(InputError, match="File name too long"):
        claimed(SweepPaths(tmp_path / ("x" * 300))).__enter__()


def test_full_disk_is_no_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(StorageError, match="the disk is full"):
        claimed(SweepPaths(tmp_path / "out")).__enter__()


def test_refused_sweep_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no data"), claimed(SweepPaths(tmp_path / "new" / "out")):
        raise InputError("no data")
    assert [*tmp_path.iterdir()] == []


def test_directory_that_was_there_or_is_used_stays(tmp_path: Path) -> None:
    with claimed(SweepPaths(tmp_path)):
        pass
    with claimed(SweepPaths(tmp_path / "used")):
        (tmp_path / "used" / "sweep.json").touch()
    assert (tmp_path / "used" / "sweep.json").exists()


def test_every_file_has_its_own_name(tmp_path: Path) -> None:
    for paths in (SweepPaths(tmp_path), RunPaths(tmp_path)):
        named = [
            getattr(paths, name) for name, kind in vars(type(paths)).items() if isinstance(kind, property)
        ]
        assert len(named) >= 5
        assert len(set(named)) == len(named)
        shared = [paths.code]  # by all runs of a sweep
        shared += [paths.warm, paths.allocation] if isinstance(paths, RunPaths) else []
        assert all(path.parent == tmp_path for path in named if path not in shared)
    assert RunPaths(tmp_path).log("node-3") == tmp_path / "node-3.log"


def test_runs_of_a_sweep_share_the_directory_of_warm_containers(tmp_path: Path) -> None:
    sweep = SweepPaths(tmp_path)
    one, two = sweep.run("a"), sweep.run("b")
    assert one.warm == two.warm
    assert one.warm.parent == one.directory.parent
    assert one.warm not in (one.directory, two.directory)


# Container usage


def test_usage_round_trip(tmp_path: Path) -> None:
    usages = [
        NodeUsage(name=f"node-{rank + 1}", ranks=[rank], cpu_s=cpu_s, out_of_memory=rank)
        for rank, cpu_s in enumerate([2.5, None])
    ]
    paths = RunPaths(tmp_path)
    write_atomic(paths.usage, "".join(usage.model_dump_json() + "\n" for usage in usages))
    assert read_usage(paths.usage) == usages


def test_runs_without_containers_have_no_usage(tmp_path: Path) -> None:
    assert read_usage(tmp_path / "usage.jsonl") == []
