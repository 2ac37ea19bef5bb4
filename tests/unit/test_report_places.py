"""Where nodes ran: rows of two places are kept apart, and a page says which place is whose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.report import formats
from orchestrator.report.model.rows import NO_SERIAL
from orchestrator.results.records import RunResult
from tests.unit.report_support import SERIAL, a_comparison, a_run, repeated, row_of
from tests.unit.test_report_findings import texts
from tests.unit.test_report_pages import Page, write_sweep
from trainer.core.cgroup import NodeUsage

DOCKER = {"docker": "26.1.5", "image": "shardyard-trainer from sources 4c3e83f91028d114"}
NEWER = {**DOCKER, "image": "shardyard-trainer from sources cc817da906eec4a9"}


def a_member(member: str, ranks: list[int], **fields: Any) -> NodeUsage:
    counted = {"cpu_s": 3.0, "throttled_s": 0.0, "memory_peak_mb": 256.0, "sent_bytes": 1_100_000}
    return NodeUsage(
        name=member, ranks=ranks, **{**counted, "received_bytes": 9, "out_of_memory": 0, **fields}
    )


def contained(
    strategy: str, *members: NodeUsage, environment: dict[str, str] = DOCKER, **fields: Any
) -> RunResult:
    """A run of runtime docker; without `members` every node is like the others."""
    run = a_run(strategy, runtime="docker", **fields)
    usage = members or [a_member(f"node-{rank.rank + 1}", [rank.rank]) for rank in run.ranks]
    return run.model_copy(update={"usage": list(usage), "environment": environment})


def test_runs_of_two_runtimes_are_neither_averaged_nor_compared() -> None:
    runs = [SERIAL, contained("all_reduce", nodes=2, seed=0), a_run("all_reduce", nodes=2, seed=1)]
    comparison = a_comparison(*runs)
    assert [len(group.rows) for group in comparison.groups] == [1, 1, 1]
    inside, outside = row_of(comparison, "all_reduce", 0), row_of(comparison, "all_reduce", 1)
    assert (inside.no_speedup, inside.speedup) == (NO_SERIAL, None)
    assert outside.speedup == pytest.approx(1.0)
    assert [work.label.rpartition(", ")[2] for work in comparison.works] == [
        "runtime local",
        "runtime docker",
    ]
    assert "differ in runtime (local and docker): rows of one are only set" in texts(
        comparison, "Not alike"
    )


def test_runs_of_two_images_are_kept_apart() -> None:
    old, new = contained("ddp", nodes=2), contained("ddp", nodes=2, seed=1, environment=NEWER)
    comparison = a_comparison(old, new)
    assert len(comparison.groups) == 2
    assert [work.label.rpartition(", ")[2] for work in comparison.works] == [
        "image 4c3e83f9",
        "image cc817da9",
    ]
    same_sources = {**DOCKER, "image": "mine from sources 4c3e83f91028d114"}
    named = a_comparison(old, contained("ddp", nodes=2, seed=1, environment=same_sources))
    assert [work.where for work in named.works] == [
        "image shardyard-trainer 4c3e83f9",
        "image mine 4c3e83f9",
    ]


def test_a_place_is_named_only_where_there_are_several() -> None:
    for runs in (repeated("ddp", [4, 5], nodes=2), [contained("ddp", nodes=2, seed=s) for s in (0, 1)]):
        comparison = a_comparison(*runs)
        (work,) = comparison.works
        assert len(comparison.groups) == 1
        assert work.label.endswith("2 epochs")
        assert texts(comparison, "Not alike") == ""


def test_conditions_are_compared_within_a_runtime() -> None:
    local = [
        a_run("ddp", nodes=2, seed=seed).model_copy(update={"environment": {"torch": torch}})
        for seed, torch in enumerate(["2.12.0", "2.13.0"])
    ]
    docker = [
        contained("ddp", nodes=2, seed=seed, environment={**DOCKER, "python": "of the image"})
        for seed in (2, 3)
    ]
    said = texts(a_comparison(*local, *docker), "Not alike")
    assert "differ in torch (2.12.0 and 2.13.0): their numbers may not compare" in said
    assert "python" not in said
    assert "unknown" not in said


def test_made_with_is_told_for_each_place(tmp_path: Path) -> None:
    local = a_run("ddp", nodes=2, seed=1).model_copy(update={"environment": {"torch": "2.13.0+local"}})
    paths = write_sweep(tmp_path, contained("ddp", nodes=2), local)
    page = Page(paths.html.read_text()).text.replace(formats.JOIN, " ")
    docker, own = page.split("Made with")[-1].split("Sweep file")[0].split("runtime local")
    assert "runtime docker" in docker
    assert "2,048 MiB memory" in docker
    assert "2.13.0+local" in own
    assert "MiB memory" not in own
