"""The memory that virtual ranks need at least, and what this machine has."""

from __future__ import annotations

from itertools import chain
from math import ceil

import psutil
import torch

from trainer.core.clock import Clock
from trainer.spec.run_spec import RunSpec
from trainer.training.limits import MemoryShortage
from trainer.training.replica import Replica
from trainer.training.task import Task

RANK_BYTES = 10**5  # of a rank beside its replica: its trace and its objects
PAIR_BYTES = 8  # of two ranks: times of a broadcast


def check_memory(task: Task, workers: int = 1, one_module: bool = True) -> None:
    """Raise MemoryShortage if the replicas of a run do not fit into the memory that is available.

    A replica holds weights, gradient and optimizer state. In an average there are two copies of its
    weights: what it averages, and what it sends. Each further worker process receives the latter of all
    ranks. Where absent ranks are alike, they share their weights. A rank that has trained keeps its
    gradient and its optimizer state. Ranks that share a replica are not checked.

    Args:
        one_module: whether the ranks of a process have one module in turn; else each has its own.
    """
    spec = task.spec
    if spec.strategy.partitions_model:
        return
    replica = Replica(task.build_model(0), task, Clock())
    replica.set_gradient(torch.ones(replica.parameter_count))
    replica.step()
    state = replica.state_bytes
    weights = state.pop("weights")
    available, ranks = psutil.virtual_memory().available, spec.world_size
    alike = one_module and spec.strategy.alike_between_rounds and not spec.aggregates_by_value
    present, trained = shares_of_ranks(spec)
    each = (3 * (present if alike else 1) + workers - 1) * weights + trained * sum(state.values())
    each += RANK_BYTES + PAIR_BYTES * ranks * workers
    if ranks * each > available:
        raise MemoryShortage(
            f"{ranks:,} virtual ranks need at least {ranks * each / 2**30:.1f} GiB of memory, "
            f"{each / 2**20:.1f} MiB each, and {available / 2**30:.1f} GiB are available; allowed: at most "
            f"{int(available / each):,} ranks, or a smaller model"
        )


def shares_of_ranks(spec: RunSpec) -> tuple[float, float]:
    """The largest share of the ranks that take part in a round, and the share that has done so at the end.

    The latter is expected if rounds are drawn by chance, where each rank is equally likely.
    """
    if (rounds := spec.strategy.rounds) is None:
        return 1.0, 1.0
    replicas = spec.num_replicas
    present = rounds.participation.most(replicas) / replicas
    steps = spec.epochs * ceil(spec.dataset.train_samples / replicas / spec.batch_per_replica)
    count = ceil(steps / (rounds.steps or steps))
    if schedule := rounds.participation.schedule:
        return present, len({*chain.from_iterable(schedule[:count])}) / replicas
    return present, 1 - (1 - present) ** count
