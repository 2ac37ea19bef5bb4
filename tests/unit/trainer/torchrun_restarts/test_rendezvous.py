"""The rendezvous backend. Agents are threads here; their store is a real one on loopback."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousTimeoutError

from trainer.comm.attempt_store import attempt_store, exit_barrier
from trainer.core.context import NodeContext
from trainer.launch.environment import read_context
from trainer.spec.run_spec import RunSpec
from trainer.torchrun_restarts import rendezvous as module
from trainer.torchrun_restarts.rendezvous import Rendezvous


def spec(nodes: int, restarts: int = 2, timeout_s: float = 20) -> RunSpec:
    return RunSpec.model_validate(
        {"strategy": "ddp", "nodes": nodes, "restarts": restarts, "timeout_s": timeout_s}
    )


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture(autouse=True)
def attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDYARD_ATTEMPT", "unset")  # restored after the test


def agents(pool: ThreadPoolExecutor, endpoint: str, run: RunSpec) -> list[Rendezvous]:
    """One agent per node, created in reverse order."""
    made = [pool.submit(Rendezvous, run, node, endpoint) for node in reversed(range(run.nodes))]
    return [each.result() for each in reversed(made)]


def rendezvous(pool: ThreadPoolExecutor, *group: Rendezvous) -> list[Any]:
    return [each.result() for each in [pool.submit(agent.next_rendezvous) for agent in group]]


def test_node_ranks_are_fixed(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    group = agents(pool, str(tmp_path / "port"), spec(3))
    for attempt in range(3):
        met = rendezvous(pool, *group)
        assert [(info.rank, info.world_size) for info in met] == [(0, 3), (1, 3), (2, 3)]
        addresses = {
            (info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) for info in met
        }
        assert addresses == {("127.0.0.1", int((tmp_path / "port").read_text()))}
        assert os.environ["SHARDYARD_ATTEMPT"] == str(attempt)


def test_endpoint_with_a_port(pool: ThreadPoolExecutor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert len(rendezvous(pool, *agents(pool, f"127.0.0.1:{port}", spec(2)))) == 2


def test_rendezvous_waits_for_all_agents(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    first, second = agents(pool, str(tmp_path / "port"), spec(2))
    waiting = pool.submit(first.next_rendezvous)
    time.sleep(0.2)
    assert not waiting.done()
    second.next_rendezvous()
    assert waiting.result().rank == 0


def test_waiting_agents_are_counted(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    group = agents(pool, str(tmp_path / "port"), spec(3))
    rendezvous(pool, *group)
    assert [agent.num_nodes_waiting() for agent in group] == [0, 0, 0]
    again = pool.submit(group[1].next_rendezvous)
    deadline = time.monotonic() + 10
    while not group[0].num_nodes_waiting():
        assert time.monotonic() < deadline
    assert group[2].num_nodes_waiting() == 1
    rendezvous(pool, group[0], group[2])
    assert again.result().rank == 1
    assert [agent.num_nodes_waiting() for agent in group] == [0, 0, 0]


def test_attempts_have_separate_keys(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    group = agents(pool, str(tmp_path / "port"), spec(2))
    for _ in range(2):
        for info in rendezvous(pool, *group):
            assert not info.store.check(["stale"])
        info.store.set("stale", "")


def test_rendezvous_closes_after_the_last_restart(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    group = agents(pool, str(tmp_path / "port"), spec(2, restarts=1))
    rendezvous(pool, *group)
    rendezvous(pool, *group)
    assert not group[0].is_closed()
    for agent in group:
        with pytest.raises(RendezvousClosedError, match="1 restarts"):
            agent.next_rendezvous()
    assert group[0].is_closed()


def test_missing_agent(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    first, _ = agents(pool, str(tmp_path / "port"), spec(2, timeout_s=1))
    with pytest.raises(RendezvousTimeoutError, match="within 1 s"):
        first.next_rendezvous()


def test_agent_with_the_store_leaves_last(
    pool: ThreadPoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = agents(pool, str(tmp_path / "port"), spec(2))
    rendezvous(pool, first, second)
    leaving = pool.submit(first.shutdown)
    time.sleep(0.2)
    assert not leaving.done()
    second.shutdown()
    assert leaving.result()
    monkeypatch.setattr(module, "SHUTDOWN_S", 0.1)
    rendezvous(pool, first, second)
    first.shutdown()  # the other agent has left


@pytest.fixture
def rank_of(pool: ThreadPoolExecutor, tmp_path: Path) -> Callable[..., NodeContext]:
    """Contexts of ranks of a run with two nodes."""
    (info, _) = rendezvous(pool, *agents(pool, str(tmp_path / "port"), spec(2)))

    def rank_of(rank: int, attempt: int) -> NodeContext:
        where = info.bootstrap_store_info  # a reference to `info` keeps the store alive
        environment = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": where.master_addr}
        environment |= {"MASTER_PORT": where.master_port, "SHARDYARD_ATTEMPT": attempt}
        return read_context(spec(2), {name: str(value) for name, value in environment.items()})

    return rank_of


def test_ranks_share_a_store_with_their_attempt_only(rank_of: Callable[..., NodeContext]) -> None:
    attempt_store(rank_of(0, 0)).set("address", "of attempt 0")
    assert attempt_store(rank_of(1, 0)).get("address") == b"of attempt 0"
    assert not attempt_store(rank_of(1, 1)).check(["address"])


def test_exit_barrier(pool: ThreadPoolExecutor, rank_of: Callable[..., NodeContext]) -> None:
    """Every rank leaves in the end: torch aborts a process that exits while a thread is in its store."""
    waiting = pool.submit(exit_barrier, rank_of(0, 1))
    other = pool.submit(exit_barrier, rank_of(1, 0))  # another attempt
    assert not wait([waiting, other], timeout=0.3).done
    exit_barrier(rank_of(1, 1))
    waiting.result(timeout=10)
    assert not other.done()
    exit_barrier(rank_of(0, 0))
    other.result(timeout=10)
