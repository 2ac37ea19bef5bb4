"""Mistakes in the exchanges of a step of a replica that torch shards. Integration tests train it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.virtual_training import train_virtually
from tests.unit.training import SMALL
from trainer.core.trace import Kind
from trainer.spec.run_spec import RunSpec

GATHER, WAIT, REDUCE = Kind.START_ALL_GATHER, Kind.WAIT, Kind.REDUCE_SCATTER


@pytest.mark.parametrize(
    ("reshard", "backward"),
    [(True, [GATHER, WAIT, GATHER, REDUCE, WAIT, REDUCE]), (False, [REDUCE, REDUCE])],
)
def test_fsdp_gathers_a_block_while_another_computes_also_after_an_evaluation(
    reshard: bool, backward: list[Kind]
) -> None:
    """Of two blocks, of which the first takes long, in epochs of one step."""
    run: dict[str, Any] = {**SMALL, "strategy": {"name": "fsdp", "reshard": reshard}, "nodes": 2}
    own = {"model": {"name": "mlp", "hidden": [512]}, "epochs": 3, "batch_size": 60, "transport": "gloo"}
    for trace in train_virtually(RunSpec.model_validate({**run, **own, "save_weights": True})).traces:
        steps: list[list[tuple[Kind, float]]] = []  # each exchange, and the CPU seconds of work after it
        for kind, cpu_s in trace.records[["kind", "cpu_s"]].tolist():
            if kind == Kind.EPOCH:
                steps.append([])
            elif kind in (GATHER, WAIT, REDUCE):
                steps[-1].append((Kind(kind), 0.0))
            elif kind == Kind.WORK and steps[-1:] != [[]]:
                exchange, before_s = steps[-1].pop()
                steps[-1].append((exchange, before_s + cpu_s))
        assert len(steps) == 3
        for step in steps:
            assert [kind for kind, _ in step] == [GATHER, WAIT, GATHER, WAIT, *backward]
            _, gathered, begins_to_gather, *_ = (cpu_s for _, cpu_s in step)
            # If the block computed before the next gather begins, this would be a twentieth.
            assert begins_to_gather > gathered / 4
