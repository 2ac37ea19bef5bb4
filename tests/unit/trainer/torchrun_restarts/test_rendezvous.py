"""Mistakes in the rendezvous of agents, here threads: ranks, attempts, keys of the store, ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousTimeoutError

from tests.support.processes import wait_until
from trainer.comm.attempt_store import exit_barrier
from trainer.spec.run_spec import RunSpec
from trainer.torchrun_restarts import rendezvous as module
from trainer.torchrun_restarts.rendezvous import Rendezvous


def spec(nodes: int = 2, restarts: int = 2) -> RunSpec:
    return RunSpec.model_validate(
        {"strategy": "ddp", "nodes": nodes, "restarts": restarts, "timeout_s": 20}
    )


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDYARD_ATTEMPT", "unset")  # restored after the test
    monkeypatch.setattr(module, "POLL_S", 0.005)
    monkeypatch.setattr(module, "SHUTDOWN_S", 0.5)


def agents(pool: ThreadPoolExecutor, endpoint: Path | str, run: RunSpec) -> list[Rendezvous]:
    """One agent per node, created in reverse order."""
    made = [pool.submit(Rendezvous, run, node, str(endpoint)) for node in reversed(range(run.nodes))]
    return [each.result() for each in reversed(made)]


def meet(pool: ThreadPoolExecutor, *group: Rendezvous) -> list[Any]:
    return [each.result() for each in [pool.submit(agent.next_rendezvous) for agent in group]]


def waits(future: Future[Any]) -> bool:
    return not wait([future], timeout=0.1).done


def test_attempts_share_ranks_and_store_but_no_keys(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    group = agents(pool, tmp_path / "port", spec(3))
    address = ("127.0.0.1", int((tmp_path / "port").read_text()))
    for attempt in range(3):
        met = meet(pool, *group)
        assert [(info.rank, info.world_size) for info in met] == [(0, 3), (1, 3), (2, 3)]
        where = [info.bootstrap_store_info for info in met]
        assert {(each.master_addr, each.master_port) for each in where} == {address}
        assert os.environ["SHARDYARD_ATTEMPT"] == str(attempt)
        assert not met[1].store.check(["stale"])
        met[0].store.set("stale", "of node 0")
        assert met[1].store.get("stale") == b"of node 0"


def test_waiting_agents_are_counted(pool: ThreadPoolExecutor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    first, second = agents(pool, f"127.0.0.1:{port}", spec())
    meet(pool, first, second)
    assert first.num_nodes_waiting() == 0
    again = pool.submit(second.next_rendezvous)
    wait_until(lambda: first.num_nodes_waiting() == 1)
    assert waits(again)
    first.next_rendezvous()
    assert (again.result().rank, second.num_nodes_waiting()) == (1, 0)


def test_rendezvous_closes_after_the_last_restart(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    group = agents(pool, tmp_path / "port", spec(restarts=1))
    for _ in range(2):
        meet(pool, *group)
    assert not group[0].is_closed()
    for agent in group:
        with pytest.raises(RendezvousClosedError, match="1 restarts"):
            agent.next_rendezvous()
    assert group[0].is_closed()


def test_missing_agent_is_waited_for_until_the_timeout(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    made = spec().model_copy(update={"timeout_s": 0.2})
    first, _ = agents(pool, tmp_path / "port", made)
    with pytest.raises(RendezvousTimeoutError, match=r"within 0\.2 s"):
        first.next_rendezvous()


def test_agent_with_the_store_leaves_last(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    first, second = agents(pool, tmp_path / "port", spec())
    meet(pool, first, second)
    leaving = pool.submit(first.shutdown)
    assert waits(leaving)
    second.shutdown()
    assert leaving.result(timeout=10)
    meet(pool, first, second)
    first.shutdown()  # it does not wait for ever


def test_exit_barrier_waits_for_the_ranks_of_its_attempt(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    """Every rank leaves in the end: torch aborts a process that exits while a thread is in its store."""
    group = agents(pool, tmp_path / "port", spec())
    rank = {"rendezvous": f"127.0.0.1:{(tmp_path / 'port').read_text()}", "timeout_s": 20}
    ranks: list[Any] = [SimpleNamespace(**rank, size=len(group), attempt=each) for each in (0, 1)]
    waiting = [pool.submit(exit_barrier, each) for each in ranks]
    for each, blocked in zip(ranks, waiting, strict=True):
        assert waits(blocked)
        exit_barrier(each)
        blocked.result(timeout=10)
