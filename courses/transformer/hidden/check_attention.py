"""Tasks 1 and 2: ring attention, 12 points, and its backward pass, 3 points."""

import numpy as np

from shardyard.course import Network, check, close, equal

WIDTH = 4  # of queries, keys and values
EVEN = [(1, 2), (2, 2), (2, 6), (3, 6), (4, 8)]  # ranks and tokens
UNEVEN = [(2, 3), (3, 7), (4, 6)]


class Attention:
    """Causal attention of a whole sample, and its gradients."""

    def __init__(self, tokens, factor=1.0):
        """factor: of queries and keys, so its square is that of the scores."""
        q, k, v, dout = np.random.default_rng(tokens).normal(size=(4, tokens, WIDTH))
        self.q, self.k, self.v, self.dout = factor * q, factor * k, v, dout
        scores = self.q @ self.k.T / np.sqrt(WIDTH)
        scores[np.triu_indices(tokens, 1)] = -np.inf
        largest = scores.max(axis=1, keepdims=True)
        self.log_sum = largest[:, 0] + np.log(np.exp(scores - largest).sum(axis=1))
        weights = np.exp(scores - self.log_sum[:, None])
        self.out = weights @ v
        dweights = dout @ v.T
        dscores = weights * (dweights - (weights * dweights).sum(axis=1, keepdims=True)) / np.sqrt(WIDTH)
        self.gradients = [dscores @ self.k, dscores.T @ self.q, weights.T @ dout]


def run(student, size, tokens, factor=1.0):
    """Let all ranks run the forward pass. Returns the whole attention, the ranks' results, the network."""
    whole, network = Attention(tokens, factor), Network(size)
    parts = zip(*(np.array_split(each, size) for each in (whole.q, whole.k, whole.v)), strict=True)
    return whole, student.together("forward", network.arguments(parts)), network


def check_outputs(student, size, tokens, factor=1.0):
    whole, found, _ = run(student, size, tokens, factor)
    outs, sums = np.array_split(whole.out, size), np.array_split(whole.log_sum, size)
    for rank, (out, log_sum) in enumerate(found):
        close(out, outs[rank], f"outputs of rank {rank}")
        close(log_sum, sums[rank], f"log of the sum of rank {rank}")


@check("attention.py", points=4, cases=EVEN)
def outputs(student, size, tokens):
    """Each rank returns the outputs of its tokens, as one node computes them.

    Dividing the tokens changes where attention is computed, and not what is computed.
    """
    check_outputs(student, size, tokens)


@check("attention.py", points=3, cases=UNEVEN)
def unequal_parts(student, size, tokens):
    """The number of tokens need not be divisible by the number of ranks.

    A token attends to all earlier ones, and how many these are depends on the sizes of all parts.
    """
    check_outputs(student, size, tokens)


@check("attention.py", points=3, cases=[(1, 2), (2, 4), (3, 9)])
def large_scores(student, size, tokens):
    """The outputs are right for large scores, too.

    exp overflows above 709 in double precision, and above 88 in single precision.
    """
    check_outputs(student, size, tokens, factor=50.0)


@check("attention.py", points=2, cases=EVEN[1:])
def messages(student, size, tokens):
    """In all, each rank sends P − 1 blocks of keys and values, to its right neighbour only.

    Then every link of the ring carries equally much, all the time.
    """
    whole, _, network = run(student, size, tokens)
    links = sorted({(sender, to) for sender, to, _ in network.messages})
    equal(links, [(rank, (rank + 1) % size) for rank in range(size)], "links in use (from, to)")
    block = 2 * whole.k.nbytes // size
    equal(network.sent, [(size - 1) * block] * size, "bytes that each rank sent")
    equal(network.unread, [], "messages (from, to) that no rank has received")


@check("backward.py", points=3, cases=[*EVEN[:2], (3, 3), *UNEVEN])
def keys_and_values(student, size, tokens):
    """Each rank returns the gradients of its own queries, keys and values.

    A key's gradient is the sum over the queries of all ranks, on the rank that has the key.
    """
    whole = Attention(tokens)
    arrays = (whole.q, whole.k, whole.v, whole.out, whole.log_sum, whole.dout)
    parts = zip(*(np.array_split(each, size) for each in arrays), strict=True)
    for rank, found in enumerate(student.together("backward", Network(size).arguments(parts))):
        for name, got, wanted in zip("qkv", found, whole.gradients, strict=True):
            close(got, np.array_split(wanted, size)[rank], f"d{name} of rank {rank}")
