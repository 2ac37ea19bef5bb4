"""Scales by 1 / M, which is wrong for micro-batches of different sizes."""

import numpy as np


def train_step(stage, rank, size, micro_batches, inputs, targets, send, recv):
    """The gradient of the batch's mean loss with respect to the stage's weights."""
    first, last = rank == 0, rank == size - 1
    xs = np.array_split(inputs, micro_batches) if first else None
    ts = np.array_split(targets, micro_batches) if last else None

    outputs = []
    for m in range(micro_batches):
        y = stage.forward(m, xs[m] if first else recv(rank - 1))
        outputs.append(y)
        if not last:
            send(rank + 1, y)

    gradient = 0.0
    for m in range(micro_batches):
        dy = stage.loss_gradient(outputs[m], ts[m]) / micro_batches if last else recv(rank + 1)
        dx, dw = stage.backward(m, dy)
        gradient = gradient + dw
        if not first:
            send(rank - 1, dx)
    return gradient
