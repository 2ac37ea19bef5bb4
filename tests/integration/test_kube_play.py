"""Mistakes in exported pods that Podman, another reader of Kubernetes' manifests, finds."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.commands.export import export
from orchestrator.export.base import Options

pytestmark = pytest.mark.nightly

IMAGE = "localhost/shardyard-empty:1"
SWEEP = "name: s\nblocks: [base: {strategy: ddp, nodes: 2, cpus: 0.5, memory_mb: 700}]\n"
ABSENT = [each for each in ("podman", "catatonit") if not shutil.which(each)]
MISSING = f"no {ABSENT[0]} is installed" if ABSENT else ""
if not MISSING and os.geteuid() != 0:
    MISSING = "limits of pods need root"

Podman = Callable[..., str]


@pytest.fixture
def podman() -> Iterator[Podman]:
    """Podman with a storage of its own, of which nothing is left."""
    if MISSING:
        pytest.skip(MISSING)
    with tempfile.TemporaryDirectory() as home:  # podman takes short paths only
        storage = ["--storage-driver", "vfs", "--root", f"{home}/root", "--runroot", f"{home}/run"]

        def podman(*arguments: str, stdin: bytes | None = None) -> str:
            command = ["podman", *storage, *arguments]
            done = subprocess.run(command, input=stdin, capture_output=True, timeout=120)
            assert done.returncode == 0, done.stderr.decode()
            return done.stdout.decode()

        yield podman
        for kind in ("pod", "volume"):
            podman(kind, "rm", "--all", "--force")


def empty_image() -> bytes:
    """An image's file system without any file."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("none"))
    return archive.getvalue()


def pod(directory: Path) -> list[dict[str, Any]]:
    """The run's ConfigMap, and the pod that its Job would create."""
    job = yaml.safe_load((directory / "job.yaml").read_text())
    template = job["spec"]["template"]
    metadata = {"name": job["metadata"]["name"], **template["metadata"]}
    config_map = yaml.safe_load((directory / "configmap.yaml").read_text())
    return [config_map, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}]


def test_podman_creates_a_confined_pod(tmp_path: Path, podman: Podman) -> None:
    (tmp_path / "sweep.yml").write_text(SWEEP)
    [*export(tmp_path / "sweep.yml", "kubernetes", tmp_path / "out", Options(image=IMAGE))]
    (directory,) = (path for path in (tmp_path / "out").iterdir() if path.is_dir())
    podman("import", "-", IMAGE, stdin=empty_image())
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump_all(pod(directory)))
    podman("kube", "play", "--start=false", "--network=none", str(tmp_path / "pod.yaml"))
    (container,) = json.loads(podman("inspect", f"{directory.name}-node"))
    host = container["HostConfig"]
    assert container["Config"]["User"].partition(":")[0] == "10001"
    assert host["ReadonlyRootfs"] is True
    assert not container["EffectiveCaps"]
    assert "no-new-privileges" in host["SecurityOpt"]
    assert (host["Memory"], host["CpuQuota"] / host["CpuPeriod"]) == (700 * 2**20, 0.5)
    writable = {mount["Destination"]: mount["RW"] for mount in container["Mounts"]}
    assert writable == {"/etc/shardyard": False, "/dev/shm": True, "/tmp": True, "/results": True}
