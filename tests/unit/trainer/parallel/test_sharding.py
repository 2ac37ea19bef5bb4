"""Mistakes in the time and traffic of replicas whose state torch shards. Integration tests train them."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from tests.unit.conftest import FakeTime
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock
from trainer.core.trace import Kind


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # in torch's own code
def test_the_broadcasts_of_zero1_are_a_collective_whose_first_record_has_the_time() -> None:
    from trainer.parallel.sharding import BroadcastSpan

    wall, cpu = FakeTime(0.0), FakeTime(0.0)
    comm = MemoryCommunicator(1, 3, Clock(wall, cpu), ThreadGroup(3))
    comm.clock.start()
    comm.clock.tracer = tracer = MagicMock(full=False, on_own_thread=False, group=lambda _: 0)
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
