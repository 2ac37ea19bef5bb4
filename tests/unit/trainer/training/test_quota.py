"""Mistakes in the wait for a CPU quota: training that starts before it, ranks that wait for none."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer.core.cgroup import throttle_mark
from trainer.core.context import NodeContext
from trainer.core.events import EventReader, EventWriter
from trainer.launch.environment import LaunchError, read_context
from trainer.spec.run_spec import RunSpec
from trainer.training import limits
from trainer.training.bare_session import BareSession
from trainer.training.limits import QuotaError, wait_for_limits

RUN: dict[str, Any] = {"strategy": "ddp", "nodes": 2, "cpus": 1, "node_speed": [1, 0.25]}


def context(rank: int, **environment: str) -> NodeContext:
    """The rank's context. It reads its quota from the environment."""
    ranks = {"RANK": str(rank), "WORLD_SIZE": "2", "SHARDYARD_RENDEZVOUS": "/store"}
    return read_context(RunSpec.model_validate(RUN), {**ranks, **environment})


def kinds(directory: Path) -> list[str]:
    return [event.kind for event in EventReader(directory).new()]


@pytest.fixture
def events(tmp_path: Path) -> Iterator[EventWriter]:
    writer = EventWriter("run", 1, tmp_path, console=io.StringIO())
    yield writer
    writer.close()


@pytest.mark.parametrize("in_force", [True, False])
def test_a_rank_in_a_container_waits_for_the_control_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, events: EventWriter, in_force: bool
) -> None:
    waits: list[tuple[float, list[str]]] = []

    def wait_for_quota(cpus: float, timeout_s: float) -> bool:
        waits.append((cpus, kinds(tmp_path)))
        return in_force

    monkeypatch.setattr(limits, "wait_for_quota", wait_for_quota)
    session = BareSession(context(1, SHARDYARD_CPU_QUOTA="0.25"), events)
    if in_force:
        session.start()
    else:
        with pytest.raises(QuotaError, match=r"0\.25"):
            session.start()
    assert waits == [(0.25, ["ready"])]  # the orchestrator waits for this event
    assert kinds(tmp_path) == ["ready", "train_start"] if in_force else ["ready"]


def test_a_rank_of_the_slower_local_node_waits_for_the_throttle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, events: EventWriter
) -> None:
    monkeypatch.setattr(limits, "QUOTA_S", 0.05)
    first, last = (context(rank, SHARDYARD_THROTTLED=str(tmp_path)) for rank in (0, 1))
    wait_for_limits(first, events)
    assert kinds(tmp_path) == []  # only the last node is throttled
    with pytest.raises(QuotaError, match=r"0\.25"):
        wait_for_limits(last, events)
    throttle_mark(tmp_path, 1).touch()
    wait_for_limits(last, events)
    assert kinds(tmp_path) == ["ready", "ready"]


def test_a_rank_without_a_quota_does_not_wait(tmp_path: Path, events: EventWriter) -> None:
    for environment in ({}, {"SHARDYARD_CPU_QUOTA": ""}):  # empty after a bare `docker compose up`
        wait_for_limits(context(1, **environment), events)
    assert kinds(tmp_path) == []
    with pytest.raises(LaunchError, match="SHARDYARD_CPU_QUOTA"):
        context(1, SHARDYARD_CPU_QUOTA="much")
