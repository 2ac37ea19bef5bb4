"""Mistakes of runs in containers that continue when a node is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import start_sweep
from tests.support.containers import container, docker
from tests.support.processes import wait_until
from tests.support.runs import SMALL, event_files, results_in, write_sweep

RETURNS = {"kill": {"node": 1, "return_after": 1}, "at": {"epoch": 2}}
# Epochs of about a second, so that the container of a node can be killed in one of them.
BASE = {
    **SMALL,
    "transport": "gloo",
    "nodes": 3,
    "dataset": {"name": "synthetic", "samples": 3000, "test_samples": 64, "noise": 1.0},
    "epochs": 8,
    "batch_size": 5,
    "threads": 1,
    "on_loss": "continue",
    "timeout_s": 200,
}
RUNS = [
    # The others do not wait for a node that starts again, which imports torch: their run takes several
    # times as long.
    {"strategy": "local_sgd", "epochs": 90, "faults": [RETURNS]},
    {"strategy": "gossip"},
]


@pytest.mark.nightly
@pytest.mark.timeout(900)  # on a machine that runs other tests, too
def test_runs_continue_without_a_killed_rank_and_without_a_killed_container(tmp_path: Path) -> None:
    """The rank of the first run is killed by a fault, and returns."""
    file, out = write_sweep(tmp_path / "continuing.yml", BASE, *RUNS), tmp_path / "out"
    process = start_sweep(file, out, "--runtime", "docker")
    try:
        wait_until(lambda: epochs(out, "gossip") > 0 or process.poll() is not None, timeout_s=400)
        docker("kill", container(out, "node-3"))
        output, _ = process.communicate(timeout=400)
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0, output
    lost, returned = sorted(results_in(out), key=lambda row: row.key)  # gossip and local_sgd

    assert (returned.status, returned.cause, lost.status, lost.cause) == ("ok", None, "ok", None)
    assert returned.restarted == lost.restarted == 0
    assert [rank.rank for rank in returned.ranks] == [0, 1, 2]
    assert [rank.rank for rank in lost.ranks] == [0, 1]
    for row, node in ((returned, 1), (lost, 2)):
        (fault_of,) = {flag.split(" was ")[0] for flag in row.flags if "continued without" in flag}
        assert fault_of == f"node {node}"
        assert row.certificate is not None
        assert row.certificate.verified
        trained = {(part.epoch, part.rank) for part in row.certificate.parts}
        missed = {(epoch, rank) for epoch in range(1, row.run.epochs + 1) for rank in range(3)} - trained
        assert {rank for _, rank in missed} == {node}
        assert row.certificate.samples_lost == 1000 * len(missed) > 0
        assert {rank.wait_s_by_rank for rank in row.ranks} == {None}
    assert any(flag.startswith("node 1 ") and "again" in flag for flag in returned.flags)


def epochs(out: Path, strategy: str) -> int:
    """How many epochs all nodes of the run have reported."""
    found = [
        path.read_text().count('"kind": "epoch"')
        for path in event_files(out)
        if path.relative_to(out).parts[0].startswith(f"{strategy}-")
    ]
    return min(found, default=0) if len(found) == 3 else 0
