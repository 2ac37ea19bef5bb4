"""Task 2: tensor-parallel layers."""

import numpy as np

from shardyard.course import Collective, check, close


@check("tensor_parallel.py", points=2, cases=[(1, 2), (2, 4)])
def forward(student, size, hidden):
    """Every rank returns the outputs of the whole layers.

    Splitting a layer changes where it is computed, and not what is computed.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 3))
    w1, b1, w2, b2 = (rng.normal(size=shape) for shape in ((3, hidden), hidden, (hidden, 2), 2))
    parts = [student.call("shard", w1, b1, w2, b2, rank, size) for rank in range(size)]
    calls = Collective(size).arguments((x, parts[rank], rank, size) for rank in range(size))
    for rank, y in enumerate(student.together("forward", calls)):
        close(y, np.maximum(x @ w1 + b1, 0) @ w2 + b2, f"outputs of rank {rank}")
