"""Computes the limits of chunks with n // P, and so forgets the values that are left."""

import numpy as np


def all_reduce(values, rank, size, send, recv):
    """The mean of all ranks' values, if their number is divisible by the number of ranks."""
    result, length = values.copy(), len(values) // size
    right, left = (rank + 1) % size, (rank - 1) % size

    def chunk(number):
        first = number % size * length
        return slice(first, first + length)

    for step in range(size - 1):
        send(right, result[chunk(rank - step)])
        result[chunk(rank - step - 1)] += recv(left)
    for step in range(size - 1):
        send(right, result[chunk(rank + 1 - step)])
        result[chunk(rank - step)] = recv(left)
    return np.asarray(result) / size
