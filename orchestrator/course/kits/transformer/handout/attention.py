"""Task 1: ring attention, for a sample whose tokens are divided over P ranks (Liu et al. 2023).

Attention is out = softmax(q kᵀ / √d) v. Each rank has consecutive tokens of one sample, split as
`np.array_split` does, so ranks can have different numbers of tokens. A token attends to itself and to all
earlier tokens, also those of other ranks.

1. Queries stay. In P - 1 steps, each rank sends a block of keys and values to its right neighbour, and
   receives one from its left neighbour. So each rank sees every block, and stores one at a time.
2. The softmax is computed block by block (Milakov and Gimelshein 2018). For each query, keep the largest
   score so far, the sum of exp(score - largest), and the values weighted by exp(score - largest). If a
   block has a larger score, rescale what was summed before. Divide by the sum at the end.
"""

from collections.abc import Callable

import numpy as np


def forward(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    rank: int,
    size: int,
    send: Callable[[int, np.ndarray], None],
    recv: Callable[[int], np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """The outputs for this rank's tokens.

    Args:
        q, k, v: queries, keys and values of this rank's tokens, float64, shape (tokens, d) each. A rank
            has one token or more.
        rank: this rank, 0 … size - 1. Rank 0 has the first tokens.
        size: number of ranks, P.
        send: `send(to, array)` sends an array to a rank. It returns at once.
        recv: `recv(source)` returns the next array from a rank, and waits for it.

    Returns:
        The outputs, shape (tokens, d); and for each query the log of the sum of exp(score) over the tokens
        that it attends to, shape (tokens,). The backward pass needs it.
    """
    raise NotImplementedError("write forward")
