"""Task 2: tensor-parallel layers. 12 points."""

import numpy as np

from shardyard.course import Collective, check, close, equal

FILE = "tensor_parallel.py"
SHAPES = [(1, 2), (2, 2), (2, 4), (3, 6)]  # ranks and hidden units
UNEVEN = [(2, 3), (3, 7)]
SAMPLES, INPUTS, OUTPUTS = 4, 3, 2
NAMES = ("w1", "b1", "w2", "b2")


class Layers:
    """The whole layers, and what they compute."""

    def __init__(self, hidden):
        rng = np.random.default_rng(hidden)
        shapes = ((INPUTS, hidden), (hidden,), (hidden, OUTPUTS), (OUTPUTS,))
        self.weights = [rng.normal(size=shape) for shape in shapes]
        self.x, self.dy = rng.normal(size=(SAMPLES, INPUTS)), rng.normal(size=(SAMPLES, OUTPUTS))
        w1, b1, w2, b2 = self.weights
        units = np.maximum(self.x @ w1 + b1, 0)
        inner = (self.dy @ w2.T) * (units > 0)
        self.y, self.dx = units @ w2 + b2, inner @ w1.T
        self.gradients = [self.x.T @ inner, inner.sum(axis=0), units.T @ self.dy, self.dy.sum(axis=0)]


def parts(arrays, rank, size):
    """The part of a rank, as the task describes it."""
    w1, b1, w2, b2 = arrays
    return [
        np.array_split(w1, size, axis=1)[rank],
        np.array_split(b1, size)[rank],
        np.array_split(w2, size)[rank],
        b2,
    ]


def run_forward(student, size, hidden):
    layers, sums = Layers(hidden), Collective(size)
    calls = sums.arguments((layers.x, parts(layers.weights, r, size), r, size) for r in range(size))
    return layers, student.together("forward", calls), sums


def run_backward(student, size, hidden):
    layers, sums = Layers(hidden), Collective(size)
    calls = sums.arguments(
        (layers.x, parts(layers.weights, r, size), layers.dy, r, size) for r in range(size)
    )
    return layers, student.together("backward", calls), sums


@check(FILE, points=3, cases=[*SHAPES, *UNEVEN])
def shards(student, size, hidden):
    """The ranks' parts together are the layers: no hidden unit is lost, and none is on two ranks.

    Each rank stores and computes 1/P of the hidden units; together they compute them all.
    """
    layers = Layers(hidden)
    for rank in range(size):
        found = student.call("shard", *layers.weights, rank, size)
        expected = parts(layers.weights, rank, size)
        equal(len(found), len(NAMES), "the number of arrays")
        for name, got, wanted in zip(NAMES, found, expected, strict=True):
            close(got, wanted, f"{name} of rank {rank}")


@check(FILE, points=3, cases=[*SHAPES, *UNEVEN])
def forward(student, size, hidden):
    """Every rank returns the outputs of the whole layers.

    Splitting a layer changes where it is computed, and not what is computed.
    """
    layers, found, _ = run_forward(student, size, hidden)
    for rank, y in enumerate(found):
        close(y, layers.y, f"outputs of rank {rank}")


@check(FILE, points=2, cases=[*SHAPES, *UNEVEN])
def input_gradient(student, size, hidden):
    """Every rank returns the gradient with respect to x of the whole layers.

    The layers before these need the sum over all hidden units, and not over one rank's.
    """
    layers, found, _ = run_backward(student, size, hidden)
    for rank, result in enumerate(found):
        close(result[0], layers.dx, f"gradient of x on rank {rank}")


@check(FILE, points=2, cases=[*SHAPES, *UNEVEN])
def weight_gradients(student, size, hidden):
    """Every rank returns the gradients of its own part.

    They need no communication: a hidden unit's gradient depends on that unit only.
    """
    layers, found, _ = run_backward(student, size, hidden)
    for rank, result in enumerate(found):
        expected = parts(layers.gradients, rank, size)
        for name, got, wanted in zip(NAMES, result[1], expected, strict=True):
            close(got, wanted, f"gradient of {name} on rank {rank}")


@check(FILE, points=2, title="bytes", cases=SHAPES[1:])
def exchanged(student, size, hidden):
    """Each pass has one all-reduce: of y forward, and of the gradient of x backward.

    Hidden units are many; a layer split by columns, then rows, never exchanges them.
    """
    layers, _, sums = run_forward(student, size, hidden)
    equal(sums.calls, [1] * size, "all-reduces of each rank in the forward pass")
    equal(sums.nbytes, [layers.y.nbytes] * size, "bytes of each rank in the forward pass")
    layers, _, sums = run_backward(student, size, hidden)
    equal(sums.calls, [1] * size, "all-reduces of each rank in the backward pass")
    equal(sums.nbytes, [layers.dx.nbytes] * size, "bytes of each rank in the backward pass")
