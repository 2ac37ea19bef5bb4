"""Mistakes in measuring two links in one run: which epochs belong to which link, and their times."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.bench import link
from tests.bench.two_links import FREE, SHAPED, TwoLinks
from trainer.core.events import Event
from trainer.spec.run_spec import RunSpec

RUN = RunSpec.model_validate({"strategy": "all_reduce", "nodes": 2, "epochs": 6})


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The current time, set by the test; changing the link takes 1.5 s."""
    now = [0.0]

    def shape(node: int) -> None:
        now[0] += 0.75

    monkeypatch.setattr(time, "time", lambda: now[0])
    for name, stand_in in {
        "processes": lambda engine: [1, 2],
        "shape": shape,
        "unshape": shape,
        "shaped_bytes": lambda node: 700,
        "shorten_period": lambda node, cpus: None,
    }.items():
        monkeypatch.setattr(link, name, stand_in)
    return now


def follow(now: list[float], links: list[str]) -> TwoLinks:
    """A run whose epochs take 1 s; rank 1 finishes each 0.1 s after rank 0."""
    engine: Any = None
    two_links = TwoLinks(engine, RUN, links)
    two_links.events([Event(0.0, RUN.key, 0, "node", "start", {})])
    for epoch in range(1, RUN.epochs + 1):
        for rank, end in enumerate((epoch + 0.9, epoch + 1.0)):
            now[0] = max(now[0], end)
            fields = {"epoch": epoch, "train_s": end * (1 + rank)}
            two_links.events([Event(end, RUN.key, rank, "node", "epoch", fields)])
    return two_links


def test_the_first_epoch_and_those_of_the_change_are_excluded(now: list[float]) -> None:
    assert follow(now, [FREE, SHAPED]).epochs() == {FREE: [2, 3], SHAPED: [6]}


def test_one_link_has_all_epochs_but_the_first_and_the_time_of_the_slowest_rank(now: list[float]) -> None:
    alone = follow(now, [FREE])
    assert alone.epochs() == {FREE: [2, 3, 4, 5, 6]}
    assert alone.epoch_s(3) == pytest.approx(2.0)
