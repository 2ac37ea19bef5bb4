"""Mistakes of DeMo: what it keeps, what it sends, and whose mean it takes.

The reference is in plain torch and float64, with the cosine transform of scipy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.fft import dctn, idctn

from tests.unit.plain_torch import PARTS, Nodes, close
from tests.unit.training import train
from trainer.parallel.frequencies import Frequencies, largest_divisor

Array = NDArray[np.float64]
LIMIT, K = 16, 5
FORM: dict[str, Any] = {"name": "demo", "chunk": LIMIT, "top_k": K, "decay": 0.9}
# Softmax regression: no gradient is 0, as behind a ReLU, where the sign is that of a rounding error. Few
# steps: in later ones other coefficients are among the k largest, because of earlier signs.
FIELDS: dict[str, Any] = {
    **PARTS,
    "epochs": 1,
    "batch_size": 30,
    "lr": 0.003,
    "model": {"name": "mlp", "hidden": []},
}


def nearly_all_close(found: Any, expected: Any) -> None:
    """Of values near 0, rounding decides the sign."""
    differ = ~np.isclose(found, expected, rtol=1e-4, atol=1e-6)
    assert differ.mean() < 0.002, f"{differ.sum()} of {differ.size} weights differ"


def chunks_of(tensor: Array, limit: int) -> list[Array]:
    """Views of the chunks of a tensor with at most two dimensions."""
    matrix = tensor.reshape(-1, tensor.shape[-1]) if tensor.ndim > 1 else tensor.reshape(1, -1)
    h, w = (max(d for d in range(1, limit + 1) if n % d == 0) for n in matrix.shape)
    rows, columns = (range(0, n, side) for n, side in zip(matrix.shape, (h, w), strict=True))
    return [matrix[y : y + h, x : x + w] for y in rows for x in columns]


def top_k(chunk: Array, k: int) -> Array:
    """The k largest coefficients of a chunk, nan in place of the others."""
    found = dctn(chunk, norm="ortho")
    found[np.abs(found) < np.sort(np.abs(found).ravel())[-min(k, found.size)]] = np.nan
    return found


def tensors_of(flat: Array, nodes: Nodes) -> list[Array]:
    """Views of the tensors of flat weights."""
    shapes = [each.shape for each in nodes.task.build_model(0).parameters()]
    ends = np.cumsum([shape.numel() for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]


def share(nodes: Nodes, node: int, step: int) -> float:
    """What a node's gradient counts in a mean over nodes that is one over samples."""
    count = len(nodes.x)
    return count * nodes.samples(node, step) / sum(nodes.samples(each, step) for each in range(count))


def test_the_largest_frequencies_of_the_momentum_are_exchanged() -> None:
    nodes = Nodes("demo", **FIELDS)
    x, lr = nodes.x[0], nodes.task.spec.lr
    delta, shared = [np.zeros(len(x)) for _ in range(3)], set[int]()
    for t in range(nodes.steps):
        update = np.zeros(len(x))
        for i in range(3):
            delta[i] = 0.9 * delta[i] + lr * share(nodes, i, t) * nodes.gradient(i, t, x).numpy()
        of_tensors = [tensors_of(each, nodes) for each in (*delta, update)]
        for *tensors, updated in zip(*of_tensors, strict=True):
            of_chunks = [chunks_of(each, LIMIT) for each in (*tensors, updated)]
            for *chunks, step in zip(*of_chunks, strict=True):
                sent = np.stack([top_k(each, K) for each in chunks])
                for chunk, own in zip(chunks, sent, strict=True):
                    chunk -= idctn(np.nan_to_num(own), norm="ortho")
                senders = (~np.isnan(sent)).sum(axis=0)
                shared |= {*senders.ravel().tolist()}
                mean = np.nan_to_num(sent).sum(axis=0) / np.maximum(senders, 1)
                step[:] = idctn(mean, norm="ortho")
        x = x - lr * torch.from_numpy(np.sign(update))
    assert shared == {0, 1, 2, 3}
    found = train(FORM, 3, **FIELDS)
    nearly_all_close(found.weights, x)
    assert found.same_weights


def test_without_momentum_and_with_all_frequencies_it_is_sign_sgd() -> None:
    nodes = Nodes("demo", **FIELDS)
    x = nodes.x[0]
    for t in range(nodes.steps):
        x = (
            x
            - nodes.task.spec.lr
            * sum(share(nodes, i, t) * nodes.gradient(i, t, x) for i in range(3)).sign()
        )
    found = train({"name": "demo", "decay": 0.0, "chunk": LIMIT, "top_k": LIMIT**2}, 3, **FIELDS)
    nearly_all_close(found.weights, x)


def test_a_message_has_six_bytes_per_coefficient() -> None:
    """Of 8 × 784 weights in chunks of 8 × 16, 10 × 8 in one, and vectors of 8 and 10."""
    result = train(FORM, 3).results[0]
    coefficients = K * (49 + 1 + 1 + 1)
    assert result.bytes_sent == 2 * 6 * coefficients * result.steps


@pytest.mark.parametrize("shape", [(6, 35), (12,), (4, 3, 5), (7, 2), ()])
@pytest.mark.parametrize("k", [1, 3, 100])
def test_messages_hold_the_best_approximations(shape: tuple[int, ...], k: int) -> None:
    """With one place in the last float, if there are an odd number."""
    generator = torch.Generator().manual_seed(1)
    tensor = torch.randn(shape, generator=generator)
    code = Frequencies([tensor.shape], 5, k, "cpu")
    found = code.decode(code.encode(tensor.flatten()).unsqueeze(0)).view(tensor.shape).double().numpy()
    expected = tensor.reshape(len(tensor) if len(shape) > 1 else 1, -1).double().numpy().copy()
    for chunk in chunks_of(expected, 5):
        chunk[:] = idctn(np.nan_to_num(top_k(chunk, k)), norm="ortho")
    close(found, expected.reshape(shape))


def test_chunks_divide_a_tensor() -> None:
    assert [largest_divisor(n, 64) for n in (1, 10, 64, 67, 128, 130, 784)] == [1, 10, 64, 1, 64, 26, 56]
