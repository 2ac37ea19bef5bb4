"""Task 2: the ring all-reduce."""

import numpy as np

from shardyard.course import Network, check, close, equal, holds

FILE = "all_reduce.py"


def run(student, size, n, change=None):
    """Let all ranks run. Returns their values, their results, and the network between them."""
    values = np.random.default_rng(size * 1000 + n).integers(-9, 10, (size, n)).astype(float)
    network = Network(size, change)
    return values, student.together("all_reduce", network.arguments([own] for own in values)), network


def check_mean(student, size, n):
    values, results, network = run(student, size, n)
    for rank, result in enumerate(results):
        close(result, values.mean(axis=0), f"the result of rank {rank} is not the mean")
    equal(network.unread, [], "messages (from, to) that no rank has received")


@check(FILE, points=2, cases=[(1, 3), (2, 2), (2, 4), (3, 6), (4, 8)])
def mean(student, size, n):
    """Every rank returns the mean of all ranks' values.

    Replicas that apply different averages drift apart.
    """
    check_mean(student, size, n)


# Hidden: students get the tests above.

BYTES = 8  # of a value


def network_of(student, size, n, changed=0):
    """The network of a run, if its messages matter: with a changed one, some result has to be wrong."""
    values, results, network = run(student, size, n, changed)
    right = all(np.allclose(result, values.mean(axis=0)) for result in results)
    holds(
        len(network.messages) > changed,
        "there are too few messages",
        2 * (size - 1) * size,
        len(network.messages),
    )
    holds(not right, f"message {changed} was changed on its way, and no result with it")
    return run(student, size, n)[2]


@check(FILE, points=2, cases=[(2, 1), (2, 3), (3, 2), (3, 7), (4, 10), (5, 23)])
def any_length(student, size, n):
    """The number of values need not be divisible by the number of ranks.

    A model can have any number of weights.
    """
    check_mean(student, size, n)


@check(FILE, points=3, title="bytes", cases=[(2, 4), (3, 6), (4, 400)])
def bytes_sent(student, size, n):
    """Each rank sends 2(P − 1)/P · n values.

    With a ring, the time of an all-reduce hardly grows with the number of ranks.
    """
    network = network_of(student, size, n)
    expected = 2 * (size - 1) * n // size * BYTES
    for rank, sent in enumerate(network.sent):
        equal(sent, expected, f"bytes that rank {rank} sent")


@check(FILE, points=1, cases=[(3, 6), (4, 8)])
def neighbours(student, size, n):
    """Each rank sends to its right neighbour only, one chunk at a time.

    Then every link of the ring carries equally much, all the time.
    """
    network = network_of(student, size, n)
    links = sorted({(sender, to) for sender, to, _ in network.messages})
    equal(links, [(rank, (rank + 1) % size) for rank in range(size)], "links in use (from, to)")
    largest = max(nbytes for _, _, nbytes in network.messages)
    equal(largest, n // size * BYTES, "bytes of the largest message")


@check(FILE, points=2, cases=[(3, 6, 0), (3, 6, 5), (3, 6, 11)])
def from_messages(student, size, n, changed):
    """The result is computed from the received values.

    On a cluster, ranks have no other way to learn the values of others.
    """
    network_of(student, size, n, changed)
