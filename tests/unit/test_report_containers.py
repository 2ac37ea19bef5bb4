"""Runs in containers: what the kernel counted, in rows, tables and pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.report import formats
from orchestrator.report.findings import find
from orchestrator.report.metrics.containers import Containers, containers
from orchestrator.results.records import RunResult
from tests.unit.report_support import FAST, SERIAL, a_comparison, csv_lines
from tests.unit.test_report_pages import Page, write_sweep
from tests.unit.test_report_places import DOCKER, a_member, contained

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
            a_member("launcher", [], throttled_s=9.0, sent_bytes=50_000, memory_peak_mb=999.0),
            a_member("node-2", [1], cpu_s=4.0, throttled_s=1.5, memory_peak_mb=300.0, sent_bytes=1_300_000),
            a_member("node-1", [0], cpu_s=3.0, throttled_s=0.5, memory_peak_mb=200.0, sent_bytes=1_100_000),
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


def test_what_ranks_of_one_container_send_to_each_other_is_no_payload_of_it() -> None:
    two = [a_member("node-1", [0, 1]), a_member("node-2", [2, 3])]
    several = counted(contained("ddp", *two, nodes=2, processes_per_node=2))
    assert several
    assert (several.count, several.payload_bytes, several.sent_by_payload) == (2, None, None)
    one = counted(contained("hogwild", a_member("node-1", [0, 1]), nodes=2, memory_mb=512))
    assert one
    assert (one.count, one.payload_bytes, one.memory_limit_mb) == (1, None, 1024)
    alone = counted(contained("serial"))
    assert alone
    assert (alone.payload_bytes, alone.sent_bytes) == (None, 1_100_000)


def test_a_container_that_gave_no_account_leaves_no_number() -> None:
    assert counted(contained("ddp", a_member("node-1", [0]), nodes=2)) is None
    blind = counted(contained("ddp", a_member("node-1", [0]), a_member("node-2", [1], cpu_s=None), nodes=2))
    assert blind
    assert (blind.cpu_s, blind.sent_bytes) == (None, 1_100_000)
    assert counted(contained("ddp", nodes=2, status="failed", cause="gone")) is None
    assert counted(FAST) is None


def test_csv_has_what_the_kernel_counted_and_nothing_of_local_processes() -> None:
    inside, outside = csv_lines(a_comparison(contained("ddp", nodes=2), FAST))
    assert [inside[name] for name in KERNEL] == ["2", "1100000.0", "3.0", "0.0", "256.0", "2048"]
    assert (inside["runtime"], inside["image"]) == ("docker", DOCKER["image"])
    assert {outside[name] for name in [*KERNEL, "image"]} == {""}
    # In one go, and behind them what came later: columns keep their places.
    first = list(inside).index(KERNEL[0])
    assert list(inside)[first : first + 7] == [*KERNEL, "image"]
    assert first == 63


def test_pages_show_containers_and_their_limits(tmp_path: Path) -> None:
    nodes = [a_member(f"node-{n}", [n - 1], throttled_s=2.5, memory_peak_mb=384.0) for n in (1, 2)]
    paths = write_sweep(
        tmp_path, contained("all_reduce", *nodes, nodes=2, cpus=0.4, memory_mb=1536), contained("serial")
    )
    page = Page(paths.html.read_text())
    text = page.text.replace(formats.JOIN, " ")
    assert "Nodes: containers of Docker 26.1.5 with cpus 0.4 or 1 and 1,536 or 2,048 MiB memory" in text
    assert "cpus 0.4 or 1, 1,536 or 2,048 MiB memory, 512 pids, 256 MiB /dev/shm" in text
    table = text.split("Counted by the kernel")[1].split("Made with")[0]
    for shown in ("1.00 MB", "1.10 MB", "2.50 s", "384 MiB", "25% of 1,536 MiB"):
        assert shown in table
    assert "are one container" not in table
    markdown = paths.markdown.read_text().replace(formats.JOIN, " ")
    assert "| 1.00 MB | 1.10 MB | 1.10 | 3.00 s | 2.50 s | 384 MiB (25% of 1,536 MiB) |" in markdown


def test_one_container_for_all_nodes_is_explained(tmp_path: Path) -> None:
    hogwild = contained("hogwild", a_member("node-1", [0, 1]), nodes=2)
    text = Page(write_sweep(tmp_path, hogwild).html.read_text()).text
    assert "are one container, with the limits of them all" in text
    assert "6% of 4,096" in text


def test_nothing_about_containers_where_there_were_none(tmp_path: Path) -> None:
    paths = write_sweep(tmp_path, SERIAL, FAST)
    page = Page(paths.html.read_text())
    assert "containers" not in page.ids
    assert "#containers" not in page.links
    assert "Nodes: local processes." in page.text
    assert "limits of a node" not in page.text.split("Made with")[-1]
    assert "kernel" not in paths.markdown.read_text()


def test_a_run_that_lost_processes_to_its_memory_limit_is_no_run_like_others() -> None:
    killed = [a_member("node-1", [0]), a_member("node-2", [1], out_of_memory=2)]
    comparison = a_comparison(contained("ddp", *killed, nodes=2), contained("ddp", nodes=2, seed=1))
    (caution,) = [finding for finding in find(comparison) if finding.topic == "Out of memory"]
    assert [row.seed for row in caution.rows] == [0]
    assert "in the containers of 1 run for want" in caution.text.replace(formats.JOIN, " ")
