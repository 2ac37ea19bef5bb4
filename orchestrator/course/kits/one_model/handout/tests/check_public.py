"""Public tests: the first steps of both tasks. The hidden tests check more, on other inputs."""

import numpy as np

from shardyard.course import Collective, Network, Pipeline, check, close


@check(
    "pipeline.py",
    points=2,
    title="gradient",
    law="The gradient is that of the whole batch.",
    reason="A pipeline changes where a model is computed, and not what is computed.",
    cases=[
        {"stages": 1, "micro_batches": 1, "samples": 2},
        {"stages": 2, "micro_batches": 2, "samples": 4},
    ],
)
def gradient(student, stages, micro_batches, samples):
    inputs, targets = np.ones((samples, 3)), np.arange(3.0 * samples).reshape(samples, 3)
    pipeline, network = Pipeline(stages), Network(stages)
    calls = []
    for rank in range(stages):
        own = (inputs if rank == 0 else None, targets if rank == stages - 1 else None)
        calls.append((pipeline.stage(rank), rank, stages, micro_batches, *own, *network.functions(rank)))
    expected = pipeline.gradients(inputs, targets)
    for rank, result in enumerate(student.together("train_step", calls)):
        close(result, expected[rank], f"the gradient of rank {rank} is not that of the whole batch")


@check(
    "tensor_parallel.py",
    points=2,
    title="forward",
    law="Every rank returns the outputs of the whole layers.",
    reason="Splitting a layer changes where it is computed, and not what is computed.",
    cases=[{"size": 1, "hidden": 2}, {"size": 2, "hidden": 4}],
)
def forward(student, size, hidden):
    rng = np.random.default_rng(0)
    x, weights = (
        rng.normal(size=(4, 3)),
        [rng.normal(size=shape) for shape in ((3, hidden), hidden, (hidden, 2), 2)],
    )
    w1, b1, w2, b2 = weights
    sums = Collective(size)
    parts = [student.call("shard", *weights, rank, size) for rank in range(size)]
    calls = [(x, parts[rank], rank, size, sums.function(rank)) for rank in range(size)]
    for rank, y in enumerate(student.together("forward", calls)):
        close(y, np.maximum(x @ w1 + b1, 0) @ w2 + b2, f"outputs of rank {rank}")
