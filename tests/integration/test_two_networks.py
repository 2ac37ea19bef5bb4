"""Two nodes in networks of their own: their ranks meet over the link between them, and no other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import PROJECT, environment
from trainer.core.events import EventReader
from trainer.launch.launchers import PORT
from trainer.spec.run_spec import RunSpec

pytestmark = pytest.mark.nightly

TOOLS = ("ip", "nsenter", "unshare")
HOLD_S = "120"  # a namespace ends with the process that holds it


class Node:
    """A network namespace, which lives as long as a process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", f"echo; exec sleep {HOLD_S}"], stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()  # the namespace exists

    @property
    def prefix(self) -> list[str]:
        """The start of a command in the namespace."""
        return ["nsenter", "--target", str(self.process.pid), "--net"]

    def ip(self, *arguments: str) -> None:
        subprocess.run([*self.prefix, "ip", *arguments], check=True, capture_output=True, timeout=10)


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(TOOLS)}")
    nodes = [Node(), Node()]
    try:
        first, second = (str(node.process.pid) for node in nodes)
        link = [
            "ip",
            "link",
            "add",
            "link0",
            "netns",
            first,
            "type",
            "veth",
            "peer",
            "link0",
            "netns",
            second,
        ]
        if subprocess.run(link, capture_output=True, timeout=10, check=False).returncode:
            pytest.skip("the system permits no virtual link between networks")
        for number, node in enumerate(nodes, start=1):
            node.ip("link", "set", "lo", "up")
            # An interface that leads nowhere, and comes first.
            node.ip("link", "add", "a0", "type", "veth", "peer", "a1")
            for name, network in (("a0", "8"), ("link0", "9")):
                node.ip("addr", "add", f"10.{network}.0.{number}/24", "dev", name)
                node.ip("addr", "add", f"fd00:{network}::{number}/64", "dev", name, "nodad")
                node.ip("link", "set", name, "up")
        yield nodes
    finally:
        for node in nodes:
            node.process.kill()
            node.process.communicate()


def train(directory: Path, nodes: list[Node], host: str, **fields: Any) -> list[str]:
    """The output of each rank of a run. host: the address of the first node."""
    same = {"strategy": "all_reduce", "nodes": 2, "model": "mlp", "epochs": 1}
    spec = RunSpec.model_validate({**same, **fields})
    (directory / "spec.json").write_text(spec.model_dump_json())
    common = {"SHARDYARD_SPEC": str(directory / "spec.json"), "SHARDYARD_OUT": str(directory / "out")}
    launcher = {"SHARDYARD_LAUNCHER": "kubernetes", "NNODES": "2", "MASTER_ADDR": host}
    ranks = [
        subprocess.Popen(
            [*node.prefix, sys.executable, "-m", "trainer"],
            cwd=PROJECT,
            env={**environment(), **common, **launcher, "JOB_COMPLETION_INDEX": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, node in enumerate(nodes)
    ]
    try:
        return [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.parametrize(
    ("transport", "host"), [("gloo", "10.9.0.1"), ("gloo", "fd00:9::1"), ("rpc", "10.9.0.1")]
)
def test_ranks_meet_over_the_route_to_the_first_node(
    tmp_path: Path, nodes: list[Node], transport: str, host: str
) -> None:
    output = train(tmp_path, nodes, host, transport=transport)
    events = EventReader(tmp_path / "out").new()
    assert {event.rank for event in events if event.kind == "done"} == {0, 1}, "\n".join(output)


def test_all_ranks_name_nodes_that_a_firewall_keeps_apart(tmp_path: Path, nodes: list[Node]) -> None:
    """The first node lets the others connect to its store only, so gloo could wait for them forever."""
    if shutil.which("iptables") is None:
        pytest.skip("needs iptables")
    rule = ["iptables", "-A", "INPUT", "-p", "tcp", "--syn", "!", "--dport", str(PORT), "-j", "DROP"]
    if subprocess.run([*nodes[0].prefix, *rule], capture_output=True, timeout=10, check=False).returncode:
        pytest.skip("the system permits no firewall in a network of its own")
    output = train(tmp_path, nodes, "10.9.0.1", transport="gloo", timeout_s=10)
    assert all("node 1 does not reach node 0 at 10.9.0.1" in each for each in output), "\n".join(output)
