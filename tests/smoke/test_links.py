"""Mistakes of links between containers: what nodes get of them, and what the switch may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.records import RunResult
from orchestrator.runtimes.docker.reaper import LABEL
from tests.smoke.confinement import (
    assert_coordinator_confined,
    assert_linked_node_confined,
    assert_switch_confined,
)
from tests.support.command_line import end, run_ok, start_sweep
from tests.support.containers import docker
from tests.support.processes import wait_until
from tests.support.runs import event_files, only_result, results_in, write_sweep
from trainer.spec.link import Links

MS, MBIT = 1e-3, 1e6 / 8
SLOW, FAR = {"bandwidth_mbit": 10}, {"bandwidth_mbit": 100, "latency_ms": 10}


def sweep_file(directory: Path, *links: Any, **fields: Any) -> Path:
    base = {"strategy": "all_reduce", "transport": "gloo", "nodes": 2, "epochs": 1, **fields}
    return write_sweep(directory / "links.yml", base, {"axes": {"link": [*links]}})


def assert_as_requested(row: RunResult) -> None:
    """Within what a busy machine adds: it delays single packets, which shows in short measurements."""
    assert row.run.link is not None
    assert row.links
    for measured in row.links:
        wanted = row.run.link.path(measured.source, measured.to)
        assert wanted.latency_ms * MS <= measured.latency_s < wanted.latency_ms * MS + 20 * MS
        if wanted.bandwidth_mbit:
            share = measured.bytes_per_s / (wanted.bandwidth_mbit * MBIT)
            # On distant links TCP begins slowly, and Open MPI waits for answers between parts of a message.
            assert (0.05 if wanted.latency_ms else 0.5) < share < 1.1


def test_each_run_of_warm_containers_has_its_own_links(tmp_path: Path) -> None:
    out = tmp_path / "out"
    far_from_1 = {"default": {"bandwidth_mbit": 100}, "pairs": {"1>0": {"latency_ms": 10}}}
    file = sweep_file(tmp_path, SLOW, far_from_1, None)
    run_ok("sweep", file, "--out", out, "--runtime", "docker")
    rows = {str(row.run.link and row.run.link.canonical): row for row in results_in(out)}
    linked = [row for row in rows.values() if row.run.link]
    assert [row.status for row in rows.values()] == ["ok"] * 3
    assert all(row.warm and row.runtime_info.shapes_links and not row.nodes_replaced for row in linked)
    assert_as_requested(rows[str(Links.of(SLOW).canonical)])
    one_way = [link.latency_s for link in rows[str(Links.of(far_from_1).canonical)].links]
    assert all(5 * MS <= latency < 25 * MS for latency in one_way), "half of a round trip of 10 ms"
    assert all(link.latency_s < 5 * MS for link in rows["None"].links)


@pytest.mark.parametrize(
    ("transport", "strategy"), [("mpi", "all_reduce"), ("rpc", "async_parameter_server")]
)
@pytest.mark.nightly
def test_links_of_other_topologies(tmp_path: Path, transport: str, strategy: str) -> None:
    out = tmp_path / "out"
    link = {"bandwidth_mbit": 50, "latency_ms": 10}
    file = sweep_file(tmp_path, link, strategy=strategy, transport=transport)
    run_ok("sweep", file, "--out", out, "--runtime", "docker", "--cold")
    row = only_result(out)
    assert not row.warm
    assert_as_requested(row)


def test_confinement_and_the_end_of_a_switch(tmp_path: Path) -> None:
    """A run that loses its switch is repeated on new nodes; then Ctrl-C ends the sweep."""
    out, others = tmp_path / "out", containers().keys()
    file = sweep_file(tmp_path, FAR, strategy={"name": "fault_injection", "work_s": 300}, timeout_s=300)
    process = start_sweep(file, out, "--runtime", "docker")
    try:
        wait_until(lambda: len(event_files(out)) == 2)
        checks = {"node": assert_linked_node_confined, "switch": assert_switch_confined}
        checks["coordinator"] = assert_coordinator_confined

        def own() -> dict[str, str]:
            return {name: service for name, service in containers().items() if name not in others}

        wait_until(lambda: set(own().values()) == checks.keys())  # the others end when the run has begun
        running = own()
        for name, service in running.items():
            assert checks[service](name) >= 25
        (switch,) = [name for name, service in running.items() if service == "switch"]
        docker("kill", switch)
        wait_until(lambda: switch not in containers())
        wait_until(lambda: "switch" in containers().values(), timeout_s=60)
    finally:
        end(process)


def containers() -> dict[str, str]:
    """The running containers of orchestrators and their services."""
    show = ["--filter", f"label={LABEL}", "--format", '{{.ID}} {{.Label "com.docker.compose.service"}}']
    return dict(line.split() for line in docker("ps", *show).splitlines())
