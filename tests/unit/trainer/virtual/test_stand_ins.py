"""Mistakes of what runs where nothing is computed: other exchanges than those of the real strategy.

`test_virtual_training` compares times and bytes with those of a training that has the same costs.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.virtual_training import VirtualTraining, train_virtually
from trainer.core.trace import Kind
from trainer.spec.run_spec import RunSpec
from trainer.virtual.options import MEASURED, VirtualOptions

IMAGES = {"name": "synthetic", "classes": 4, "samples": 50, "test_samples": 20}
TOKENS = {"name": "induction", "length": 23, "tokens": 30, "samples": 50, "test_samples": 10}
MODELS: dict[str, dict[str, Any]] = {
    "lenet": {"model": "lenet", "dataset": IMAGES},
    # Two buckets: the first one ends within 1 MiB, and the second one begins with less than it has left.
    "wide mlp": {"model": {"name": "mlp", "hidden": [700, 900, 100]}, "dataset": IMAGES},
    "gpt": {"model": {"name": "gpt", "layers": 2, "width": 128, "heads": 4}, "dataset": TOKENS},
}
STAGE_2 = {"name": "fsdp", "reshard": False}
SAMPLED = VirtualOptions(compute="sampled")


def exchanges(training: VirtualTraining) -> list[list[tuple[str, int, int]]]:
    """The records of each rank but its work: kind, bytes and peer, in their order."""
    return [
        [
            (Kind(int(record["kind"])).name, int(record["bytes"]), int(record["peer"]))
            for record in trace.records
            if record["kind"] != Kind.WORK
        ]
        for trace in training.traces
    ]


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("strategy", "nodes"),
    [
        *((strategy, nodes) for strategy in ("ddp", "zero1", "zero2", "fsdp", STAGE_2) for nodes in (2, 3)),
        *(({"name": "fsdp", "replicate": copies}, 4) for copies in (2, 4)),
    ],
    ids=str,
)
def test_exchanges_are_those_of_the_real_strategy(strategy: Any, model: str, nodes: int) -> None:
    run = {"strategy": strategy, "nodes": nodes, "transport": "gloo", "batch_size": 8, "epochs": 2}
    spec = RunSpec.model_validate({**run, **MODELS[model], "partitioner": "quantity"})
    real = train_virtually(spec.model_copy(update={"save_weights": True}), MEASURED)
    played = train_virtually(spec, SAMPLED)
    assert exchanges(played) == exchanges(real)
    for own, other in zip(played.results, real.results, strict=True):
        assert (own.state_bytes, own.bytes_sent) == (other.state_bytes, other.bytes_sent)
    if strategy == "ddp" and model != "lenet":
        assert len({nbytes for kind, nbytes, _ in exchanges(real)[0] if kind == "START_ALL_REDUCE"}) == 3
