"""A run whose computation is skipped has exchanges, times and bytes of one that trains, and no model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.virtual_training import train_virtually
from trainer.core.events import Event, format_event
from trainer.data.cache import DatasetCache
from trainer.spec.registries import COMPRESSIONS, OPTIMIZERS, STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.virtual import sample
from trainer.virtual.clock import StepCosts
from trainer.virtual.options import VirtualOptions

DATA = {"name": "synthetic", "classes": 4, "samples": 120, "test_samples": 40}
PRICE = 0.01
LEARNED = (
    "accuracy",
    "test_loss",
    "test_samples",
    "chance_accuracy",
    "local_accuracy",
    "weights_digest",
    "peak_memory_mb",
)
STRATEGY_NAMES = [
    name
    for name in STRATEGIES.entries
    if STRATEGIES.load(name).virtual
    and not STRATEGIES.load(name).partitions_model
    and not STRATEGIES.load(name).shards_state
]


@pytest.fixture(scope="module")
def datasets() -> DatasetCache:
    return DatasetCache()


def spec_of(strategy: Any, nodes: int, **fields: Any) -> RunSpec:
    chosen = {"dataset": DATA, "model": "lenet", "epochs": 2, "batch_size": 8}
    chosen["link"] = {"latency_ms": 1, "bandwidth_mbit": 100} if nodes > 1 else None
    chosen["transport"] = {"async_parameter_server": "rpc", "serial": "memory"}.get(str(strategy), "gloo")
    return RunSpec.model_validate({"strategy": strategy, "nodes": nodes, **chosen, **fields})


def cases() -> list[Any]:
    found = [
        pytest.param(strategy, nodes, {}, id=f"{strategy}-{nodes}")
        for strategy in STRATEGY_NAMES
        for nodes in ((1,) if strategy == "serial" else (2, 4, 16))
    ]
    found += [
        pytest.param({"name": "all_reduce", "compression": each}, 4, {}, id=f"compression-{each}")
        for each in COMPRESSIONS.entries
    ]
    found += [
        pytest.param("all_reduce", 2, {"optimizer": each, "lr": 0.01}, id=f"optimizer-{each}")
        for each in OPTIMIZERS.entries
    ]
    found += [
        pytest.param(
            {"name": "local_sgd", "optimizer_state": each}, 3, {"optimizer": "momentum"}, id=f"state-{each}"
        )
        for each in ("keep", "average", "reset")
    ]
    skewed = {"partitioner": "dirichlet"}  # so that some ranks have no samples left
    others: dict[str, tuple[Any, dict[str, Any]]] = {
        "drop": ({"name": "all_reduce", "uneven": "drop"}, {}),
        "pad": ({"name": "all_reduce", "uneven": "pad"}, {}),
        "skewed-all_reduce": ("all_reduce", skewed),
        "skewed-gossip": ("gossip", skewed),
        "slow-node": ("async_parameter_server", {"node_speed": {-1: 0.1}}),
        "batch_norm": ("local_sgd", {"model": {"name": "vgg_small", "norm": "batch"}, "epochs": 1}),
    }
    return found + [
        pytest.param(strategy, 7, fields, id=name) for name, (strategy, fields) in others.items()
    ]


@pytest.mark.parametrize(("strategy", "nodes", "fields"), cases())
def test_exchanges_are_those_of_a_training_with_the_same_costs(
    strategy: Any, nodes: int, fields: dict[str, Any], datasets: DatasetCache
) -> None:
    spec = spec_of(strategy, nodes, **fields)
    priced = VirtualOptions(seconds_per_sample=PRICE, seconds_per_step=PRICE / 3)
    trained = train_virtually(spec.model_copy(update={"save_weights": True}), priced, datasets)
    played = train_virtually(spec, priced.model_copy(update={"compute": "sampled"}), datasets)
    assert [rank.end_s for rank in played.times] == [rank.end_s for rank in trained.times]
    assert [rank.wait_s for rank in played.times] == [rank.wait_s for rank in trained.times]
    for own, other in zip(played.results, trained.results, strict=True):
        assert own.model_dump(exclude={*LEARNED}) == other.model_dump(exclude={*LEARNED})


def test_nothing_is_learned_certified_or_evaluated(datasets: DatasetCache) -> None:
    played = train_virtually(spec_of("one_shot", 2), VirtualOptions(compute="sampled"), datasets)
    for result in played.results:
        assert {getattr(result, name) for name in LEARNED} == {None}
        assert result.seconds["evaluate"] == 0
    assert {event.kind for events in played.events for event in events} == {"train_start", "train_end"}


def test_the_line_of_a_rank_says_that_nothing_was_trained(datasets: DatasetCache) -> None:
    played = train_virtually(spec_of("all_reduce", 2), VirtualOptions(compute="sampled"), datasets)
    line = format_event(Event(0.0, "run", 0, "host", "result", played.results[0].model_dump()))
    assert "not trained" in str(line)


def test_ranks_pay_for_gradients_by_their_batch_and_for_each_update(
    datasets: DatasetCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[float] = []

    def fake(work: Callable[[], object]) -> float:
        """A gradient of 8 samples, a step of the optimizer, then a gradient of 4 samples."""
        work()
        measured.append([0.5, 0.01, 0.25][len(measured)])
        return measured[-1]

    monkeypatch.setattr(sample, "_measured", fake)
    spec = spec_of("all_reduce", 2, epochs=1, node_speed={-1: 0.5})  # 60 samples each
    played = train_virtually(spec, VirtualOptions(compute="sampled"), datasets)
    assert len(measured) == 3  # each size once, for all ranks
    own = 7 * 0.5 + 0.25 + 8 * 0.01
    assert [sum(rank.work_s) for rank in played.times] == pytest.approx([own, own / 0.5])
    assert played.results[0].seconds["compute"] == pytest.approx(own)


def test_measured_costs_are_cpu_times_of_a_real_step(datasets: DatasetCache) -> None:
    played = train_virtually(spec_of("all_reduce", 2), VirtualOptions(compute="sampled"), datasets)
    work = sum(played.times[0].work_s) / played.results[0].steps
    assert 1e-5 < work < 1.0


def test_given_costs_are_those_of_a_step_and_of_its_samples() -> None:
    costs = StepCosts.given(VirtualOptions(seconds_per_sample=0.1, seconds_per_step=1.0))
    assert costs is not None
    assert costs.gradient_s(3) == pytest.approx(1.3)
    assert StepCosts.given(VirtualOptions()) is None


@pytest.mark.parametrize(
    "options", [{"seconds_per_step": 1.0}, {"seconds_per_sample": 0.0}, {"seconds_per_sample": -1.0}]
)
def test_costs_without_time_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="seconds_per_"):
        VirtualOptions.model_validate(options)
