"""Mistakes in simulated times: the first step, speeds of nodes, and what is simulated only once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.prediction.errors import NoPrediction
from orchestrator.prediction.evidence import Configuration
from orchestrator.prediction.simulated import Played, Simulations
from tests.support.traces import builders, traces
from trainer.core.trace import Kind
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Cluster, Link


def test_the_first_step_takes_longer_than_the_traces_of_sampled_work_have() -> None:
    run = RunSpec.model_validate(
        {"strategy": "one_shot", "nodes": 2, "transport": "gloo", "epochs": 1, "dataset": "digits"}
    )
    ranks = builders(2)
    for rank in ranks:
        rank.add(Kind.EPOCH, peer=1).work(3.0).add(Kind.STEP)
        rank.add(Kind.BARRIER)

    class Written(Simulations):
        def played(self, configuration: Configuration, nodes: int, epochs: int) -> Played:
            return Played(cast("Any", SimpleNamespace(run=run)), traces(ranks), 0.5)

    link = Link(latency_s=0.25, bytes_per_s=1e9)
    cluster = Cluster(node_speed=[0.5] * 2, link=link, overhead_s=0.0)
    found = Written(cast("Any", None), Path(), Path()).time(cast("Any", None), 1, cluster)
    assert found.seconds == pytest.approx((3.0 + 0.5) / 0.5 + 0.25)
    assert found.communication == pytest.approx(0.25 / found.seconds)


def test_each_number_of_nodes_and_epochs_is_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []

    def play(self: Simulations, configuration: Configuration, nodes: int, epochs: int) -> Any:
        made.append((nodes, epochs))
        if nodes > 8:
            raise NoPrediction("too many")
        return object()

    monkeypatch.setattr(Simulations, "_play", play)
    simulations = Simulations(cast("Any", None), Path(), Path())
    configurations = [cast("Configuration", object()), cast("Configuration", object())]
    found = [
        simulations.played(each, nodes, epochs)
        for each in configurations * 2
        for nodes, epochs in ((2, 1), (2, 3), (4, 1))
    ]
    assert found[:6] == found[6:]
    assert len({id(each) for each in found}) == len(made) == 6
    for _ in range(2):
        with pytest.raises(NoPrediction, match="too many"):
            simulations.played(configurations[0], 9, 1)
    assert len(made) == 7
