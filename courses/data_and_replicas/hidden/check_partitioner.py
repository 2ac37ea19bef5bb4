"""Task 1: the partitioner."""

import numpy as np

from shardyard.course import Seed, check, equal, holds

FILE = "partitioner.py"
SIZES = [(2, 2), (5, 2), (100, 7)]  # samples and parts


def split(student, samples, parts, seed=0):
    return student.call("MyPartitioner.partition", np.zeros(samples, np.int64), parts, Seed(seed))


def holders(found, samples):
    """The number of parts that hold each sample."""
    counts = np.zeros(samples, int)
    for part in found:
        indices = np.unique(np.asarray(part, int))
        inside = bool(len(indices) == 0 or (indices[0] >= 0 and indices[-1] < samples))
        holds(inside, "an index is outside of the training set", f"0 to {samples - 1}", indices)
        counts[indices] += 1
    return counts


@check(FILE, points=2, cases=SIZES)
def no_overlap(student, samples, parts):
    """No sample is in two parts.

    A sample on two nodes counts twice in every average.
    """
    counts = holders(split(student, samples, parts), samples)
    sample = int(counts.argmax())
    holds(counts.max() <= 1, f"sample {sample} is in several parts", "1 part", f"{counts.max()} parts")


@check(FILE, points=2, cases=SIZES)
def full_cover(student, samples, parts):
    """Every sample is in a part.

    No node trains on a sample that is in no part.
    """
    found = split(student, samples, parts)
    equal(len(found), parts, "the number of parts is wrong")
    missing = np.flatnonzero(holders(found, samples) == 0)
    equal(missing, [], "samples that are in no part")


# Hidden: students get the tests above.


@check(FILE, points=2, cases=SIZES)
def equal_sizes(student, samples, parts):
    """The sizes of the parts differ by 1 at most.

    In a synchronous step, all nodes wait for the one with the most samples.
    """
    sizes = [len(part) for part in split(student, samples, parts)]
    holds(max(sizes) - min(sizes) <= 1, "the sizes differ by more than 1", "±1", sizes)


@check(FILE, points=2, cases=[(40, 2)])
def given_generator(student, samples, parts):
    """The parts depend on the given generator, and on no other source of randomness.

    Every rank computes the parts itself: with a random state of its own, each gets other parts.
    """
    first, again, other = (split(student, samples, parts, seed) for seed in (1, 1, 2))
    equal(again, first, "equally seeded generators give different parts")
    same = all(np.array_equal(a, b) for a, b in zip(first, other, strict=False))
    holds(not same, "differently seeded generators give the same parts", "different parts", first)
