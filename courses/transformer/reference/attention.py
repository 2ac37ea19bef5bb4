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

import numpy as np


def forward(q, k, v, rank, size, send, recv):
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
    # solution: write forward
    right, left = (rank + 1) % size, (rank - 1) % size
    largest, total, out = np.full(len(q), -np.inf), np.zeros(len(q)), np.zeros_like(v)
    for step in range(size):
        source = (rank - step) % size  # the rank that has these keys and values
        scores = q @ k.T / np.sqrt(q.shape[1])
        if source == rank:
            scores[np.triu_indices(len(q), 1)] = -np.inf
        elif source > rank:
            scores[:] = -np.inf
        new = np.maximum(largest, scores.max(axis=1))
        weights, scale = np.exp(scores - new[:, None]), np.exp(largest - new)
        total = total * scale + weights.sum(axis=1)
        out = out * scale[:, None] + weights @ v
        largest = new
        if step < size - 1:
            send(right, np.stack([k, v]))
            k, v = recv(left)
    return out / total[:, None], largest + np.log(total)
    # end of solution
