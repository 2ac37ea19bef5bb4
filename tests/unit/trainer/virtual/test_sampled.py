"""Mistakes in the costs of work that is skipped: what is measured, what ranks pay, which costs are refused.

`test_virtual_training` compares their exchanges with those of trainings.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.virtual_training import train_virtually
from tests.unit.conftest import FakeTime
from tests.unit.training import SMALL
from trainer.core.clock import Clock
from trainer.core.trace import Kind
from trainer.spec.run_spec import RunSpec
from trainer.training.replica import Replica
from trainer.training.task import Task
from trainer.virtual import sample
from trainer.virtual.clock import StepCosts, VirtualClock
from trainer.virtual.options import VirtualOptions
from trainer.virtual.sample import Sample
from trainer.virtual.sampled import SampledReplica

SAMPLED = VirtualOptions(compute="sampled")


def spec_of(**fields: Any) -> RunSpec:
    run = {**SMALL, "strategy": "all_reduce", "nodes": 2, "epochs": 1, "batch_size": 8, **fields}
    return RunSpec.model_validate({"transport": "gloo", **run})


def test_ranks_pay_for_their_batches_and_for_each_update(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = iter([0.5, 0.01, 0.25])  # a gradient of 8 samples, a step, a gradient of 4 samples; no other

    def measured(work: Callable[[], object]) -> float:
        work()
        return next(costs)

    monkeypatch.setattr(sample, "_measured", measured)
    played = train_virtually(spec_of(node_speed={-1: 0.5}), SAMPLED)  # 60 samples each
    own = 7 * 0.5 + 0.25 + 8 * 0.01
    assert [sum(rank.work_s) for rank in played.times] == pytest.approx([own, own / 0.5])
    assert played.results[0].seconds["compute"] == pytest.approx(own)


def test_the_cost_of_work_is_the_median_of_its_cpu_times_without_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, took = FakeTime(), iter([0.0, 4.0, 1.0, 3.0, 2.0, 50.0])
    monkeypatch.setattr(time, "thread_time", now)
    assert sample._measured(lambda: now.pass_(next(took))) == 3.0


def test_a_rank_pays_for_the_passes_up_to_each_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first bucket starts after the share of its last gradient; another one after the passes."""
    wide = {"model": {"name": "mlp", "hidden": [600, 600]}, "dataset": {**SMALL["dataset"], "samples": 32}}
    task = Task(spec_of(strategy="ddp", **wide), Path())
    measured = sample.shares(task, Replica(task.build_model(0), task, Clock()))
    assert [*measured.values()] == sorted(measured.values())
    assert 0 <= min(measured.values()) < max(measured.values()) < 1
    last = max(at for at, moment in enumerate(measured) if moment.event == "gradient")  # type: ignore[attr-defined]
    given = {moment: 0.75 if at == last else 0.5 for at, moment in enumerate(measured)}
    monkeypatch.setattr(sample, "shares", lambda *_: given)
    options = SAMPLED.model_copy(update={"seconds_per_sample": 1 / 8})
    (trace, _) = train_virtually(spec_of(strategy="ddp", trace="full", **wide), options).traces
    kinds = trace.records["kind"].tolist()
    second = kinds.index(Kind.STEP) + 1
    step = [(kind, cpu_s) for kind, cpu_s in zip(kinds, trace.records["cpu_s"].tolist(), strict=True)][
        second:
    ]
    worked = [cpu_s for kind, cpu_s in step if kind == Kind.WORK]
    assert [kind for kind, _ in step][:4] == [
        Kind.WORK,
        Kind.START_ALL_REDUCE,
        Kind.WORK,
        Kind.START_ALL_REDUCE,
    ]
    assert worked == pytest.approx([0.5, 0.25, 0.25])


def test_a_replica_without_values_holds_what_it_has_computed() -> None:
    task, costs = Task(spec_of(optimizer="momentum"), Path()), StepCosts(float)
    measured = Sample(task, costs)
    assert measured.gradient(130) is measured.gradient(130)  # once, also of more samples than there are
    replica = SampledReplica(measured, task, VirtualClock(1.0, costs))
    held = replica.state_bytes["weights"]
    assert replica.state_bytes == {"weights": held, "gradient": 0, "optimizer": 0}
    replica.set_gradient(replica.gradient())
    replica.step()
    assert replica.state_bytes == dict.fromkeys(("weights", "gradient", "optimizer"), held)
    assert len(replica.optimizer_state()) == len(replica.gradient()) == held / 4
    replica.reset_optimizer()
    assert (replica.state_bytes["optimizer"], len(replica.optimizer_state())) == (0, 0)


def test_costs_are_those_of_a_step_and_of_its_samples_and_cannot_be_0() -> None:
    costs = StepCosts.given(
        VirtualOptions(seconds_per_sample=0.1, seconds_per_step=1.0, seconds_per_update=0.5)
    )
    assert costs is not None
    assert (costs.gradient_s(3), costs.update_s) == (pytest.approx(1.3), 0.5)
    assert StepCosts.given(VirtualOptions()) is None
    VirtualOptions(seconds_per_sample=0.0, seconds_per_step=1.0)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"seconds_per_step": 1.0}, "seconds_per_step is 1 without seconds_per_sample"),
        ({"seconds_per_update": 1.0}, "seconds_per_update is 1 without seconds_per_sample"),
        ({"seconds_per_sample": 0.0}, "seconds_per_sample is 0"),
        ({"seconds_per_sample": -1.0}, "seconds_per_sample"),
        ({"workers": 2, "compute": "sampled"}, "workers is 2, but compute is sampled"),
        ({"workers": 0}, "workers"),
    ]
    for options, names in wrong:
        with pytest.raises(ValidationError, match=names):
            VirtualOptions.model_validate(options)
