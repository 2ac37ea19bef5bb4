"""Runs in containers: resource usage measured by the kernel, in rows, tables and pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.report import formats
from orchestrator.report.model.locations import node_limits
from orchestrator.report.quantities.containers import Containers, containers, single_container
from orchestrator.report.render.columns import CONTAINERS
from orchestrator.results.records import RunResult
from tests.unit.orchestrator.report.test_report_locations import DOCKER, a_node, contained
from tests.unit.orchestrator.report.test_report_pages import Page
from tests.unit.report_support import (
    FAST,
    SERIAL,
    a_comparison,
    cells,
    csv_lines,
    finding_of,
    write_page,
)

KERNEL = [
    "containers",
    "container_sent_bytes_mean",
    "container_cpu_s_mean",
    "container_throttled_s_max",
    "container_memory_peak_mib_max",
    "container_memory_limit_mib",
]


def counted(run: RunResult) -> Containers | None:
    (row,) = a_comparison(run).rows
    return containers(row)


def test_nodes_are_counted_and_the_launcher_is_not() -> None:
    found = counted(
        contained(
            "all_reduce",
            a_node("launcher", [], throttled_s=9.0, sent_bytes=50_000, memory_peak_mb=999.0),
            a_node("node-2", [1], cpu_s=4.0, throttled_s=1.5, memory_peak_mb=300.0, sent_bytes=1_300_000),
            a_node("node-1", [0], cpu_s=3.0, throttled_s=0.5, memory_peak_mb=200.0, sent_bytes=1_100_000),
            nodes=2,
            memory_mb=512,
        )
    )
    assert found == Containers(
        count=2,
        sent_bytes=1_200_000,
        payload_bytes=1e6,
        cpu_s=3.5,
        throttled_s=1.5,
        memory_peak_mb=300.0,
        memory_limit_mb=512,
    )
    assert found.sent_by_payload == pytest.approx(1.2)


def test_a_container_of_several_ranks_has_no_payload() -> None:
    two = [a_node("node-1", [0, 1]), a_node("node-2", [2, 3])]
    several = counted(contained("ddp", *two, nodes=2, processes_per_node=2))
    assert several
    assert (several.count, several.payload_bytes, several.sent_by_payload) == (2, None, None)
    one = counted(contained("hogwild", a_node("node-1", [0, 1]), nodes=2, memory_mb=512))
    assert one
    assert (one.count, one.payload_bytes, one.memory_limit_mb) == (1, None, 1024)
    alone = counted(contained("serial"))
    assert alone
    assert (alone.payload_bytes, alone.sent_bytes) == (None, 1_100_000)


def test_a_missing_counter_leaves_no_number() -> None:
    assert counted(contained("ddp", a_node("node-1", [0]), nodes=2)) is None
    blind = counted(contained("ddp", a_node("node-1", [0]), a_node("node-2", [1], cpu_s=None), nodes=2))
    assert blind
    assert (blind.cpu_s, blind.sent_bytes) == (None, 1_100_000)
    assert counted(contained("ddp", nodes=2, status="failed", cause="gone")) is None
    assert counted(FAST) is None


def test_csv_has_usage_of_containers_and_none_of_local_processes() -> None:
    inside, outside = csv_lines(a_comparison(contained("ddp", nodes=2), FAST))
    assert [inside[name] for name in KERNEL] == ["2", "1100000.0", "3.0", "0.0", "256.0", "2048"]
    assert (inside["runtime"], inside["image"]) == ("docker", DOCKER["image"])
    assert {outside[name] for name in [*KERNEL, "image"]} == {""}


def test_the_table_has_usage_and_limits() -> None:
    nodes = [a_node(f"node-{n}", [n - 1], throttled_s=2.5, memory_peak_mb=384.0) for n in (1, 2)]
    run = contained("all_reduce", *nodes, nodes=2, cpus=0.4, memory_mb=1536)
    (line,) = cells(CONTAINERS, a_comparison(run).groups)
    assert line == {
        "strategy": "all_reduce · mpi | random_partition",
        "nodes": "2",
        "container_payload_bytes_mean": "1.00 MB",
        "container_sent_bytes_mean": "1.10 MB",
        "container_sent_by_payload": "1.10",
        "container_cpu_s_mean": "3.00 s",
        "container_throttled_s_max": "2.50 s",
        "container_memory_peak_mib_max": "384 MiB | 25% of 1,536 MiB",
    }


def test_one_container_for_all_nodes_has_their_combined_limit() -> None:
    comparison = a_comparison(contained("hogwild", a_node("node-1", [0, 1]), nodes=2))
    assert single_container(comparison.rows[0])
    (line,) = cells(CONTAINERS, comparison.groups)
    assert line["container_memory_peak_mib_max"] == "256 MiB | 6% of 4,096 MiB"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runs", "shown"), [([SERIAL, FAST], False), ([contained("ddp", nodes=2), contained("serial")], True)]
)
def test_the_page_has_a_section_on_containers_only_if_there_were_any(
    runs: list[RunResult], shown: bool, tmp_path: Path
) -> None:
    page = Page(write_page(tmp_path, *runs).html.read_text())
    assert ("containers" in page.ids) is shown


def test_limits_are_described_only_if_they_were_enforced() -> None:
    inside = a_comparison(contained("ddp", nodes=2, cpus=0.4, memory_mb=1536), contained("serial"))
    assert node_limits(inside.rows) == [
        "cpus 0.4 or 1",
        f"1,536 or 2,048{formats.JOIN}MiB memory",
        "512 pids",
        f"256{formats.JOIN}MiB /dev/shm",
    ]
    assert node_limits(a_comparison(SERIAL, FAST).rows) == []


def test_a_run_that_lost_processes_to_its_memory_limit_has_a_caution() -> None:
    killed = [a_node("node-1", [0]), a_node("node-2", [1], out_of_memory=2)]
    comparison = a_comparison(contained("ddp", *killed, nodes=2), contained("ddp", nodes=2, seed=1))
    assert [row.seed for row in finding_of(comparison, "out_of_memory").rows] == [0]
