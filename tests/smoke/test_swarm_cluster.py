"""Mistakes of swarm/cluster: it starts a killed machine again as the same one, and stop leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.processes import ended
from tests.support.swarm_cluster import swarm_missing, trial_swarm

pytestmark = pytest.mark.nightly


@pytest.mark.skipif(swarm_missing() is not None, reason=str(swarm_missing()))
def test_killed_machine_starts_again_and_stop_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDYARD_SWARM_MACHINES", "2")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    with trial_swarm() as swarm:
        ids = swarm.docker("machine1", "node", "ls", "--quiet")
        manager = swarm.engine("machine1")
        image = os.environ.get("SHARDYARD_IMAGE", "shardyard-trainer")
        swarm.docker("machine2", "run", "--detach", image, "sleep", "300")
        swarm.engine("machine2").kill()
        del os.environ["DOCKER_HOST"]  # the image comes from the machine's own engine
        swarm.up()
        assert len(ids.split()) == 2
        assert swarm.docker("machine1", "node", "ls", "--quiet") == ids
        assert swarm.engine("machine1") == manager
        processes = [each for machine in swarm.machines for each in swarm.processes_of(machine)]
        swarm.stop()
        assert all(map(ended, processes))
        assert not swarm.home.exists()
        group = f"**/shardyard-swarm{str(swarm.home).replace('/', '-')}"
        assert [*Path("/sys/fs/cgroup").glob(group)] == []
