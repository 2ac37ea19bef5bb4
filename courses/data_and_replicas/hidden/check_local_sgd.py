"""Task 3: local SGD."""

import numpy as np

from shardyard.course import Training, check, close, equal

FILE = "local_sgd.py"


def train(student, samples, local_steps):
    """Let a student's strategy train. samples: of each rank."""
    training = Training(samples)
    sessions = [(training.session(rank),) for rank in range(training.size)]
    student.together("MyLocalSGD.train", sessions, fields={"local_steps": local_steps})
    return training


@check(FILE, points=2, cases=[([2, 2], 10), ([6, 6], 4)])
def last_average(student, samples, local_steps):
    """After the last step all ranks hold the same weights.

    Otherwise there are P different models, each trained on one rank's samples.
    """
    weights = train(student, samples, local_steps).weights
    for rank in range(1, len(weights)):
        close(weights[rank], weights[0], f"ranks 0 and {rank} hold different weights")
    equal(bool(np.any(weights[0])), True, "some weight has changed")


# Hidden: students get the tests above.


def expected(samples, local_steps):
    """Algorithm 1 of Stich 2019, weighted by samples. Returns the final weights, shape (3,)."""
    training = Training(samples)
    ranks, w = range(training.size), [np.zeros(3) for _ in samples]
    total, seen = training.epochs * training.steps_per_epoch, np.zeros(training.size)
    for step in range(total):
        for rank in ranks:
            w[rank] = w[rank] - training.lr * training.gradient(rank, step, w[rank])
            seen[rank] += training.samples(rank, step)
        if (step + 1) % local_steps == 0 or step + 1 == total:
            mean = sum(n * each for n, each in zip(seen, w, strict=True)) / seen.sum()
            w, seen = [mean.copy() for _ in ranks], np.zeros(training.size)
    return w[0]


def check_weights(student, samples, local_steps):
    training = train(student, samples, local_steps)
    for rank, weights in enumerate(training.weights):
        close(weights, expected(samples, local_steps), f"the final weights of rank {rank} are wrong")


@check(FILE, points=2, cases=[([4], 1), ([7], 3)])
def serial(student, samples, local_steps):
    """One rank does what serial SGD does.

    The baseline of a speedup has to do the same work.
    """
    check_weights(student, samples, local_steps)


@check(FILE, points=2, title="H = 1", cases=[([2, 2],), ([4, 4, 4],)])
def every_step(student, samples):
    """With H = 1 and plain SGD, it is all-reduce SGD.

    The mean of the weights after one step is one step along the mean gradient.
    """
    check_weights(student, samples, 1)
    training = Training(samples)
    w = np.zeros(3)
    for step in range(training.epochs * training.steps_per_epoch):
        gradients = [training.gradient(rank, step, w) for rank in range(training.size)]
        w = w - training.lr * np.mean(gradients, axis=0)
    for rank, weights in enumerate(train(student, samples, 1).weights):
        close(weights, w, f"the weights of rank {rank} are not those of all-reduce SGD")


@check(FILE, points=2, cases=[([4, 4], 2), ([6, 6], 4)])
def every_H_steps(student, samples, local_steps):
    """The ranks average after every H steps, counted over the ends of epochs.

    More averages cost bytes, and fewer let the replicas drift further apart.
    """
    training = train(student, samples, local_steps)
    total = training.epochs * training.steps_per_epoch
    steps = sorted({*range(local_steps, total + 1, local_steps), total})
    for rank, averages in enumerate(training.averages):
        equal(averages, steps, f"steps of rank {rank} before each average")


@check(FILE, points=2, cases=[([4, 4], 2), ([8, 8, 8], 4)])
def weights(student, samples, local_steps):
    """With H > 1, the ranks average weights after local steps.

    The mean of gradients at different weights is the gradient of no rank's loss.
    """
    check_weights(student, samples, local_steps)


@check(FILE, points=2, cases=[([4, 3], 1), ([6, 1], 2)])
def unequal_parts(student, samples, local_steps):
    """Weights are averaged in proportion to the samples of each rank since the last average.

    Then every sample counts equally, also if a rank has run out of samples.
    """
    check_weights(student, samples, local_steps)
