"""`docker compose up`: two nodes in every topology, as a person starts them who has set nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.execution.assemble import certify
from orchestrator.results.records import ranks_of
from tests.support.containers import spec_of_up
from tests.support.datasets import real_mnist_dir
from tests.support.processes import wait_until
from trainer.core.events import Event

Make = Callable[..., Any]
SIZES = {"ddp": 2, "mpi": 2, "single": 2, "rpc": 3}  # of the world, at --scale node=2


def falling(events: list[Event], rank: int) -> list[float]:
    return [event.fields["test_loss"] for event in events if event.kind == "epoch" and event.rank == rank]


@pytest.mark.parametrize("topology", ["ddp", "mpi", "single"])
def test_it_trains(stack: Make, topology: str) -> None:
    """Real training on digits: the loss falls, the replicas agree, the certificate is in order."""
    up = (cluster := stack(topology)).up(2)
    assert up.returncode == 0, up.stdout
    assert re.search(r"coordinator-1 +\| ok: 2 nodes, world size 2, ", up.stdout), up.stdout
    assert re.search(
        r"(?m)\| (rank \d \| )?epoch 1/20 done in [\d.]+ s, loss [\d.]+ acc [\d.]+%$", up.stdout
    )

    events = cluster.events()
    ranks = ranks_of(events)
    assert [rank.rank for rank in ranks] == [0, 1]
    assert len({rank.weights_digest for rank in ranks}) == 1
    for rank in (0, 1):
        fell = falling(events, rank)
        assert len(fell) == 20
        assert fell[-1] < fell[0] / 2
    assert (ranks[0].accuracy or 0) > 0.9
    certificate = certify(events)
    assert certificate is not None
    assert certificate.verified
    assert [(split.coverage, split.overlap) for split in certificate.splits] == [(1.0, 0.0)] * 20


def test_a_split_model_learns_mnist(stack: Make) -> None:
    """The bare run of the rpc file, but for the download: a master and two parts, 60,000 images."""
    up = (cluster := stack("rpc", SHARDYARD_DATA=str(real_mnist_dir()), SHARDYARD_FETCH="skip")).up(2)
    assert up.returncode == 0, up.stdout
    assert re.search(
        r"coordinator-1 +\| ok: 3 nodes, world size 3, rpc_split over rpc, mnist", up.stdout
    ), up.stdout
    events = cluster.events()
    master, *parts = ranks_of(events)
    assert (master.accuracy or 0) >= 0.96
    assert [(part.blocks or [])[0] for part in parts] == ["conv1", "flatten"]
    certificate = certify(events)
    assert certificate is not None
    assert certificate.verified
    assert [split.coverage for split in certificate.splits] == [1.0] * 2


@pytest.mark.parametrize(
    ("told", "source", "read_only"),
    [
        ({}, "docker/no-checkpoints", True),
        ({"SHARDYARD_CHECKPOINTS": ""}, "docker/no-checkpoints", True),
        ({"SHARDYARD_CHECKPOINTS": "/my/checkpoints"}, "/my/checkpoints", False),
    ],
    ids=["nothing", "empty", "named"],
)
def test_checkpoints_may_be_written_where_a_place_is_named_and_nowhere_else(
    stack: Make, told: dict[str, str], source: str, read_only: bool
) -> None:
    services = json.loads(stack("ddp", **told).run("config", "--format", "json").stdout)["services"]
    for name in ("node", "coordinator", "data"):
        (volume,) = [each for each in services[name]["volumes"] if each["target"] == "/checkpoints"]
        assert (volume["type"], volume.get("read_only", False)) == ("bind", read_only)
        assert volume["source"].endswith(source)


@pytest.mark.parametrize("topology", SIZES)
def test_it_ends_in_good_order_and_can_be_called_again(stack: Make, tmp_path: Path, topology: str) -> None:
    """Cold, then warm on the stopped containers: exit code 0, and the summary is what is said last."""
    spec = spec_of_up(topology, tmp_path, epochs=1)
    cluster = stack(topology, SHARDYARD_SPEC=str(spec))
    for _ in ("cold", "warm"):
        up = cluster.up(2)
        assert up.returncode == 0, up.stdout
        assert re.search(rf"ok: .*world size {SIZES[topology]}\b", up.stdout), up.stdout
        said = [line for line in up.stdout.splitlines() if "|" in line]
        assert re.search(r"coordinator-1 +\|   kept in ", said[-1]), said[-5:]
        assert "Connection refused" not in up.stdout
        assert len(re.findall(r"\| (?:rank \d \| )?up, process", up.stdout)) == SIZES[topology]
    assert len(list(cluster.results.iterdir())) == 2


@pytest.mark.parametrize("topology", SIZES)
def test_a_node_that_is_killed_ends_the_stack(stack: Make, tmp_path: Path, topology: str) -> None:
    """Exit code not 0, the summary names the node, and nobody waits for the dead."""
    strategy: dict[str, Any] = {"name": "fault_injection", "fault": "stall", "rank": 0}
    transport = {"ddp": "gloo", "mpi": "mpi", "rpc": "rpc", "single": "memory"}[topology]
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"strategy": strategy, "transport": transport}))
    cluster = stack(topology, SHARDYARD_SPEC=str(spec))
    up = cluster.start(2)
    wait_until(lambda: list(cluster.results.glob("*/rank-0.jsonl")), timeout_s=90)
    holder = "master" if topology == "rpc" else "node"  # of rank 0, which stalls; others may have ended
    subprocess.run(["docker", "kill", f"{cluster.project}-{holder}-1"], check=True, capture_output=True)
    output, _ = up.communicate(timeout=60)
    assert up.returncode != 0
    assert re.search(r"coordinator-1 +\| FAILED: ", output), output
    assert re.search(r"coordinator-1 +\|   (node-1|master): .*killed", output), output


def test_results_belong_to_the_user_who_owns_the_run(stack: Make, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make a file another user's")
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"strategy": "fault_injection", "transport": "gloo"}))
    os.chown(spec, 4321, 8765)
    cluster = stack("ddp", SHARDYARD_SPEC=str(spec))
    assert cluster.up(2).returncode == 0
    found = [cluster.results, *cluster.results.rglob("*")]
    assert len(found) > 5
    assert {(path.stat().st_uid, path.stat().st_gid) for path in found} == {(4321, 8765)}


@pytest.mark.parametrize("topology", SIZES)
def test_containers_have_nothing_to_give_away(stack: Make, tmp_path: Path, topology: str) -> None:
    """As the engine sees them: no root, no capabilities, no ports, nothing to write to, no way out."""
    spec = spec_of_up(topology, tmp_path, epochs=1)
    cluster = stack(topology, SHARDYARD_SPEC=str(spec), SHARDYARD_CPUS="0.5", SHARDYARD_MEMORY_MB="900")
    assert cluster.up(2).returncode == 0
    listed = cluster.run("ps", "-a", "--quiet").stdout.split()
    told = subprocess.run(["docker", "inspect", *listed], capture_output=True, text=True, check=True)
    for container in json.loads(told.stdout):
        host = container["HostConfig"]
        service = container["Config"]["Labels"]["com.docker.compose.service"]
        assert host["CapDrop"] == ["ALL"]
        assert not host["Privileged"]
        assert not host["PortBindings"]
        assert host["ReadonlyRootfs"]
        assert "no-new-privileges:true" in host["SecurityOpt"]
        if service in ("node", "launcher", "master"):
            assert container["Config"]["User"] == "10001:10001"
            assert not host["CapAdd"]
            assert (host["NanoCpus"], host["Memory"]) == (5 * 10**8, 900 * 2**20)
            assert (host["PidsLimit"], host["ShmSize"]) == (512, 256 * 2**20)
            writable = {mount["Destination"]: mount["RW"] for mount in container["Mounts"]}
            assert writable == {"/data": False, "/checkpoints": False}
    network = subprocess.run(
        ["docker", "network", "inspect", f"{cluster.project}_run"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(network.stdout)[0]["Internal"]
