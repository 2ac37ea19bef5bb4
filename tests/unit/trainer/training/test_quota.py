"""Mistakes in the wait for a CPU quota: training that starts before it, ranks that wait for none."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.core.cgroup import throttle_mark
from trainer.core.context import NodeContext
from trainer.launch.environment import read_context
from trainer.spec.run_spec import RunSpec
from trainer.training import limits
from trainer.training.bare_session import BareSession
from trainer.training.limits import QuotaError, wait_for_limits

RUN: dict[str, Any] = {"strategy": "ddp", "nodes": 2, "cpus": 1, "node_speed": [1, 0.25]}


def context(rank: int, **environment: str) -> NodeContext:
    ranks = {"RANK": str(rank), "WORLD_SIZE": "2", "SHARDYARD_RENDEZVOUS": "/store"}
    return read_context(RunSpec.model_validate(RUN), {**ranks, **environment})


def writer(kinds: list[Any]) -> Any:
    return SimpleNamespace(write=lambda kind, **_: kinds.append(kind))


@pytest.mark.parametrize("in_force", [True, False])
def test_a_rank_in_a_container_waits_for_the_control_group(
    monkeypatch: pytest.MonkeyPatch, in_force: bool
) -> None:
    """The orchestrator sets it once the rank is ready."""
    done: list[Any] = []
    monkeypatch.setattr(limits, "wait_for_quota", lambda cpus, _: done.append(cpus) or in_force)
    with nullcontext() if in_force else pytest.raises(QuotaError, match=r"0\.25"):
        BareSession(context(1, SHARDYARD_CPU_QUOTA="0.25"), writer(done)).start()
    assert done == ["ready", 0.25, *(["train_start"] if in_force else [])]


def test_a_rank_of_the_slower_local_node_waits_for_the_throttle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(limits, "QUOTA_S", 0.05)
    done: list[Any] = []
    first, last = (context(rank, SHARDYARD_THROTTLED=str(tmp_path)) for rank in (0, 1))
    wait_for_limits(first, writer(done))
    assert done == []  # only the last node is throttled
    with pytest.raises(QuotaError, match=r"0\.25"):
        wait_for_limits(last, writer(done))
    throttle_mark(tmp_path, 1).touch()
    wait_for_limits(last, writer(done))
    for environment in ({}, {"SHARDYARD_CPU_QUOTA": ""}):  # empty after a bare `docker compose up`
        wait_for_limits(context(1, **environment), writer(done))
    assert done == ["ready", "ready"]
