"""Mistakes of slurm/cluster: `stop` leaves something. tests/faults repairs what has ended."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from tests.support.processes import ended, wait_until
from tests.support.slurm_cluster import TrialCluster, slurm_missing, trial_cluster

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(slurm_missing() is not None, reason=str(slurm_missing())),
]


@pytest.fixture
def cluster() -> Iterator[TrialCluster]:
    with trial_cluster() as cluster:
        yield cluster


def task(cluster: TrialCluster) -> psutil.Process:
    """The process of a job on yard1."""
    job = cluster.call("sbatch", "--parsable", "--output=/dev/null", "--wrap=exec sleep 300")

    def pid() -> int:
        """The first one that scontrol lists below its five column titles; -1 before there is one."""
        return int((*cluster.call("scontrol", "listpids", job, "yard1").split()[5:], -1)[0])

    wait_until(lambda: pid() > 0)
    found = psutil.Process(pid())
    wait_until(lambda: found.name() == "sleep")
    return found


def test_stop_ends_the_jobs_of_a_killed_cluster(cluster: TrialCluster) -> None:
    running = task(cluster)
    steps = running.parent()
    assert steps is not None
    assert steps.name() == "slurmstepd"
    for daemon in (cluster.daemon("slurmctld", "-D"), cluster.slurmd("yard1")):
        daemon.kill()
    cluster.stop()
    wait_until(lambda: ended(running) and ended(steps), 5)
    assert [*cluster.processes()] == []
    assert not cluster.home.exists()
