"""Mistakes in layouts: batches, what just fits, the order of advice, and regret against real nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from orchestrator.layouts import trials
from orchestrator.layouts.advice import Plan, plan
from orchestrator.layouts.candidates import Impossible, candidates
from orchestrator.layouts.formula import Block, Sizes, estimate
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


def block(name: str, parameters: int, seconds: float, passed: float = 0.0, saved: float = 0.0) -> Block:
    return Block(name, parameters, parameters, passed, saved, (seconds, 2 * seconds))


# Of GPT: an embedding, two blocks and a head.
SIZES = Sizes(
    [
        block("embedding", 100, 0.0, 8, 10),
        block("block1", 400, 1.0, 8, 100),
        block("block2", 400, 1.0, 8, 100),
        block("head", 100, 0.0, 4, 10),
    ],
    SERIAL.model.tensor_parallel_pairs,
    optimizer=2,
)
LINK = Link(latency_s=0.5, bytes_per_s=100)


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


def plan_of(memory: float | None) -> Plan:
    found = [run("all_reduce"), run("zero2"), run("pipeline"), Impossible("hybrid", "no mesh")]
    return plan(SERIAL, found, SIZES, LINK, memory)


def held(spec: RunSpec) -> float:
    return estimate(spec, SIZES, LINK).held_bytes


@pytest.mark.parametrize(
    ("memory", "fitting", "too_large"),
    [
        (None, ["pipeline none", "zero2 none", "all_reduce none"], []),
        (held(run("zero2")), ["pipeline none", "zero2 none"], ["all_reduce full"]),  # exactly what it needs
        (1, [], ["pipeline full", "zero2 full", "all_reduce full"]),
    ],
)
def test_the_fastest_layout_that_fits_comes_first_if_need_be_without_stored_activations(
    memory: float | None, fitting: Sequence[str], too_large: Sequence[str]
) -> None:
    found = plan_of(memory)
    assert sorted(name(each.run) for each in found.fitting) == sorted(fitting)
    steps = [each.step_s[0] for each in found.fitting]
    assert steps == sorted(steps)
    assert [name(each.run) for each in found.too_large] == too_large
    assert found.impossible == [Impossible("hybrid", "no mesh")]


def test_ranks_of_a_node_share_its_memory() -> None:
    two_ranks = run("all_reduce", processes_per_node=2)
    need = held(two_ranks)
    for memory, fitting in ((2 * need - 1, 0), (2 * need, 1), (None, 1)):
        found = plan(SERIAL, [two_ranks], SIZES, LINK, memory)
        assert [each.run.recompute for each in found.fitting].count("none") == fitting


def test_executed_layouts_come_first_and_regret_compares_with_the_fastest_real_one() -> None:
    found = plan_of(None)
    by_name = {each.run.name_of("strategy"): each.run for each in found.fitting}
    times = {"pipeline": 3.0, "zero2": 1.0, "serial": 6.0}

    def tried(spec: RunSpec) -> Trial | Failed:
        step = times.get(spec.name_of("strategy"))
        return Trial(spec, step, 0.1, 1.0, 5) if step else Failed(spec, "refused")

    def too_much(spec: RunSpec) -> Trial:
        return Trial(spec, 1.0, 0.1, 1.0, 2 * 10**9)

    executed = found.executed(tried, lambda option, done: done < 2)
    assert [each.run.name_of("strategy") for each in executed.fitting] == [
        "zero2",
        "pipeline",
        "all_reduce",
    ]
    assert [each.held_bytes for each in executed.fitting[:2]] == [5, 5]
    assert [executed.speedup(each) for each in executed.fitting[:2]] == [6.0, 2.0]  # of executed times
    formula = executed.serial.formula.middle_s / executed.fitting[2].formula.middle_s
    assert executed.speedup(executed.fitting[2]) == formula
    low, high = executed.fitting[0].step_s[1:]
    assert low < 1.0 < high
    held_by_all = 2 * found.fitting[0].formula.held_bytes
    for room, kind in ((held_by_all, Trial), (held_by_all - 1, Failed)):
        first = found.executed(too_much, lambda option, done: done < 1, room).fitting
        assert [type(each.trial) for each in first if each.trial] == [kind]
    less = plan_of(1e9).executed(too_much, lambda option, done: done < 1)
    assert ([each.held_bytes for each in less.too_large], len(less.fitting)) == ([2e9], 2)
    for real_s, regret in (([1, 2], 0.0), ([3, 2], 0.5), ([1], None), ([None, 2], None)):
        real = [Trial(by_name["zero2"], s, 0, 1, 1) if s else Failed(SERIAL, "killed") for s in real_s]
        assert executed.for_real(Mock(side_effect=real), len(real_s)).regret == regret


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
    expected = [2.0 + exchange_s, 3 * exchange_s / (11 + 3 * exchange_s), 12.0, 7]
    assert tried(traces(ranks)) == pytest.approx(expected, rel=1e-3)
    assert tried(traces(ranks), None, "ok", "gloo") == pytest.approx(expected, rel=1e-3)
    unmeasured = Failed(spec, "transport gloo was not measured on the cluster, but mpi")
    assert tried(traces(ranks), None, "ok", "mpi") == unmeasured
    assert tried(NoClusterTime("no traces")) == Failed(spec, "no traces")
    assert tried(traces(ranks), None, "failed") == Failed(spec, "gone")
    assert tried(traces(ranks), "refused") == Failed(spec, "refused")
