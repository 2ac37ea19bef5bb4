"""Mistakes in result files: half-written or damaged ones that pass, lost results, two sweeps at once."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError, StorageError
from orchestrator.results import store
from orchestrator.results.store import (
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
from tests.unit.report_support import a_run, with_ranks
from trainer.core.cgroup import NodeUsage

RECORD = SweepRecord(
    name="s", description="größer", source="name: s\n", overrides=[], keys=["a"], environment={"cores": 2}
)


# Writing


def test_a_file_is_replaced_once_all_of_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "deep" / "er" / "result.json", []
    write_atomic(path, "first, which is longer")

    def fsync(descriptor: int) -> None:
        seen.append((path.read_text(), os.fstat(descriptor).st_size))
        if len(seen) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", fsync)
    write_atomic(path, "größer")
    assert seen == [("first, which is longer", 8)]
    with pytest.raises(OSError, match="No space") as caught:
        write_atomic(path, "new")
    assert caught.value.filename == str(path)
    assert path.read_text(encoding="utf-8") == "größer"
    assert [*path.parent.iterdir()] == [path]


# Reading


def test_records_results_and_usage_are_read_as_they_were_written(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    run = paths.run("some-key")
    assert (read_result(run.result), read_usage(run.usage)) == (None, [])
    result = run_result(flags=["2 nodes × 1 thread"])
    usages = [NodeUsage(name=f"node-{1 + at}", ranks=[at], cpu_s=of) for at, of in enumerate([2.5, None])]
    write_atomic(paths.record, RECORD.model_dump_json())
    write_atomic(run.result, result.model_dump_json(indent=2))
    write_atomic(run.usage, "".join(usage.model_dump_json() + "\n" for usage in usages))
    assert (read_record(paths), read_result(run.result), read_usage(run.usage)) == (RECORD, result, usages)
    # A copy computes its own values.
    slower = with_ranks(a_run("all_reduce", nodes=2, train_s=5.0), train_s=7.0)
    copy = slower.model_copy(update={"spec": slower.spec | {"nodes": 3}})
    assert (slower.train_s, slower.run.nodes, copy.run.nodes) == (7.0, 2, 3)


WRITTEN = run_result(wall_s=123.25).model_dump_json()
CHOICES = run_result(
    ranks=[{"rank": 0, **rank_fields(expert_choices=5, dropped_choices=5)}]
).model_dump_json()


def test_an_unusable_result_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    for content, reason in (
        ("", "is damaged"),
        ("\udcff\udcfe", "is damaged"),
        (WRITTEN.replace('"version":1', '"version":2'), "version: "),
        (WRITTEN.replace('"version":1', '"version":1,"newer":1'), "newer: "),
        (WRITTEN.replace("123.25", "NaN"), "NaN"),
        (WRITTEN.replace('{"name":"serial"}', '"telepathy"'), "is of another version: spec.strategy"),
        (WRITTEN.replace('"nodes":1', '"nodes":1,"bottleneck_cpus":0.1'), "which node_speed replaces"),
        (CHOICES.replace('ped_choices":5', 'ped_choices":6'), "at most expert_choices, which is 5"),
        ("[" * 100_000, "is damaged"),
    ):
        assert content not in (WRITTEN, CHOICES)
        path.write_bytes(content.encode(errors="surrogateescape"))
        with pytest.raises(UnusableFile, match=reason) as caught:
            read_result(path)
        assert str(caught.value) == f"{path}: {caught.value.reason}"
        assert "\n" not in caught.value.reason
        assert len(caught.value.reason) < 600


def numbers(value: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """The paths of all floats."""
    if isinstance(value, float):
        yield path
    items = dict(enumerate(value)) if isinstance(value, list) else value
    for key, item in items.items() if isinstance(items, dict) else ():
        yield from numbers(item, *path, key)


def test_no_number_of_a_result_is_infinite(tmp_path: Path) -> None:
    file, fields = tmp_path / "result.json", a_run("all_reduce", nodes=2).model_dump(mode="json")
    fields |= {"ranks": fields["ranks"][:1], "epochs": fields["epochs"][:2]}
    paths = [*numbers(fields)]
    assert len(paths) > 20
    for at, path in enumerate(paths):
        changed = json.loads(json.dumps(fields))
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = "the number"
        infinite = ("1e999", "NaN", "-Infinity")[at % 3]
        file.write_text(json.dumps(changed).replace('"the number"', infinite))
        with pytest.raises(UnusableFile):
            read_result(file)


def test_results_at_the_limit_and_of_earlier_versions_are_usable(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(CHOICES)
    assert read_result(path)
    path.write_text(WRITTEN.replace('"nodes":1', '"nodes":1,"bottleneck_cpus":null'))
    assert read_result(path) == run_result(wall_s=123.25)
    path.unlink()
    path.mkdir()
    with pytest.raises(UnusableFile, match="is a directory"):
        read_result(path)


def part(labels: int) -> dict[str, Any]:
    """A certificate of a run whose samples have ten labels."""
    fields = {"rank": 0, "epoch": 1, "samples": 3, "labels": [3] * labels, "digest": ""}
    fields |= {"js_divergence": 0.0, "js_divergence_so_far": 0.0}
    return {"certificate": {"verified": True, "splits": [], "parts": [fields]}}


def link(source: int, to: int) -> dict[str, Any]:
    return {"links": [{"source": source, "to": to, "latency_s": 1.0, "bytes_per_s": 1.0}]}


def evaluated(*epochs: int, rank: int = 0) -> dict[str, Any]:
    point = {"rank": rank, "train_s": 1.0, "loss": None, "accuracy": 0.5, "test_loss": 1.0}
    return {"epochs": [{**point, "epoch": epoch} for epoch in epochs]}


def test_a_result_may_not_contradict_its_spec(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    for fields, wrong in (
        ({"ranks": [{"rank": 1, **rank_fields()}]}, "a rank in ranks"),  # of a run on one rank
        (evaluated(1, rank=-1), "a rank in epochs"),
        ({"ranks": [{"rank": 0, **rank_fields(bytes_to=[1, 2])}]}, "ranks.0.bytes_to"),
        ({"ranks": [{"rank": 0, **rank_fields(wait_s_by_rank=[])}]}, "ranks.0.wait_s_by_rank"),
        (part(9), "certificate.parts.0.labels"),
        (part(11), "certificate.parts.0.labels"),
        (evaluated(2), "epochs"),
        (evaluated(1, 3), "epochs"),
        *((link(*ends), "a rank in links") for ends in ((0, 1), (1, 0), (-1, 0))),
    ):
        path.write_text(run_result(**fields).model_dump_json())
        with pytest.raises(UnusableFile, match=f"is damaged: {re.escape(wrong)} contradicts"):
            read_result(path)
    for fields in (part(10), evaluated(1, 2), link(0, 0)):
        path.write_text(run_result(**fields).model_dump_json())
        assert read_result(path)


def test_a_directory_without_a_sweep(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match=r"no sweep\.json here; is this a results directory\?"):
            read_record(SweepPaths(directory))
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(UnusableFile, match=r"sweep\.json: is damaged or of another version: name: [^\n]*$"):
        read_record(SweepPaths(tmp_path))


# One directory, one sweep


def finished(paths: SweepPaths, *keys: str, status: str = "ok") -> None:
    for key in keys:
        write_atomic(paths.run(key).result, run_result(status, key=key).model_dump_json())


def test_a_sweep_may_not_lose_finished_runs(tmp_path: Path) -> None:
    for number, (name, keys, ok, refused) in enumerate((
        ("s", {"a", "b"}, "a", ""),  # the same command resumes
        ("s", {"a", "b", "c"}, "ab", ""),  # more seeds
        ("s", {"a", "c"}, "a", ""),  # b has not finished
        ("t", {"c"}, "", ""),  # of another sweep, nothing has
        ("s", {"a", "c"}, "ab", "its report would lose 1 of 2 finished runs"),
        ("s", {"c"}, "ab", "its report would lose 2 of 2 finished runs"),
        ("t", {"a", "b"}, "ab", "has 2 finished runs of another sweep, 's'"),
    )):  # fmt: skip
        paths = SweepPaths(tmp_path / f"{number}")
        check_same_sweep(paths, name, keys)  # nothing is there yet
        write_atomic(paths.record, RECORD.model_copy(update={"keys": ["a", "b"]}).model_dump_json())
        finished(paths, "a", "b", status="failed")
        finished(paths, *ok)
        finished(paths, "of another record")
        if not refused:
            check_same_sweep(paths, name, keys)
            continue
        with pytest.raises(InputError, match=f"^{re.escape(f'{paths.directory}: {refused}')}.*--out"):
            check_same_sweep(paths, name, keys)


def test_without_a_record_all_finished_runs_count(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    finished(paths, "a", "b")
    for _ in ("absent", "damaged"):
        check_same_sweep(paths, "s", {"a", "b"})
        with pytest.raises(InputError, match="1 of 2"):
            check_same_sweep(paths, "s", {"a"})
        paths.record.write_text("{")


def test_code_that_has_changed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, own = SweepPaths(tmp_path), {"name": "mine.py:Own", "imported": {"code": "old"}}
    finished(paths, "a")
    before = run_result(key="a", spec={"strategy": own})
    monkeypatch.setattr(store, "read_result", lambda _: before)  # the component itself is not needed
    for known, changed in (("mine.py:Own", True), ("other.py:New", False)):
        with pytest.raises(InputError) as caught:
            check_same_sweep(paths, "s", {"b"}, {known: ["new", None]})
        assert ("the code or the data of mine.py:Own has changed" in str(caught.value)) is changed
        assert "other.py" not in str(caught.value)


def test_a_directory_is_claimed_by_one_sweep_at_a_time(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path / "new" / "out")
    with claimed(paths):
        assert paths.directory.is_dir()
        with pytest.raises(InputError, match="in use by another sweep"), claimed(paths):
            pytest.fail("claimed twice")
        with claimed(SweepPaths(tmp_path / "other")):
            pass
    with pytest.raises(KeyboardInterrupt), claimed(paths):
        raise KeyboardInterrupt
    with claimed(paths):  # released
        pass


def test_a_claim_leaves_no_directory_but_one_that_was_there_or_is_used(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no data"), claimed(SweepPaths(tmp_path / "new" / "out")):
        raise InputError("no data")
    assert [*tmp_path.iterdir()] == []
    with claimed(SweepPaths(tmp_path)):
        pass
    used = SweepPaths(tmp_path / "used")
    with claimed(used):
        used.record.touch()
    assert {*used.directory.iterdir()} == {used.record, used.lock}


def test_a_directory_that_cannot_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name, reason in (
        ("file", "is not a directory; "),
        ("file/below", "is not a directory; "),
        ("link", "is a link to nowhere, which does not exist"),
        ("x" * 300, "File name too long"),
    ):
        with pytest.raises(InputError, match=reason) as caught:
            claimed(SweepPaths(tmp_path / name)).__enter__()
        assert str(tmp_path / name) in str(caught.value)
    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(StorageError, match="the disk is full"):
        claimed(SweepPaths(tmp_path / "out")).__enter__()
