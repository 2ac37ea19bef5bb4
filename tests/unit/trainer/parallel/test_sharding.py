"""Mistakes in the time, traffic and memory of replicas that torch shards. Integration tests train them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from tests.unit.training import SMALL
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import BatchLoader
from trainer.training.task import Task


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_fsdp_gathers_the_weights_in_every_step_also_after_an_evaluation() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from trainer.parallel.sharding import ShardedReplica

    task = Task(RunSpec.model_validate({**SMALL, "strategy": "fsdp", "nodes": 2}), Path())
    ((batch, _), *_) = BatchLoader(task.data.train, task.spec, task.rngs, 0, 2).batches(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        for reshard, passes in ((True, 3), (False, 2)):
            comm = MemoryCommunicator(0, 2, Clock(), ThreadGroup(2))
            comm.clock.start()
            replica = ShardedReplica(task.build_model(0), task, comm, reshard=reshard)
            half = 4 * replica.parameter_count // 2
            for step in (1, 2, 3):
                replica.backward(batch)
                times = step * passes + step - 1  # of two blocks; evaluations follow steps
                assert (len(comm.traffic.collectives), comm.bytes_sent) == (2 * times, half * times)
                with replica.evaluating():
                    replica.predict(batch.inputs)
            assert replica.state_bytes == {"weights": half, "gradient": half, "optimizer": 0}
    finally:
        dist.destroy_process_group()
