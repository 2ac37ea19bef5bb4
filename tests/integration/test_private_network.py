"""Mistakes that let other users connect to the nodes of a local run, which a shared network allows."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.execution.clusters import Clusters
from orchestrator.runtimes.local.runtime import LocalRuntime
from tests.support.nightly import nightly
from tests.support.processes import node_processes, private_network_missing
from tests.support.runs import DuringTraining, execute_on

RANKS = 2
LONG = {"strategy": "all_reduce", "nodes": RANKS, "epochs": 10_000}
During = Callable[..., Any]


@pytest.fixture(scope="module", params=[False, *nightly(True)], ids=["private", "shared"])
def clusters(request: pytest.FixtureRequest) -> Iterator[Clusters]:
    if not request.param and (missing := private_network_missing()):
        pytest.skip(missing)
    with Clusters(LocalRuntime(shared_network=request.param)) as started:
        yield started


@pytest.fixture
def during(clusters: Clusters, tmp_path: Path) -> During:
    """`during(look, transport="rpc", …)`: what `look(display)` returns while all ranks train."""

    def during(look: Callable[[DuringTraining], Any], **fields: Any) -> Any:
        seen: list[Any] = []

        def act(rank: int) -> None:
            try:
                seen.append(look(display))
            finally:
                os.kill(rank, signal.SIGKILL)  # the run would last for minutes

        display = DuringTraining(act, rank=0, ranks=RANKS)
        result = execute_on(clusters, "local", tmp_path, display, {**LONG, **fields})
        assert "SIGKILL" in str(result.cause)
        (value,) = seen
        return value

    return during


def test_addresses_of_the_rendezvous_file_cannot_be_reached(
    clusters: Clusters, during: During, tmp_path: Path
) -> None:
    """Whoever connects to a rank's RPC agent can call any function in its process."""

    def attack(_: DuringTraining) -> list[int]:
        (rendezvous,) = tmp_path.glob("*/live/rendezvous")
        ports = {int(port) for port in re.findall(rb"uv://127\.0\.0\.1:(\d+)", rendezvous.read_bytes())}
        assert len(ports) == RANKS
        return [port for port in ports if _accepts(port)]

    reached = during(attack, transport="rpc")
    assert len(reached) == (RANKS if clusters.runtime.shared_network else 0)


def _accepts(port: int) -> bool:
    with socket.socket() as attacker:
        return attacker.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("transport", ["mpi", "gloo", "rpc"])
def test_run_listens_only_in_its_own_network(
    clusters: Clusters, during: During, tmp_path: Path, transport: str
) -> None:
    def listening(display: DuringTraining) -> set[str]:
        ranks = [event.fields["pid"] for event in display.seen if event.kind == "start"]
        processes = {process.pid for process in node_processes(tmp_path)} | {*ranks}
        assert len(processes) > RANKS
        # The system lists the sockets of the network namespace of this process.
        sockets = psutil.net_connections("inet")
        return {each.laddr.ip for each in sockets if each.pid in processes and each.status == "LISTEN"}

    # What Open MPI opens is the reason that a shared network needs the user's consent.
    expected = {"mpi": {"0.0.0.0", "::"}, "gloo": {"127.0.0.1"}, "rpc": {"127.0.0.1"}}[transport]
    found = during(listening, transport=transport)
    assert found >= expected if clusters.runtime.shared_network else found == set()
