"""The memory that virtual ranks need at least, and what this machine has."""

from __future__ import annotations

import psutil
import torch

from trainer.core.clock import Clock
from trainer.training.limits import MemoryShortage
from trainer.training.replica import Replica
from trainer.training.task import Task

RANK_BYTES = 10**5  # of a rank beside its replica: its trace and its objects
PAIR_BYTES = 8  # of two ranks: times of a broadcast


def check_memory(task: Task, workers: int = 1) -> None:
    """Raise MemoryShortage if the replicas of a run do not fit into the memory that is available.

    A replica holds weights, gradient and optimizer state. In an average there are two copies of its
    weights: what it averages, and what it sends. Each further worker process receives the latter.
    Ranks that are absent from a round share their weights. Ranks that share a replica are not checked.
    """
    if task.spec.strategy.partitions_model:
        return
    replica = Replica(task.build_model(0), task, Clock())
    replica.set_gradient(torch.zeros(replica.parameter_count))
    replica.step()
    held = replica.state_bytes
    available, ranks = psutil.virtual_memory().available, task.spec.world_size
    trains = sum(held.values()) + (1 + workers) * held["weights"]
    present = task.spec.replicas_in_step / task.spec.num_replicas
    each = present * trains + RANK_BYTES + PAIR_BYTES * ranks * workers
    if ranks * each > available:
        raise MemoryShortage(
            f"{ranks:,} virtual ranks need at least {ranks * each / 2**30:.1f} GiB of memory, "
            f"{each / 2**20:.1f} MiB each, and {available / 2**30:.1f} GiB are available; allowed: at most "
            f"{int(available / each):,} ranks, or a smaller model"
        )
