"""Public tests: the first steps of all three tasks. The hidden tests check more, on other inputs."""

import numpy as np

from shardyard.course import Network, Seed, Training, check, close, equal


@check(
    "partitioner.py",
    points=2,
    title="a partition",
    law="Every sample is in exactly one part.",
    reason="Then every sample counts once in an epoch.",
    cases=[{"samples": 4, "parts": 2}, {"samples": 10, "parts": 3}],
)
def partition(student, samples, parts):
    found = student.call("MyPartitioner.partition", np.zeros(samples, np.int64), parts, Seed(0))
    equal(len(found), parts, "the number of parts is wrong")
    equal(
        sorted(int(index) for part in found for index in part), list(range(samples)), "indices of all parts"
    )


@check(
    "all_reduce.py",
    points=2,
    title="mean",
    law="Every rank returns the mean of all ranks' values.",
    reason="Replicas that apply different averages drift apart.",
    cases=[{"size": 2, "n": 2}, {"size": 3, "n": 6}],
)
def mean(student, size, n):
    values = np.arange(size * n, dtype=float).reshape(size, n)
    network = Network(size)
    calls = [(values[rank], rank, size, *network.functions(rank)) for rank in range(size)]
    for rank, result in enumerate(student.together("all_reduce", calls)):
        close(result, values.mean(axis=0), f"the result of rank {rank} is not the mean")


@check(
    "local_sgd.py",
    points=2,
    title="equal weights",
    law="After the last step all ranks hold the same weights.",
    reason="The result of training is one model.",
    cases=[{"samples": [2, 2], "local_steps": 1}, {"samples": [4, 4], "local_steps": 2}],
)
def equal_weights(student, samples, local_steps):
    training = Training(samples)
    sessions = [(training.session(rank),) for rank in range(training.size)]
    student.together("MyLocalSGD.train", sessions, fields={"local_steps": local_steps})
    close(training.weights[1], training.weights[0], "ranks 0 and 1 hold different weights")
    equal(bool(np.any(training.weights[0])), True, "some weight has changed")
