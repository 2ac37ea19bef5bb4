"""Mistakes in a forecast: whose costs, speeds and links count, prices, bounds, simulations, and targets."""

from __future__ import annotations

from math import log
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock, call

import numpy as np
import pytest

from orchestrator.prediction import simulated
from orchestrator.prediction.error_model import Z_90, ErrorModel
from orchestrator.prediction.errors import NoPrediction
from orchestrator.prediction.evidence import Configuration, Evidence, MeasuredRun, share_of_step
from orchestrator.prediction.forecast import QUOTA_DRIFT, Forecast, Question, Refused, cluster_of, forecasts
from orchestrator.prediction.measured_cluster import MeasuredCluster, TransportCosts
from orchestrator.prediction.simulated import Played, Simulations, Time, simulated_run
from orchestrator.prediction.target import Learned, learned_by
from tests.support.traces import builders, traces
from tests.unit.report_support import a_run
from trainer.core.trace import Kind
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Choice, Cluster, Link, SoftwareCost
from trainer.virtual.options import VirtualOptions

SURE = ErrorModel(np.zeros(3), np.diag([0.5, 1e-3, 1e-3]) ** 2, 1e-3)
OWN = Link(latency_s=0.0, bytes_per_s=1e9)
UNUSED = cast("Any", None)
SAMPLED = VirtualOptions(
    compute="sampled", seconds_per_step=0.001, seconds_per_sample=0.0001, seconds_per_update=0.002
)


