"""Mistakes in the time, traffic and memory of replicas that torch shards. Integration tests train them."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch.distributed as dist

from tests.unit.conftest import FakeTime
from tests.unit.training import SMALL
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock
from trainer.core.trace import Kind
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import BatchLoader
from trainer.training.task import Task


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # in torch's own code
def test_the_broadcasts_of_zero1_are_a_collective_whose_first_record_has_the_time() -> None:
    from trainer.parallel.sharding import BroadcastSpan

    wall, cpu = FakeTime(0.0), FakeTime(0.0)
    comm = MemoryCommunicator(1, 3, Clock(wall, cpu), ThreadGroup(3))
    comm.clock.start()
    comm.clock.tracer = tracer = MagicMock(full=False, on_own_thread=False, group=lambda *_: 0)
    span = BroadcastSpan(comm, [(0, 100), (1, 40), (1, 2), (2, 7)])
    with comm.clock.phase("compute"):
        wall.pass_(1.0)
        span.start()
        wall.pass_(5.0)
        cpu.pass_(0.5)
    span.finish()
    assert comm.bytes_sent == 42 * 2
    assert comm.traffic.collectives == [(1.0, 6.0)]
    assert (comm.clock.seconds["compute"], comm.clock.seconds["communicate"]) == (1.0, 5.0)
    assert comm.clock.cpu_seconds["communicate"] == 0.5
    assert [each.args for each in tracer.exchange.call_args_list] == [
        (Kind.BROADCAST, 0, 1.0, 6.0, 100, 0, 0.5),
        (Kind.BROADCAST, 0, 6.0, 6.0, 40, 1, 0.0),
        (Kind.BROADCAST, 0, 6.0, 6.0, 2, 1, 0.0),
        (Kind.BROADCAST, 0, 6.0, 6.0, 7, 2, 0.0),
    ]


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
