"""Which epochs of a run count for which link, when that changes in the middle of it."""

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
def at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The moment, which the test moves; a change takes one and a half seconds."""
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
    """A run whose epochs take a second, and rank 1 a tenth longer than rank 0."""
    engine: Any = None
    watchdog = TwoLinks(engine, RUN, links)
    watchdog.events([Event(0.0, RUN.key, 0, "node", "start", {})])
    for epoch in range(1, RUN.epochs + 1):
        for rank, end in enumerate((epoch + 0.9, epoch + 1.0)):
            now[0] = max(now[0], end)
            fields = {"epoch": epoch, "train_s": end * (1 + rank)}
            watchdog.events([Event(end, RUN.key, rank, "node", "epoch", fields)])
    return watchdog


@pytest.mark.parametrize("links", [[FREE, SHAPED], [SHAPED, FREE]])
def test_neither_the_first_epoch_nor_those_of_the_change_count(at: list[float], links: list[str]) -> None:
    watchdog = follow(at, links)
    assert watchdog.epochs() == {links[0]: [2, 3], links[1]: [6]}


def test_an_epoch_is_as_long_as_its_slowest_rank(at: list[float]) -> None:
    assert follow(at, [FREE]).epoch_s(3) == pytest.approx(2.0)


def test_one_link_all_along(at: list[float]) -> None:
    assert follow(at, [FREE]).epochs() == {FREE: [2, 3, 4, 5, 6]}
