"""Mistakes in the sizes of models: blocks that a profile leaves out, and what a machine says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.layouts.formula import PASSES
from orchestrator.layouts.hardware import machine_of
from orchestrator.layouts.sizes import sizes_of
from trainer.spec.run_spec import RunSpec
from trainer.training.profile import profile_model
from trainer.training.task import Task


def test_a_deep_transformer_has_the_sizes_of_all_its_blocks() -> None:
    model = {"name": "gpt", "layers": 4, "width": 8, "heads": 2}
    run = RunSpec.model_validate({"dataset": "induction", "strategy": "serial", "model": model})
    found = sizes_of(run.model_copy(update={"batch_size": 64}), machine_of("a100"))
    profiled = profile_model(run.model_copy(update={"batch_size": 2}), warm_up=0, runs=0)
    assert [(each.name, each.parameters, each.saved_bytes) for each in found.blocks] == [
        (each.name, each.parameters, each.saved_bytes) for each in profiled
    ]
    parameters = Task(run, Path()).build_model(0).parameters()
    assert found.parameters == sum(each.numel() for each in parameters)
    machine = machine_of("a100")
    low, high = (PASSES * profiled[3].flops / machine.flops / share for share in machine.efficiency[::-1])
    assert found.blocks[3].seconds == pytest.approx((low, high))
