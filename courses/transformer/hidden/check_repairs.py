"""Tasks 3 to 7: the repaired files, 3 points each. The mistakes in the handout are in mistakes.yml."""

import numpy as np

from shardyard.course import Collective, check, close

WIDTH = 4
PADDING = -1


@check(
    "loss.py",
    points=3,
    cases=[
        ([2], [0]),
        ([2, 2], [0, 0]),
        ([1, 2], [0, 0]),
        ([1, 2], [1, 0]),
        ([2, 0], [0, 2]),
        ([5, 1, 3], [0, 2, 1]),
    ],
)
def unequal_tokens(student, counted, padding):
    """Every token that counts has the same weight, on whichever rank it is.

    The mean of the ranks' means is the mean of all tokens only if all ranks have equally many.
    """
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(WIDTH, 3))
    targets = [
        np.concatenate([rng.integers(3, size=counts), np.full(padded, PADDING)])
        for counts, padded in zip(counted, padding, strict=True)
    ]
    xs = [rng.normal(size=(len(each), WIDTH)) for each in targets]
    x, labels = np.concatenate(xs), np.concatenate(targets)
    x, labels = x[labels != PADDING], labels[labels != PADDING]
    scores = np.exp(x @ weights)
    expected = x.T @ (scores / scores.sum(axis=1, keepdims=True) - np.eye(3)[labels]) / len(x)
    size = len(counted)
    calls = [(weights, *each, size) for each in zip(xs, targets, strict=True)]
    for rank, found in enumerate(student.together("gradient", Collective(size).arguments(calls))):
        close(found, expected, f"gradient on rank {rank}")


@check("clip.py", points=3, cases=[(size, limit) for limit in (1.0, 9.0) for size in (1, 2, 3)])
def norm_of_the_model(student, size, limit):
    """Each weight of the model counts once in the norm, and all ranks scale by this norm.

    With another norm, the step has another length, or parts of the model have another scale.
    """
    rng = np.random.default_rng(size)
    replicated = [rng.normal(size=WIDTH), rng.normal(size=2)]
    split = [[rng.normal(size=(2, WIDTH)), rng.normal(size=rank + 1)] for rank in range(size)]
    whole = np.concatenate([each.ravel() for part in [replicated, *split] for each in part])
    scale = min(1.0, limit / np.linalg.norm(whole))
    calls = [(split[rank], replicated, limit) for rank in range(size)]
    for rank, (own, shared) in enumerate(student.together("clip", Collective(size).arguments(calls))):
        for number, (got, wanted) in enumerate(zip(own, split[rank], strict=True)):
            close(got, scale * wanted, f"split[{number}] of rank {rank}")
        for number, (got, wanted) in enumerate(zip(shared, replicated, strict=True)):
            close(got, scale * wanted, f"replicated[{number}] of rank {rank}")


@check("norm.py", points=3, cases=[(1, 2), (2, 2), (3, 7)])
def all_tokens(student, size, tokens):
    """The gradients of gamma and beta are those of all tokens, on every rank.

    A rank that updates them by its own tokens has another gamma and beta than the others.
    """
    rng = np.random.default_rng(tokens)
    x, gamma, columns = rng.normal(size=(tokens, WIDTH)), rng.normal(size=WIDTH), 2 * size
    w, dy = rng.normal(size=(WIDTH, columns)), rng.normal(size=(tokens, columns))
    deviation, dh = np.sqrt(x.var(axis=1, keepdims=True) + 1e-5), dy @ w.T
    normal = (x - x.mean(axis=1, keepdims=True)) / deviation
    # Per token: the derivative of the normalised values with respect to x, times WIDTH and the deviation.
    slopes = WIDTH * np.eye(WIDTH) - 1 - normal[:, :, None] * normal[:, None, :]
    dx = np.einsum("ti,tij->tj", dh * gamma, slopes) / (WIDTH * deviation)
    parts = [np.array_split(x, size), np.array_split(w, size, axis=1), np.array_split(dy, size, axis=1)]
    calls = [(parts[0][r], gamma, parts[1][r], parts[2][r], r, size) for r in range(size)]
    for rank, found in enumerate(student.together("backward", Collective(size).arguments(calls))):
        close(found[0], np.array_split(dx, size)[rank], f"dx of rank {rank}")
        close(found[1], (dh * normal).sum(axis=0), f"dgamma of rank {rank}")
        close(found[2], dh.sum(axis=0), f"dbeta of rank {rank}")


@check("rotary.py", points=3, cases=[(1, 3), (2, 4), (2, 3), (3, 7)])
def positions(student, size, length):
    """Each token is rotated by its position in the sample.

    Attention sees how far apart two tokens are by their angles, also if they are on two ranks.
    """
    x = np.random.default_rng(length).normal(size=(length, WIDTH))
    frequencies = 10_000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    turned = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * np.outer(np.arange(length), frequencies))
    expected = np.stack([turned.real, turned.imag], axis=2).reshape(length, WIDTH)
    for rank, own in enumerate(np.array_split(x, size)):
        found = student.call("rotate", own, length, rank, size)
        close(found, np.array_split(expected, size)[rank], f"tokens of rank {rank}")


@check("block.py", points=3, cases=[(1, 2), (2, 2), (3, 7)])
def sums_over_ranks(student, size, units):
    """Every rank returns the whole gradients of x and gamma, and its own part of those of w1 and w2.

    A gradient that is a part has to be summed over ranks, and one that is complete must not be.
    """
    rng = np.random.default_rng(units)
    x, dy, gamma = rng.normal(size=(3, WIDTH)), rng.normal(size=(3, WIDTH)), rng.normal(size=WIDTH)
    w1, w2 = rng.normal(size=(WIDTH, units)), rng.normal(size=(units, WIDTH))
    hidden = np.maximum((x * gamma) @ w1, 0)
    inner = (dy @ w2.T) * (hidden > 0)
    dh = inner @ w1.T
    dw1, dw2 = (x * gamma).T @ inner, hidden.T @ dy
    w1s, w2s = np.array_split(w1, size, axis=1), np.array_split(w2, size)
    calls = [(x, gamma, w1s[r], w2s[r], dy) for r in range(size)]
    for rank, found in enumerate(student.together("backward", Collective(size).arguments(calls))):
        parts = [np.array_split(dw1, size, axis=1)[rank], np.array_split(dw2, size)[rank]]
        expected = [dh * gamma, (dh * x).sum(axis=0), *parts]
        for name, got, wanted in zip(("dx", "dgamma", "dw1", "dw2"), found, expected, strict=True):
            close(got, wanted, f"{name} of rank {rank}")