def spec(strategy: str, nodes: int, **fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": strategy, "nodes": nodes, "epochs": 2, **fields})


def configuration(strategy: str, *seconds: tuple[int, float], own: Any = (), **on: Any) -> Configuration:
    """seconds: nodes and seconds of measured runs. own: fields of their specs. on: of their clusters."""
    fields = {"transport": "memory" if strategy == "serial" else "gloo"} | dict(own)
    runs = []
    for nodes, took_s in seconds:
        run = spec(strategy, nodes, **fields)
        cluster = Cluster(node_speed=[1.0] * nodes, link=OWN, overhead_s=nodes / 10).model_copy(update=on)
        result = cast("Any", SimpleNamespace(run=run, last_epoch=2))
        runs.append(
            MeasuredRun(run.key, result, took_s, "wall", cluster, OWN.bytes_per_s, [0.01], 0.0, 0.0, [])
        )
    return Configuration(runs, per_step_s=0.001, per_sample_s=0.0001, first_s=0.5, server_s=0.002)


class GivenTimes(Simulations):
    """Five seconds of work per epoch over the nodes and their speed, and a latency for each node."""

    def time(self, configuration: Configuration, epochs: int, cluster: Cluster) -> Time:
        nodes = len(cluster.node_speed)
        if nodes > 100:
            raise NoPrediction("too many")
        work_s, rest_s = 5 * epochs / nodes / cluster.node_speed[0], nodes * cluster.link.latency_s
        return Time(work_s + rest_s, rest_s / (work_s + rest_s))

    def played(self, configuration: Configuration, nodes: int, epochs: int) -> Any:
        result = a_run("all_reduce", nodes=nodes, bytes_sent=12.0)
        for rank, activations in enumerate((None, 7)):
            changes = {"state_bytes": {"weights": 5, "gradient": 5}, "activation_bytes": activations}
            result.ranks[rank] = result.ranks[rank].model_copy(update=changes)
        return SimpleNamespace(result=result)


MEASURED = configuration("all_reduce", (2, 6.0), (4, 3.0))  # 1.2 times the simulated ones
SERIAL = configuration("serial", (1, 12.0))


def found(
    question: Question, model: ErrorModel = SURE, serial: Configuration = SERIAL
) -> list[Forecast | Refused]:
    simulations = GivenTimes(UNUSED, UNUSED, UNUSED)
    return [*forecasts(Evidence([MEASURED, serial], [], UNUSED), question, simulations, model)]


def forecast(question: Question, serial: Configuration = SERIAL) -> Forecast:
    (only,) = found(question, serial=serial)
    assert isinstance(only, Forecast)
    return only


def test_a_forecast_is_the_simulated_time_with_the_measured_ratio() -> None:
    only = forecast(Question([8]))
    assert only.seconds == pytest.approx(1.2 * 10 / 8, rel=0.01)
    assert only.low_s < only.seconds < only.high_s
    assert (only.speedup, only.efficiency) == (pytest.approx(8, rel=0.01), pytest.approx(1, rel=0.01))
    assert (only.state_bytes, only.bytes_sent, only.measured_nodes) == (17, 12.0, 4)
    assert (only.cost, only.low_cost, only.high_cost, only.to_target) == (None,) * 4
    components = {"dataset": "synthetic", "model": "mlp", "loss": "cross_entropy", "optimizer": "adam"}
    for other in {"epochs": 3, "batch_size": 7, "threads": 2, **components}.items():
        alone = forecast(Question([8]), configuration("serial", (1, 12.0), own=[other]))
        assert (alone.seconds, alone.speedup, alone.efficiency) == (only.seconds, None, None), other


def test_link_speed_and_price_are_those_of_the_question() -> None:
    slow = Link(latency_s=0.1, bytes_per_s=2e9)
    only = forecast(Question([8], slow, speed=2.0, price_per_h=3.6))
    assert only.seconds == pytest.approx(1.2 * (10 / 8 / 2 + 0.8), rel=0.01)
    assert only.speedup == pytest.approx(12.0 / 2 / only.seconds)
    costs, times = (only.low_cost, only.cost, only.high_cost), (only.low_s, only.seconds, only.high_s)
    assert costs == pytest.approx([8 * each / 1000 for each in times])


def test_a_wide_interval_and_an_impossible_simulation_are_refused_alone() -> None:
    vague = ErrorModel(np.zeros(3), np.diag([0.5, 0.5, 0.5]) ** 2, 0.1)
    near, far, impossible = found(Question([4, 64, 128]), vague)
    assert isinstance(near, Forecast)
    assert isinstance(far, Refused)
    assert "more than 4 times as far; runs on more than 4 nodes" in far.reason
    assert impossible == Refused(MEASURED, 128, "too many")


def test_quotas_widen_an_interval_by_the_drift_of_the_speed() -> None:
    quota = configuration("all_reduce", (2, 60.0), (4, 30.0), node_speed=[0.1] * 4)
    evidence = Evidence([quota], [], UNUSED)
    (only,) = forecasts(evidence, Question([8]), GivenTimes(UNUSED, UNUSED, UNUSED), SURE)
    whole = forecast(Question([8]))
    assert isinstance(only, Forecast)
    widths = [log(each.high_s / each.low_s) / 2 / Z_90 for each in (only, whole)]
    assert widths[0] ** 2 - widths[1] ** 2 == pytest.approx(QUOTA_DRIFT**2, rel=0.01)


def test_a_link_that_is_asked_for_is_as_fast_as_the_software_and_not_as_the_measured_link() -> None:
    slow = Link(latency_s=0.001, bytes_per_s=1e6)
    shaped = configuration("all_reduce", (2, 6.0), link=slow)
    for asked, bytes_per_s in ((slow, 1e6), (None, 1e6), (1e8, 1e8), (1e12, OWN.bytes_per_s)):
        link = Link(latency_s=0.001, bytes_per_s=asked) if isinstance(asked, float) else asked
        expected = Link(latency_s=0.001, bytes_per_s=bytes_per_s)
        assert cluster_of(shaped, 4, Question([4], link)).link == expected


def test_nodes_have_the_quota_of_the_measured_ones_and_the_costs_of_the_run_on_most() -> None:
    within, costs = Link(latency_s=0.25, bytes_per_s=7.0), [SoftwareCost(bytes=1, seconds=0.5)]
    kept: dict[str, Any] = {"processes_per_node": 2, "intra_node": within, "software": {"barrier": costs}}
    kept["algorithms"] = {"all_reduce": [Choice(algorithm="ring")]}
    known = configuration("all_reduce", (2, 6.0), (4, 3.0), (3, 4.0), node_speed=[0.2, 0.1], **kept)
    cluster = cluster_of(known, 3, Question([3], speed=2.0))
    assert cluster == Cluster(node_speed=[0.4] * 3, link=OWN, overhead_s=0.4, **kept)


def test_the_costs_of_a_measured_cluster_replace_those_of_the_runs() -> None:
    exchanges = {"barrier": [SoftwareCost(bytes=0, seconds=0.5)]}
    costs = TransportCosts(message_s=1e-3, bytes_per_s=1e7, exchanges=exchanges)
    gloo = MeasuredCluster(runtime="ray", nodes="pods", transports={"gloo": costs})
    cluster = cluster_of(MEASURED, 3, Question([3], measured=gloo))
    assert cluster.link == Link(latency_s=0.0, bytes_per_s=1e7)
    assert (cluster.overhead_s, cluster.software) == (5e-4, exchanges)  # half at each end
    asked = Link(latency_s=0.5, bytes_per_s=1e9)
    linked = cluster_of(MEASURED, 3, Question([3], asked, measured=gloo)).link
    assert linked == Link(latency_s=0.5, bytes_per_s=1e7)
    with pytest.raises(NoPrediction, match="transport memory was not measured on the cluster, but gloo"):
        cluster_of(SERIAL, 3, Question([3], measured=gloo))


def test_the_share_of_a_step_that_no_sample_causes() -> None:
    assert share_of_step([(0.5, 0.5), (0.25, 0.25)]) == 0
    assert share_of_step([(0.5, 1.0), (0.25, 1.0)]) == 1
    assert share_of_step([(0.5, 0.7), (0.1, 0.46)]) == pytest.approx(0.4)
    assert share_of_step([]) == 0.5


def virtual(nodes: int, target: float, last_epoch: int, reached: bool = True, **fields: Any) -> Any:
    """A run of the measured configuration on virtual nodes."""
    own = {"transport": "gloo", "epochs": 50, "target_accuracy": target, "patience": 2, **fields}
    epochs = [SimpleNamespace(target_reached=reached)]
    return SimpleNamespace(run=spec("all_reduce", nodes, **own), last_epoch=last_epoch, epochs=epochs)


def test_epochs_to_the_highest_target_come_from_runs_on_as_many_nodes_with_the_same_configuration() -> None:
    results = [virtual(8, 0.9, 7, seed=1, transport="mpi"), virtual(8, 0.9, 50, reached=False, seed=3)]
    results += [virtual(8, 0.9, 5, link={"latency_ms": 5.0}), virtual(8, 0.8, 2), virtual(16, 0.95, 9)]
    results += [virtual(8, 0.95, 3, lr=0.5)]
    assert learned_by(results, MEASURED.run, 8) == Learned(0.9, [5, 7], runs=3)
    assert learned_by(results, MEASURED.run, 16) == Learned(0.95, [9], runs=1)
    assert learned_by(results, MEASURED.run, 4) is None


def test_a_schedule_lasts_as_long_as_its_run_so_others_have_other_rates() -> None:
    results = [virtual(8, 0.9, 5, epochs=epochs, lr_schedule="cosine") for epochs in (3, 50)]
    for epochs in (3, 50, 4):
        own = spec("all_reduce", 8, epochs=epochs, lr_schedule="cosine")
        learned = learned_by(results, own, 8)
        assert (learned and learned.runs) == (1 if epochs != 4 else None)


def test_the_time_to_a_target_has_the_epochs_of_virtual_nodes() -> None:
    runs = [virtual(4, 0.9, epochs) for epochs in (3, 4, 5, 9)]
    only, without = found(Question([4, 8], learned=runs))
    assert without.to_target is None  # a measured run has two epochs
    assert only.to_target.seconds == pytest.approx(4 / 2 * only.seconds)
    assert only.to_target.low_s == pytest.approx(3 / 2 * only.low_s)
    assert only.to_target.high_s == pytest.approx(9 / 2 * only.high_s)


def test_the_first_step_takes_longer_than_sampled_work_has(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [rank.add(Kind.EPOCH, peer=1).work(3.0).add(Kind.STEP) for rank in builders(2)]
    found = traces([rank.add(Kind.BARRIER) for rank in ranks])
    played = Played(a_run("one_shot", nodes=2, transport="gloo"), found, first_s=0.5)
    monkeypatch.setattr(Simulations, "_play", lambda *_: played)
    link = Link(latency_s=0.25, bytes_per_s=1e9)
    cluster = Cluster(node_speed=[0.5, 1.0], link=link, overhead_s=0.0)
    time = Simulations(UNUSED, UNUSED, UNUSED).time(MEASURED, 1, cluster)
    assert time.seconds == pytest.approx((3.0 + 0.5) / 0.5 + 0.25)
    assert time.communication == pytest.approx(1 - (4.5 + 1.0) / time.seconds)


def test_each_number_of_nodes_and_epochs_is_simulated_once_and_sampled_if_possible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full, tried = VirtualOptions(), list[VirtualOptions]()
    refused: dict[int, list[VirtualOptions]] = {2: [], 3: [SAMPLED], 4: [SAMPLED, full]}  # by nodes
    clusters = Mock(**{"runtime.configure": tried.append})
    clusters.runtime.unsupported_reason = lambda run: "no" if tried[-1] in refused[run.nodes] else None
    results = [SimpleNamespace(status=status, cause="gone") for status in (*4 * ["ok"], "failed")]
    execute = Mock(side_effect=[(each, Path("out")) for each in results])
    monkeypatch.setattr(simulated, "execute", execute)
    monkeypatch.setattr(simulated, "read_traces", read := Mock(side_effect=[*"abcd"]))
    simulations, other = Simulations(clusters, Path("files"), Path("data")), configuration("ddp", (2, 6.0))
    asked = [(MEASURED, 2, 1), (MEASURED, 2, 3), (MEASURED, 3, 1), (other, 2, 1)]
    for _ in range(2):
        played = [simulations.played(*each) for each in asked]
        assert [each.traces for each in played] == [*"abcd"]
        assert [each.first_s for each in played] == [0.5, 0.5, 0.0, 0.5]
    runs = [simulated_run(each.run, *numbers) for each, *numbers in asked]
    made = [(run, clusters, "virtual", Path(f"files/{at}"), Path("data")) for at, run in enumerate(runs)]
    assert [each.args for each in execute.call_args_list] == made
    assert read.call_args_list == [call(Path("out"), run, simulated=True) for run in runs]
    assert tried == [SAMPLED, SAMPLED, SAMPLED, full, SAMPLED]
    for nodes, why in 2 * ((4, "no"), (2, "its simulation on 2 nodes failed: gone")):
        with pytest.raises(NoPrediction, match=f"^{why}$"):
            simulations.played(MEASURED, nodes, 9)
    assert execute.call_count == 5


def test_a_simulated_run_has_no_target_and_no_nodes_of_another_speed() -> None:
    own = {"transport": "gloo", "lr": 0.7, "batch_size": 9}
    others = {"target_accuracy": 0.9, "patience": 2, "save_weights": True, "checkpoint_epochs": 1}
    others |= {"node_speed": {0: 0.5}, "link": {"latency_ms": 9}, "trace": "none", "seed": 3, "threads": 2}
    played = {"epochs": 1, "timeout_s": 3600.0, "threads": 1, "seed": 0, "trace": "steps"}
    schedule = {"name": "cosine", "warm_up_epochs": 1}  # which leaves none of one epoch
    run = simulated_run(spec("all_reduce", 2, **own, **others, lr_schedule=schedule), 64, epochs=1)
    assert run == spec("all_reduce", 64, **own, **played)
    run = simulated_run(spec("async_parameter_server", 3, transport="rpc"), 4, 1)
    assert run == spec("async_parameter_server", 4, transport="rpc", link={"latency_ms": 0.05}, **played)
    with pytest.raises(NoPrediction, match="stages"):
        simulated_run(spec("pipeline", 2, transport="gloo"), 4096, 1)
