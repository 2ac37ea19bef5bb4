"""Mistakes in layouts: batches, what just fits, the order of advice, and regret against real nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from orchestrator.layouts import trials
from orchestrator.layouts.advice import Advice, advise
from orchestrator.layouts.candidates import Impossible, candidates
from orchestrator.layouts.trials import Failed, Network, Trial
from orchestrator.prediction.measured_cluster import MeasuredCluster, TransportCosts
from orchestrator.replay.run import NoClusterTime
from tests.support.traces import builders, traces
from tests.unit.report_support import a_run
from trainer.core.trace import Kind
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Link

GPT = {"name": "gpt", "layers": 2, "width": 16, "heads": 4}
SHARED = {"dataset": {"name": "induction", "length": 15}, "model": GPT, "optimizer": "adamw"}
SERIAL = RunSpec.model_validate({**SHARED, "strategy": "serial", "batch_size": 16, "batch_per": "run"})


def run(strategy: str, **fields: object) -> RunSpec:
    shared = {**SERIAL.model_dump(mode="json", exclude_defaults=True), "transport": "gloo", "nodes": 2}
    return RunSpec.model_validate({**shared, "strategy": strategy, **fields})


def name(spec: RunSpec) -> str:
    return f"{spec.name_of('strategy')} {spec.recompute}"


def trial(spec: RunSpec, step: float, held: int) -> Trial:
    return Trial(spec, step, communication=0.1, step_bytes=1.0, held_bytes=held)


def test_layouts_train_the_same_with_the_same_global_batch() -> None:
    found = [*candidates(SERIAL, 4, "gloo")]
    runs = [each for each in found if isinstance(each, RunSpec)]
    assert {each.batch_per_replica * each.strategy.replicas(4) for each in runs} == {16}
    others = ("nodes", "transport", "strategy")
    shared = {key: value for key, value in SERIAL.model_dump().items() if key not in others}
    assert all(shared.items() <= each.model_dump().items() for each in runs)
    assert {(each.nodes, each.transport) for each in runs} == {(4, "gloo")}
    assert {each.strategy.claimed_equal for each in runs} <= {None, "serial", "all_reduce"}
    assert len({each.key for each in runs}) == len(runs)
    names = {each.name_of("strategy") for each in runs}
    assert names >= {"all_reduce", "zero2", "tensor_parallel", "context_parallel", "pipeline", "hybrid"}
    reasons = {each.strategy: each.reason for each in found if isinstance(each, Impossible)}
    assert "experts" in reasons["expert_parallel"]


def advice_of(memory: float | None) -> Advice:
    """Three layouts, one of which fits with less memory for activations, and one that fails."""
    known = {
        "all_reduce none": trial(run("all_reduce"), 1.0, 300),
        "zero2 none": trial(run("zero2"), 2.0, 200),
        "pipeline none": trial(run("pipeline"), 3.0, 100),
        "all_reduce full": trial(run("all_reduce", recompute="full"), 1.5, 150),
    }
    found = [run("all_reduce"), run("zero2"), run("pipeline"), run("fsdp"), Impossible("hybrid", "no mesh")]
    return advise(
        trial(SERIAL, 2.0, 400), found, lambda spec: known.get(name(spec), Failed(spec, "refused")), memory
    )


@pytest.mark.parametrize(
    ("memory", "fitting", "too_large"),
    [
        (None, ["all_reduce none", "zero2 none", "pipeline none"], []),
        (150, ["all_reduce full", "pipeline none"], ["zero2 none"]),  # exactly what the first one needs
        (99, [], ["pipeline none", "all_reduce full", "zero2 none"]),
    ],
)
def test_the_fastest_layout_that_fits_comes_first_if_need_be_without_stored_activations(
    memory: float | None, fitting: Sequence[str], too_large: Sequence[str]
) -> None:
    advice = advice_of(memory)
    assert [name(each.run) for each in advice.fitting] == fitting
    assert [name(each.run) for each in advice.too_large] == too_large
    assert [each.run for each in advice.failed] == [run("fsdp")]
    assert advice.impossible == [Impossible("hybrid", "no mesh")]


def test_ranks_of_a_node_share_its_memory() -> None:
    two_ranks = run("all_reduce", processes_per_node=2)
    for memory, fitting in ((199, 0), (200, 1), (None, 1)):
        advice = advise(trial(SERIAL, 1, 1), [two_ranks], lambda spec: trial(spec, 1.0, 100), memory)
        assert len(advice.fitting) == fitting


def test_regret_compares_the_advised_layout_with_the_fastest_real_one() -> None:
    advice = advice_of(None)
    for real_s, regret in (([1, 2], 0.0), ([3, 2], 0.5), ([1], None), ([None, 2, 3], None)):
        pairs = zip(advice.fitting, real_s, strict=False)
        real = [trial(each.run, s, 1) if s else Failed(each.run, "killed") for each, s in pairs]
        assert advice.with_real(Mock(side_effect=real), len(real_s)).regret == regret


def test_a_trial_is_replayed_on_a_link_that_is_no_faster_than_the_software(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two ranks work for 1, 8 and 2 s in three epochs, each of which ends with an all-reduce."""
    spec, ranks, places = run("all_reduce"), builders(2), (Path("files"), Path("data"))
    for rank in ranks:
        for epoch, work_s in enumerate((1.0, 8.0, 2.0), start=1):
            rank.add(Kind.EPOCH, peer=epoch).work(work_s).add(Kind.ALL_REDUCE, 10**9).add(Kind.STEP)
    info = replace(a_run("serial").runtime_info, simulates_time=True)
    asked = Link(latency_s=0.25, bytes_per_s=1e12)

    def tried(found: object, refusal: str | None = None, status: str = "ok", *transports: str) -> object:
        result = SimpleNamespace(status=status, cause="gone", bytes_sent_per_rank=36.0, held_bytes=7)
        result.runtime_info, clusters = info, Mock(**{"runtime.unsupported_reason.return_value": refusal})
        costs = dict.fromkeys(transports, TransportCosts(message_s=1e-4, bytes_per_s=1e9))
        measured = MeasuredCluster(runtime="ray", nodes="n", transports=costs) if transports else None
        monkeypatch.setattr(trials, "execute", execute := Mock(return_value=(result, Path("out"))))
        monkeypatch.setattr(trials, "read_traces", read := Mock(return_value=found))
        made = trials.Trials(clusters, "virtual", *places, Network(asked, measured)).of(spec)
        if isinstance(made, Trial):
            execute.assert_called_once_with(spec, clusters, "virtual", *places)
            read.assert_called_once_with(Path("out"), spec, True)
        return [*vars(made).values()][1:] if isinstance(made, Trial) else made

    exchange_s = 2 * 2 * (0.25 + 0.25)  # of a ring, in two segments
    expected = [(2.0 + exchange_s) / 4, 3 * exchange_s / (11 + 3 * exchange_s), 3.0, 7]
    assert tried(traces(ranks)) == pytest.approx(expected, rel=1e-3)
    assert tried(traces(ranks), None, "ok", "gloo") == pytest.approx(expected, rel=1e-3)
    unmeasured = Failed(spec, "transport gloo was not measured on the cluster, but mpi")
    assert tried(traces(ranks), None, "ok", "mpi") == unmeasured
    assert tried(NoClusterTime("no traces")) == Failed(spec, "no traces")
    assert tried(traces(ranks), None, "failed") == Failed(spec, "gone")
    assert tried(traces(ranks), "refused") == Failed(spec, "refused")
