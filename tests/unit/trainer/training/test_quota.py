"""Mistakes in the wait for a CPU quota: training that starts before it, ranks that wait for none."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.core.context import NodeContext
from trainer.training import limits
from trainer.training.bare_session import BareSession
from trainer.training.limits import LinkError, QuotaError, wait_for_links


def start(done: list[Any], **fields: Any) -> None:
    """Start a rank, whose events are added to `done`."""
    writer: Any = SimpleNamespace(write=lambda kind, **_: done.append(kind))
    BareSession(NodeContext(1, 2, "gloo", Path(), **fields), writer).start()


@pytest.mark.parametrize("in_force", [True, False])
def test_a_rank_in_a_container_waits_for_the_control_group(
    monkeypatch: pytest.MonkeyPatch, in_force: bool
) -> None:
    """The orchestrator sets it once the rank is ready."""
    done: list[Any] = []
    monkeypatch.setattr(limits, "wait_for_quota", lambda cpus, _: done.append(cpus) or in_force)
    with nullcontext() if in_force else pytest.raises(QuotaError, match=r"0\.25"):
        start(done, cpu_quota=0.25)
    assert done == ["ready", 0.25, *(["train_start"] if in_force else [])]


def test_a_rank_of_a_slower_local_node_waits_for_the_throttle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(limits, "QUOTA_S", 0.05)
    done: list[Any] = []
    start(done)
    with pytest.raises(QuotaError, match=r"0\.25"):
        start(done, cpu_quota=0.25, throttle_mark=tmp_path / "mark")
    (tmp_path / "mark").touch()
    start(done, cpu_quota=0.25, throttle_mark=tmp_path / "mark")
    assert done == ["train_start", "ready", "ready", "train_start"]


def test_a_rank_waits_for_the_links_of_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "wait_until_linked", lambda nodes, _: nodes == ("a",))
    for nodes in ((), ("a",)):
        wait_for_links(NodeContext(1, 2, "gloo", Path(), linked=nodes))
    with pytest.raises(LinkError):
        wait_for_links(NodeContext(1, 2, "gloo", Path(), linked=("b",)))
