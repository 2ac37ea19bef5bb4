"""Task 1: one training step of a pipeline, in the order of GPipe (Huang et al. 2019, Sec. 2.3).

Each of P ranks has one stage of a model, and calls `train_step`. Rank 0 splits the batch into M
micro-batches.

1. Each rank takes the forward passes of all micro-batches, in order. It gets the inputs of a micro-batch
   from the rank before it, and sends the outputs to the rank after it.
2. Then each rank takes the backward passes of all micro-batches. It gets the gradient of its outputs from
   the rank after it, and sends that of its inputs to the rank before it.

While one rank works on a micro-batch, the others work on other ones. A share (P - 1) / (M + P - 1) of the
time is the bubble, in which ranks have no work.
"""

import numpy as np


def train_step(stage, rank, size, micro_batches, inputs, targets, send, recv):
    """The gradient of the batch's mean loss with respect to the weights of this rank's stage.

    Args:
        stage: this rank's stage of the model.
            `stage.forward(m, x)` returns the outputs of micro-batch m (0 … M - 1), shape (samples, d), and
            stores x until the backward pass.
            `stage.backward(m, dy)` returns the pair (dx, dw): the gradients of micro-batch m with respect
            to its inputs and to the weights, from the gradient dy with respect to its outputs.
            `stage.loss_gradient(y, targets)` returns dy of the mean loss over these samples; only the
            last rank needs it.
        rank: this rank, 0 … size - 1.
        size: number of ranks and stages, P.
        micro_batches: M, at most the number of samples. It need not divide it: split as `np.array_split`
            does.
        inputs: shape (samples, d) on rank 0; None on other ranks.
        targets: shape (samples, d) on the last rank; None on other ranks.
        send: `send(to, array)` sends an array to a rank. It returns at once.
        recv: `recv(source)` returns the next array from a rank, and waits for it.

    Returns:
        Shape (d, d): equal to the gradient of the whole batch, up to rounding.
    """
    # solution: write train_step
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
        if last:
            dy = stage.loss_gradient(outputs[m], ts[m]) * (len(ts[m]) / len(targets))
        else:
            dy = recv(rank + 1)
        dx, dw = stage.backward(m, dy)
        gradient = gradient + dw
        if not first:
            send(rank - 1, dx)
    return gradient
    # end of solution
