"""The container in which users' components are tried."""

from __future__ import annotations

from pathlib import Path

from orchestrator.runtimes.docker.inspection import inspection_container
from orchestrator.sweeps.imports import SAMPLES, Inspection


def test_it_is_confined_and_sees_only_what_it_needs(tmp_path: Path) -> None:
    one, two, stage, data = (tmp_path / name for name in ("one", "two", "stage", "data"))
    data.mkdir()
    command = inspection_container(Inspection([one, two], stage, data), "sha256:1", "1 2 3")
    options, _, started = " ".join(command).partition(" --entrypoint=python ")
    assert started == "sha256:1 -m trainer.inspection"
    for wanted in (
        "--network=none",
        "--read-only",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges:true",
        "--user=10001:10001",
        "--label shardyard.orchestrator=1 2 3",
        "--rm",
    ):
        assert wanted in options
    mounts = [part for part in command if part.startswith("--mount")]
    places = (one, two, stage, stage / SAMPLES, data)
    assert [f"target={path}" in mount for path, mount in zip(places, mounts, strict=True)] == 5 * [True]
    assert [mount.endswith(",readonly") for mount in mounts] == [True, True, True, False, True]


def test_a_data_directory_that_is_not_there_is_not_mounted(tmp_path: Path) -> None:
    command = inspection_container(Inspection([tmp_path], tmp_path, tmp_path / "gone"), "i", "1")
    assert not any(f"{tmp_path}/gone,target" in part for part in command)
