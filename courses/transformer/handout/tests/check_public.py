"""Public tests: the first steps of all tasks. The hidden tests check more, on other inputs."""

import numpy as np

from shardyard.course import Collective, Network, check, close, holds

WIDTH = 4


def attention(tokens):
    """Queries, keys, values, outputs, log of the sums, and causal attention weights of a whole sample."""
    q, k, v = np.random.default_rng(tokens).normal(size=(3, tokens, WIDTH))
    scores = np.where(np.tri(tokens) > 0, q @ k.T / np.sqrt(WIDTH), -np.inf)
    log_sum = np.log(np.exp(scores).sum(axis=1))
    weights = np.exp(scores - log_sum[:, None])
    return q, k, v, weights @ v, log_sum, weights


def calls_of_ring(size, *arrays):
    """The arguments of each rank: its tokens, rank, size, send, recv."""
    return Network(size).arguments(zip(*(np.array_split(each, size) for each in arrays), strict=True))


@check("attention.py", points=2, cases=[(1, 2), (2, 4)])
def outputs(student, size, tokens):
    """Each rank returns the outputs of its tokens, as one node computes them.

    Dividing the tokens changes where attention is computed, and not what is computed.
    """
    q, k, v, out, log_sum, _ = attention(tokens)
    for rank, found in enumerate(student.together("forward", calls_of_ring(size, q, k, v))):
        close(found[0], np.array_split(out, size)[rank], f"outputs of rank {rank}")
        close(found[1], np.array_split(log_sum, size)[rank], f"log of the sum of rank {rank}")


@check("backward.py", points=1, cases=[(1, 2), (2, 4)])
def gradient_of_queries(student, size, tokens):
    """Each rank returns the gradient of its queries.

    Dividing the tokens changes where attention is computed, and not what is computed.
    """
    q, k, v, out, log_sum, weights = attention(tokens)
    dout = np.ones_like(out)
    dscores = weights * (dout @ v.T - (dout * out).sum(axis=1, keepdims=True)) / np.sqrt(WIDTH)
    calls = calls_of_ring(size, q, k, v, out, log_sum, dout)
    for rank, found in enumerate(student.together("backward", calls)):
        close(found[0], np.array_split(dscores @ k, size)[rank], f"dq of rank {rank}")


@check("loss.py", points=1, cases=[(1, 2), (2, 2)])
def gradient(student, size, tokens):
    """The gradient is that of the mean over all tokens.

    Dividing the samples changes where a gradient is computed, and not what is computed.
    """
    rng = np.random.default_rng(0)
    weights, x = rng.normal(size=(WIDTH, 3)), rng.normal(size=(size, tokens, WIDTH))
    targets = rng.integers(3, size=(size, tokens))
    scores = np.exp(x @ weights)
    dlogits = scores / scores.sum(axis=2, keepdims=True) - np.eye(3)[targets]
    expected = np.einsum("rtd,rtc->dc", x, dlogits) / targets.size
    calls = Collective(size).arguments([(weights, x[rank], targets[rank], size) for rank in range(size)])
    for rank, found in enumerate(student.together("gradient", calls)):
        close(found, expected, f"gradient on rank {rank}")


@check("clip.py", points=1, cases=[(1,), (2,)])
def norm(student, size):
    """The norm of the whole gradient is the limit, if it was larger.

    Clipping limits the length of a step.
    """
    calls = Collective(size).arguments([([np.full(3, rank + 2.0)], [], 1.0) for rank in range(size)])
    split = [found[0][0] for found in student.together("clip", calls)]
    close(np.linalg.norm(split), 1.0, "norm of the whole gradient")


@check("norm.py", points=1)
def gradients(student):
    """The gradients are those of the whole layer.

    Dividing the tokens changes where a norm is computed, and not what is computed.
    """
    x, w = np.array([[1.0, -1.0], [2.0, -2.0]]), np.eye(2)
    dy = np.array([[1.0, 0.0], [0.0, 2.0]])
    (found,) = student.together("backward", Collective(1).arguments([(x, np.ones(2), w, dy, 0, 1)]))
    close(found[1], [1.0, -2.0], "dgamma", tolerance=1e-4)
    close(found[2], [1.0, 2.0], "dbeta")
    parts = [(x[[rank]], np.ones(2), w[:, [rank]], dy[:, [rank]], rank, 2) for rank in range(2)]
    for rank, each in enumerate(student.together("backward", Collective(2).arguments(parts))):
        close(each[0], [found[0][rank]], f"dx of rank {rank}")


@check("rotary.py", points=1, cases=[(2, 2), (2, 4), (4, 8)])
def rotation(student, size, length):
    """The parts of the ranks together are the rotated sample.

    Dividing the tokens does not change their positions.
    """
    x = np.random.default_rng(0).normal(size=(length, WIDTH))
    whole = student.call("rotate", x, length, 0, 1)
    close(np.linalg.norm(whole, axis=1), np.linalg.norm(x, axis=1), "lengths of the rotated tokens")
    close(whole[0], x[0], "the token at position 0")
    for rank, part in enumerate(np.array_split(x, size)):
        found = student.call("rotate", part, length, rank, size)
        close(found, np.array_split(whole, size)[rank], f"tokens of rank {rank}")


@check("block.py", points=1)
def the_loss_falls(student):
    """In 10 steps of SGD on two ranks, the loss falls in each step.

    The gradient points to where the loss rises.
    """
    rng = np.random.default_rng(0)
    x, y, gamma = rng.normal(size=(8, WIDTH)), rng.normal(size=(8, WIDTH)), np.ones(WIDTH)
    w1s, w2s = rng.normal(size=(2, WIDTH, 3)), rng.normal(size=(2, 3, WIDTH))
    losses = []
    for _ in range(10):
        wrong = sum(np.maximum((x * gamma) @ w1s[r], 0) @ w2s[r] for r in range(2)) - y
        losses.append((wrong**2).sum() / 16)
        calls = Collective(2).arguments([(x, gamma, w1s[r], w2s[r], wrong / 8) for r in range(2)])
        found = student.together("backward", calls)
        gamma = gamma - 0.01 * found[0][1]
        w1s = w1s - 0.01 * np.stack([each[2] for each in found])
        w2s = w2s - 0.01 * np.stack([each[3] for each in found])
    holds(bool(np.all(np.diff(losses) < 0)), "the loss does not fall in each step", "", losses)
