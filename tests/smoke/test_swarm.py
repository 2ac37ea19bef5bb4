"""Mistakes of runtime `swarm` on the engines of swarm/cluster: components, refusals, what is left.

Lost nodes and machines are in tests/faults.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from orchestrator.results.store import SweepPaths
from orchestrator.runtimes import RUNTIMES
from orchestrator.runtimes.docker.reaper import LABEL
from orchestrator.runtimes.swarm.options import SwarmOptions
from orchestrator.sweeps.yaml import parse_yaml
from tests.smoke.test_users_components import results_of
from tests.support.command_line import Running, end, orchestrator, run_cli, start
from tests.support.containers import docker, leftovers, swarm_host
from tests.support.pages import blocks
from tests.support.processes import wait_until

pytestmark = pytest.mark.nightly

OWN = """
import torch
from torch import nn

def net(classes: int):
    layers = [nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, classes), nn.LogSoftmax(1)]
    return nn.Sequential(*layers)
"""
SWEEP = """
name: own
swarm: {nodes_per_machine: 1}
base: {dataset: digits, model: ./own.py:net, epochs: 1, nodes: 2, save_weights: true}
blocks:
  - axes: {strategy: [ddp, pipeline]}
  - base: {strategy: all_reduce, transport: mpi}
"""
LONG = ["run", "all_reduce", "--nodes", "2", "--runtime", "swarm", "--set", "transport=gloo"]
LEFT_S = 30.0  # for all machines to remove what a killed command has left


@pytest.fixture(autouse=True)
def manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial swarm instead of the machine's own engine."""
    monkeypatch.setenv("DOCKER_HOST", swarm_host())
    if trouble := RUNTIMES.load("swarm")().unavailable_reason():
        pytest.skip(trouble)


@pytest.fixture(autouse=True)
def nothing_left(manager: None) -> Iterator[None]:
    before = {*leftovers(LABEL)}
    yield
    wait_until(lambda: {*leftovers(LABEL)} <= before, LEFT_S)  # an engine still lists what it is removing


def test_own_components_reach_all_machines_without_a_rebuild(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()  # readable for the user of the containers, which tmp_path is not
    (mine / "own.py").write_text(OWN)
    (mine / "sweep.yml").write_text(SWEEP)
    swarm = results_of(mine / "sweep.yml", tmp_path / "swarm", "swarm")
    local = results_of(mine / "sweep.yml", tmp_path / "local", "local")
    assert swarm.keys() == local.keys()
    assert len(swarm) == 3
    for key, each in swarm.items():
        assert (each.status, each.cause, each.runtime) == ("ok", None, "swarm")
        one, other = (np.load(SweepPaths(tmp_path / name).run(key).weights) for name in ("swarm", "local"))
        assert np.array_equal(one, other), key


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (["--nodes", "2", "--set", "node_speed=[1,0.5]"], "node_speed"),
        (["--nodes", "2", "--set", "checkpoint_epochs=1"], "checkpoints"),
        (["--nodes", "2", "--set", "cpus=1000"], "cpus"),
        (["--nodes", "2", "--set", "link.bandwidth_mbit=100"], "link"),
    ],
)
def test_what_swarm_cannot_do_is_refused_before_anything_starts(
    tmp_path: Path, fields: list[str], named: str
) -> None:
    done = run_cli("run", "all_reduce", "--runtime", "swarm", *fields, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert named in done.stderr + done.stdout
    assert not [*tmp_path.glob("out/*/result.json")]


@contextmanager
def running(directory: Path) -> Iterator[Running]:
    """A command whose run trains."""
    process = start(orchestrator(*LONG, "--set", "epochs=1000", "--out", directory))
    assert process.stdout
    try:
        assert any(re.search(r"epoch \d+/", line) for line in process.stdout), "the run did not train"
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=str)
def test_an_interrupted_command_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path / "out") as process:
        end(process, number)
    wait_until(lambda: not leftovers(LABEL) and not any(map(_containers, engines())), LEFT_S)


def engines() -> list[str]:
    """Those of all machines, as values of DOCKER_HOST."""
    home = Path(swarm_host().removeprefix("unix://")).parents[1]
    return [f"unix://{socket}" for socket in sorted(home.glob("*/docker.sock"))]


def _containers(engine: str) -> list[str]:
    """IDs of the containers of an engine, those included that have ended."""
    return docker("--host", engine, "ps", "--all", "--quiet").split()


def test_the_options_of_the_page_are_valid() -> None:
    options = blocks("docs/swarm.md", "yaml")[0]
    SwarmOptions.model_validate(parse_yaml(options, "docs/swarm.md")["swarm"])
    assert os.environ["DOCKER_HOST"] == swarm_host()
