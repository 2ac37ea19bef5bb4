"""Simulated times, of traces written by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

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
