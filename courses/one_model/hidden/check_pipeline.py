"""Task 1: the pipeline."""

import numpy as np

from shardyard.course import Network, Pipeline, check, close, equal, holds

FILE = "pipeline.py"
SHAPES = [(1, 1, 2), (1, 2, 2), (2, 2, 4), (3, 4, 8)]  # stages, micro-batches and samples


def run(student, stages, micro_batches, samples):
    """Let all ranks take a step. Returns their gradients, those of the whole batch, pipeline, network."""
    rng = np.random.default_rng(1)
    inputs, targets = rng.normal(size=(samples, 3)), rng.normal(size=(samples, 3))
    pipeline, network = Pipeline(stages), Network(stages)
    calls = []
    for rank in range(stages):
        own = (inputs if rank == 0 else None, targets if rank == stages - 1 else None)
        calls.append((pipeline.stage(rank), rank, stages, micro_batches, *own, *network.functions(rank)))
    gradients = student.together("train_step", calls)
    return gradients, pipeline.gradients(inputs, targets), pipeline, network


def check_gradients(student, stages, micro_batches, samples):
    gradients, expected, *_ = run(student, stages, micro_batches, samples)
    for rank, (got, wanted) in enumerate(zip(gradients, expected, strict=True)):
        close(got, wanted, f"the gradient of rank {rank} is not that of the whole batch")


@check(FILE, points=3, cases=SHAPES)
def gradient(student, stages, micro_batches, samples):
    """The gradient is that of the whole batch.

    A pipeline changes where a model is computed, and not what is computed.
    """
    check_gradients(student, stages, micro_batches, samples)


# Hidden: students get the tests above.


@check(FILE, points=2, title="unequal micro-batches", cases=[(1, 2, 3), (2, 3, 7)])
def unequal(student, stages, micro_batches, samples):
    """The gradient is that of the whole batch, also if micro-batches differ in size.

    In a mean over the batch, every sample counts equally: a micro-batch counts by its samples.
    """
    check_gradients(student, stages, micro_batches, samples)


@check(FILE, points=2, cases=SHAPES[1:])
def order(student, stages, micro_batches, samples):
    """Every stage takes all forward passes, in order, and then all backward passes.

    This is GPipe's schedule; another order has another bubble and other needs of memory.
    """
    pipeline = run(student, stages, micro_batches, samples)[2]
    forward = [("forward", m) for m in range(micro_batches)]
    for rank, work in enumerate(pipeline.work):
        text = f"the first {micro_batches} passes of rank {rank}"
        equal([list(each) for each in work[:micro_batches]], [list(each) for each in forward], text)
        rest = sorted(work[micro_batches:])
        expected = [["backward", m] for m in range(micro_batches)]
        equal([list(each) for each in rest], expected, f"the other passes of rank {rank}, sorted")


@check(FILE, points=2, cases=SHAPES[1:])
def bubble(student, stages, micro_batches, samples):
    """The bubble is (P − 1)/(M + P − 1).

    Stages that wait for each other's micro-batches one by one are as slow as a single node.
    """
    pipeline = run(student, stages, micro_batches, samples)[2]
    expected = (stages - 1) / (micro_batches + stages - 1)
    close(pipeline.bubble(), expected, "idle share of the stages")


@check(FILE, points=2, cases=SHAPES)
def activations(student, stages, micro_batches, samples):
    """A stage holds the inputs of M micro-batches at most, and none after the step.

    A stored input is memory; one that is never used is a leak.
    """
    pipeline = run(student, stages, micro_batches, samples)[2]
    for rank, work in enumerate(pipeline.work):
        most = pipeline.held[rank]
        holds(most <= micro_batches, f"micro-batches that rank {rank} held at once", micro_batches, most)
        equal(len(work), 2 * micro_batches, f"forward and backward passes of rank {rank}")


@check(FILE, points=1, cases=SHAPES[2:])
def messages(student, stages, micro_batches, samples):
    """A rank exchanges one message per micro-batch and direction, with its neighbours only.

    Activations and their gradients are all that stages have to know of each other.
    """
    network = run(student, stages, micro_batches, samples)[3]
    pairs = [(rank, rank + 1) for rank in range(stages - 1)]
    expected = sorted((pairs + [(b, a) for a, b in pairs]) * micro_batches)
    equal(sorted((sender, to) for sender, to, _ in network.messages), expected, "messages (from, to)")
    equal(network.unread, [], "messages (from, to) that no rank has received")
