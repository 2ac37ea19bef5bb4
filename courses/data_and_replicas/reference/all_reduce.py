"""Task 2: the average of all ranks' values by a ring all-reduce (Patarasu and Yuan 2009).

Each of P ranks calls `all_reduce` with n values of its own. Split the values into P chunks.

1. Reduce-scatter: in P - 1 steps, each rank sends one chunk to its right neighbour, and adds the chunk
   that it receives from its left neighbour. Afterwards each rank holds one chunk of the sum.
2. All-gather: in P - 1 steps, the ranks pass the finished chunks around the ring.

A rank sends 2 (P - 1) / P · n values in all, however many ranks there are.
"""

import numpy as np


def all_reduce(values, rank, size, send, recv):
    """The elementwise mean of all ranks' values.

    Args:
        values: float64, shape (n,), with the same n on all ranks; n need not be divisible by `size`, and
            can be smaller.
        rank: this rank, 0 … size - 1.
        size: number of ranks, P.
        send: `send(to, chunk)` sends an array to a rank. It returns at once.
        recv: `recv(source)` returns the next array from a rank, and waits for it.

    Returns:
        float64, shape (n,), the same on all ranks.
    """
    # solution: write all_reduce
    chunks = [chunk.copy() for chunk in np.array_split(values, size)]
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        send(right, chunks[(rank - step) % size])
        chunks[(rank - step - 1) % size] += recv(left)
    for step in range(size - 1):
        send(right, chunks[(rank + 1 - step) % size])
        chunks[(rank - step) % size] = recv(left)
    return np.concatenate(chunks) / size
    # end of solution
