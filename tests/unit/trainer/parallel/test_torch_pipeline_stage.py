"""Mistakes in which schedule of torch a stage takes. Integration tests train with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn


@pytest.mark.parametrize(("micro_batches", "name"), [(2, "gpipe"), (3, "1f1b"), (4, "1f1b")])
def test_a_batch_of_fewer_micro_batches_than_stages_takes_gpipe(
    micro_batches: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.parallel import torch_pipeline_stage as module

    shapes: list[tuple[int, ...]] = []
    for kind, attribute in (("gpipe", "ScheduleGPipe"), ("1f1b", "Schedule1F1B")):
        made = lambda stage, count, kind=kind, **_: (kind, count)  # noqa: E731
        monkeypatch.setattr(module.pipelining, attribute, made)

    def stage_of(_: object, exchanges: Any, index: int, stages: int, x: Any, y: Any) -> None:
        shapes.extend((tuple(x.shape), tuple(y.shape)))

    monkeypatch.setattr(module, "InstrumentedStage", stage_of)
    stage: Any = SimpleNamespace(
        _input_shape=(3,),
        _output_shape=(2,),
        _input_type=torch.float32,
        _has_parameters=lambda stages: stages > 1,
        _is_1f1b=True,
        _comm=None,
        stage_index=1,
        num_stages=3,
        model=nn.Identity(),
        in_format=lambda x: x,
    )
    schedule, exchanges = module.TorchPipelineStage._build_schedule(stage, 12, micro_batches)
    assert schedule == (name, micro_batches)
    assert exchanges._is_1f1b == (name == "1f1b")
    assert shapes == [(12 // micro_batches, 3), (12 // micro_batches, 2)]
