"""Mistakes in simulated times: specs, the first step, speeds of nodes, and what is simulated only once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.prediction.errors import NoPrediction
from orchestrator.prediction.evidence import Configuration
from orchestrator.prediction.simulated import Played, Simulations, simulated_run
from tests.support.traces import builders, traces
from trainer.core.trace import Kind
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Cluster, Link

UNUSED = cast("Any", None)


def spec(strategy: str, nodes: int = 2, **fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": strategy, "nodes": nodes, **fields})


def test_the_first_step_takes_longer_than_the_traces_of_sampled_work_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = [
        rank.add(Kind.EPOCH, peer=1).work(3.0).add(Kind.STEP).add(Kind.BARRIER) for rank in builders(2)
    ]
    result = cast("Any", SimpleNamespace(run=spec("one_shot", transport="gloo", dataset="digits")))
    monkeypatch.setattr(Simulations, "_play", lambda *_: Played(result, traces(ranks), 0.5))
    link = Link(latency_s=0.25, bytes_per_s=1e9)
    cluster = Cluster(node_speed=[0.5] * 2, link=link, overhead_s=0.0)
    found = Simulations(UNUSED, Path(), Path()).time(UNUSED, 1, cluster)
    assert found.seconds == pytest.approx((3.0 + 0.5) / 0.5 + 0.25)
    assert found.communication == pytest.approx(0.25 / found.seconds)


def test_each_number_of_nodes_and_epochs_is_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []

    def play(self: Simulations, *asked: Any) -> Any:
        made.append(asked)
        if asked[1] > 8:
            raise NoPrediction("too many")
        return asked

    monkeypatch.setattr(Simulations, "_play", play)
    simulations = Simulations(UNUSED, Path(), Path())
    configurations = [cast("Configuration", object()), cast("Configuration", object())]
    asked = [(each, *numbers) for each in configurations for numbers in ((2, 1), (2, 3), (4, 1))]
    assert [simulations.played(*each) for each in 2 * asked] == 2 * asked
    for _ in range(2):
        with pytest.raises(NoPrediction, match="too many"):
            simulations.played(configurations[0], 9, 1)
    assert made == [*asked, (configurations[0], 9, 1)]


def test_a_simulated_run_has_no_target_and_no_nodes_of_another_speed() -> None:
    measured = spec("all_reduce", transport="gloo", target_accuracy=0.9, seed=3, node_speed={0: 0.5})
    found = simulated_run(measured, 64, epochs=1)
    assert (found.nodes, found.epochs, found.target_accuracy, found.node_speed) == (64, 1, None, None)
    assert simulated_run(spec("async_parameter_server", 3, transport="rpc"), 4, 1).link is not None
    with pytest.raises(NoPrediction, match="stages"):
        simulated_run(spec("pipeline", transport="gloo"), 4096, 1)
