"""Sends everything to rank 0, which sends the mean to all."""


def all_reduce(values, rank, size, send, recv):
    """The mean of all ranks' values."""
    if rank == 0:
        total = values.copy()
        for other in range(1, size):
            total += recv(other)
        for other in range(1, size):
            send(other, total / size)
        return total / size
    send(0, values)
    return recv(0)
