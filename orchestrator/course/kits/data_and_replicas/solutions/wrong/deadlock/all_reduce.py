"""Every rank receives before it sends."""

import numpy as np


def all_reduce(values, rank, size, send, recv):
    """Waits for ever."""
    chunks = [chunk.copy() for chunk in np.array_split(values, size)]
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        received = recv(left)
        send(right, chunks[(rank - step) % size])
        chunks[(rank - step - 1) % size] += received
    for step in range(size - 1):
        received = recv(left)
        send(right, chunks[(rank + 1 - step) % size])
        chunks[(rank - step) % size] = received
    return np.concatenate(chunks) / size
