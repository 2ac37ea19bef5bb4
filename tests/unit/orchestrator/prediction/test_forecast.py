"""Mistakes in a forecast: whose costs, speeds and links count, prices, bounds, and targets."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from orchestrator.prediction.error_model import ErrorModel
from orchestrator.prediction.errors import NoPrediction
from orchestrator.prediction.evidence import Configuration, Evidence, MeasuredRun, share_of_step
from orchestrator.prediction.forecast import (
    MOST_WIDTH,
    Forecast,
    Question,
    Refused,
    cluster_of,
    forecasts,
)
from orchestrator.prediction.measured_cluster import MeasuredCluster, TransportCosts
from orchestrator.prediction.simulated import Simulations, Time, simulated_run
from orchestrator.results.records import RankResult, RunResult
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Cluster, Link, SoftwareCost

SURE = ErrorModel(np.zeros(3), np.diag([0.5, 1e-3, 1e-3]) ** 2, 1e-3)
OWN = Link(latency_s=0.0, bytes_per_s=1e9)


def spec(strategy: str, nodes: int, **fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": strategy, "nodes": nodes, "epochs": 2, **fields})


def configuration(strategy: str, *seconds: tuple[int, float], **fields: Any) -> Configuration:
    """nodes and seconds of its measured runs."""
    runs = []
    for nodes, took_s in seconds:
        run = spec(strategy, nodes, **fields)
        cluster = Cluster(node_speed=[1.0] * nodes, link=OWN, overhead_s=1e-5)
        result = cast("Any", SimpleNamespace(run=run, last_epoch=2))
        runs.append(MeasuredRun(run.key, result, took_s, "wall", cluster, OWN.bytes_per_s, [0.01], 0.0, []))
    return Configuration(runs, 0.001, 0.0001, 0.0)


class GivenTimes(Simulations):
    """Ten seconds of work over the nodes and their speed, and a latency for each node."""

    def time(self, configuration: Configuration, epochs: int, cluster: Cluster) -> Time:
        nodes = len(cluster.node_speed)
        if nodes > 100:
            raise NoPrediction("too many")
        work_s, rest_s = 10 / nodes / cluster.node_speed[0], nodes * cluster.link.latency_s
        return Time(work_s + rest_s, rest_s / (work_s + rest_s))

    def played(self, configuration: Configuration, nodes: int, epochs: int) -> Any:
        ranks = [
            SimpleNamespace(state_bytes={"weights": 5, "gradient": 5}, activation_bytes=activations)
            for activations in (None, 7, 1)
        ]
        for rank in ranks:
            rank.held_bytes = RankResult.held_bytes.fget(rank)  # type: ignore[attr-defined]
        run = spec("all_reduce", nodes, transport="gloo")
        result = SimpleNamespace(run=run, ranks=ranks, bytes_sent_per_rank=12.0)
        result.held_bytes = RunResult.held_bytes.fget(result)  # type: ignore[attr-defined]
        return SimpleNamespace(result=result)


def forecast(question: Question, *configurations: Configuration) -> list[Forecast | Refused]:
    simulations = GivenTimes(*3 * [cast("Any", None)])
    return [*forecasts(Evidence(configurations, [], cast("Any", None)), question, simulations, SURE)]


MEASURED = configuration("all_reduce", (2, 6.0), (4, 3.0), transport="gloo")  # 1.2 times the simulated ones
SERIAL = configuration("serial", (1, 12.0))


def test_a_forecast_is_the_simulated_time_with_the_measured_ratio() -> None:
    (found,) = forecast(Question([8]), MEASURED, SERIAL)
    assert isinstance(found, Forecast)
    assert found.seconds == pytest.approx(1.2 * 10 / 8, rel=0.01)
    assert found.low_s < found.seconds < found.high_s
    assert (found.speedup, found.efficiency) == (pytest.approx(8, rel=0.01), pytest.approx(1, rel=0.01))
    assert (found.state_bytes, found.bytes_sent, found.measured_nodes) == (17, 12.0, 4)
    assert found.cost is None


def test_link_speed_and_price_are_those_of_the_question() -> None:
    slow = Link(latency_s=0.1, bytes_per_s=2e9)
    (found,) = forecast(Question([8], slow, speed=2.0, price_per_h=3.6), MEASURED, SERIAL)
    assert isinstance(found, Forecast)
    assert found.seconds == pytest.approx(1.2 * (10 / 8 / 2 + 0.8), rel=0.01)
    assert found.speedup == pytest.approx(12.0 / 2 / found.seconds)
    assert found.cost == pytest.approx(8 * found.seconds / 1000)
    assert found.low_cost == pytest.approx(8 * found.low_s / 1000)


def test_a_wide_interval_and_an_impossible_simulation_are_refused_alone() -> None:
    vague = ErrorModel(np.zeros(3), np.diag([0.5, 0.5, 0.5]) ** 2, 0.1)
    simulations = GivenTimes(*3 * [cast("Any", None)])
    evidence = Evidence([MEASURED], [], cast("Any", None))
    near, far, impossible = forecasts(evidence, Question([4, 64, 128]), simulations, vague)
    assert isinstance(near, Forecast)
    assert isinstance(far, Refused)
    assert "runs on more than 4 nodes" in far.reason
    assert isinstance(impossible, Refused)
    assert (impossible.nodes, impossible.reason) == (128, "too many")


def test_a_faster_link_than_the_measured_one_is_not_capped_by_it() -> None:
    shaped = configuration("all_reduce", (2, 6.0), link={"latency_ms": 1.0, "bandwidth_mbit": 8.0})
    slow = shaped.runs[0].cluster.model_copy(update={"link": Link(latency_s=0.001, bytes_per_s=1e6)})
    shaped = replace(shaped, runs=[replace(shaped.runs[0], cluster=slow)])
    assert cluster_of(shaped, 4, Question([4])).link == slow.link
    asked = Link(latency_s=0.0, bytes_per_s=1e8)
    assert cluster_of(shaped, 4, Question([4], asked)).link == asked
    beyond = Link(latency_s=0.0, bytes_per_s=1e12)
    assert cluster_of(shaped, 4, Question([4], beyond)).link.bytes_per_s == OWN.bytes_per_s


def test_nodes_have_the_quota_of_the_measured_ones() -> None:
    known = configuration("all_reduce", (2, 6.0))
    fifth = known.runs[0].cluster.model_copy(update={"node_speed": [0.2, 0.1]})
    larger = replace(known.runs[0], cluster=fifth, result=known.runs[0].result)
    known = replace(known, runs=[larger])
    assert cluster_of(known, 3, Question([3], speed=2.0)).node_speed == [0.4, 0.4, 0.4]
    of_four = configuration("all_reduce", (2, 6.0), (4, 3.0), (3, 4.0))
    costs = [0.1, 0.2, 0.3]
    runs = [
        replace(run, cluster=run.cluster.model_copy(update={"overhead_s": cost}))
        for run, cost in zip(of_four.runs, costs, strict=True)
    ]
    assert cluster_of(replace(of_four, runs=runs), 8, Question([8])).overhead_s == 0.2  # of most nodes


def test_the_costs_of_a_measured_cluster_replace_those_of_the_runs() -> None:
    exchanges = {"barrier": [SoftwareCost(bytes=0, seconds=0.5)]}
    gloo = TransportCosts(message_s=1e-3, bytes_per_s=1e7, exchanges=exchanges)
    measured = MeasuredCluster(runtime="ray", nodes="pods", transports={"gloo": gloo})
    found = cluster_of(MEASURED, 3, Question([3], measured=measured))
    assert found.link == Link(latency_s=0.0, bytes_per_s=1e7)
    assert (found.overhead_s, found.software) == (5e-4, exchanges)  # half at each end
    asked = Link(latency_s=0.5, bytes_per_s=1e9)
    linked = cluster_of(MEASURED, 3, Question([3], asked, measured=measured)).link
    assert linked == Link(latency_s=0.5, bytes_per_s=1e7)
    with pytest.raises(NoPrediction, match="transport mpi was not measured on the cluster, but gloo"):
        cluster_of(configuration("all_reduce", (2, 6.0)), 3, Question([3], measured=measured))


def test_the_widest_interval_reaches_from_one_time_to_four() -> None:
    for deviation, allowed in ((0.42, True), (0.43, False)):  # e^(2 · 1.645 · 0.4214) is 4
        model = ErrorModel(np.zeros(3), np.diag([deviation, 1e-9, 1e-9]) ** 2, 1e-9)
        assert (model.interval([], 1, 0.0).width <= MOST_WIDTH) == allowed


def test_the_time_to_a_target_has_the_epochs_of_virtual_nodes() -> None:
    class ByEpochs(GivenTimes):
        def time(self, configuration: Configuration, epochs: int, cluster: Cluster) -> Time:
            return Time(float(epochs), 0.5)

    run = spec("all_reduce", 4, transport="gloo", target_accuracy=0.9)
    runs = [
        cast(
            "Any",
            SimpleNamespace(run=run, last_epoch=epochs, epochs=[SimpleNamespace(target_reached=True)]),
        )
        for epochs in (3, 4, 5, 9)
    ]
    measured = configuration("all_reduce", (2, 2.0), (4, 2.0))
    evidence = Evidence([measured], [], cast("Any", None))
    simulations = ByEpochs(*3 * [cast("Any", None)])
    found, without = forecasts(evidence, Question([4, 8], learned=runs), simulations, SURE)
    assert isinstance(found, Forecast)
    assert isinstance(without, Forecast)
    assert without.to_target is None
    assert found.to_target is not None
    assert found.to_target.seconds == pytest.approx(2 * found.seconds)
    assert found.to_target.low_s == pytest.approx(1.5 * found.low_s)
    assert found.to_target.high_s == pytest.approx(4.5 * found.high_s)


def test_the_share_of_a_step_that_no_sample_causes() -> None:
    assert share_of_step([(0.5, 0.5), (0.25, 0.25)]) == 0
    assert share_of_step([(0.5, 1.0), (0.25, 1.0)]) == 1
    assert share_of_step([(0.5, 0.7), (0.1, 0.46)]) == pytest.approx(0.4)
    assert share_of_step([]) == 0.5


def test_a_simulated_run_has_no_target_and_no_nodes_of_another_speed() -> None:
    measured = spec("all_reduce", 2, transport="gloo", target_accuracy=0.9, seed=3, node_speed={0: 0.5})
    found = simulated_run(measured, 64, epochs=1)
    assert (found.nodes, found.epochs, found.target_accuracy, found.node_speed) == (64, 1, None, None)
    asynchronous = simulated_run(spec("async_parameter_server", 3, transport="rpc"), 4, 1)
    assert asynchronous.link is not None
    with pytest.raises(NoPrediction, match="stages"):
        simulated_run(spec("pipeline", 2, transport="gloo"), 4096, 1)
