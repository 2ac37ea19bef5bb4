"""Mistakes in which schedule of torch a stage takes. Integration tests train with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn


def test_a_batch_of_fewer_micro_batches_than_stages_takes_gpipe(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.parallel import torch_pipeline_stage as module

    monkeypatch.setattr(module.pipelining, "ScheduleGPipe", lambda stage, n, **_: ["gpipe", n, stage])
    monkeypatch.setattr(module.pipelining, "Schedule1F1B", lambda stage, n, **_: ["1f1b", n, stage])
    monkeypatch.setattr(module, "InstrumentedStage", lambda *given: [each.shape for each in given[4:]])
    stage: Any = SimpleNamespace(
        stage_index=1, num_stages=3, model=nn.Identity(), in_format=None, _comm=None, _is_1f1b=True
    )
    stage._input_shape, stage._output_shape, stage._input_type = (3,), (2,), torch.float32
    stage._has_parameters = lambda stages: stages > 1
    for count, name, size in ((2, "gpipe", 6), (3, "1f1b", 4)):
        schedule, exchanges = module.TorchPipelineStage._build_schedule(stage, 12, count)
        assert schedule == [name, count, [(size, 3), (size, 2)]]
        assert exchanges._is_1f1b == (name == "1f1b")
