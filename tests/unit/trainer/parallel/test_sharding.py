"""Mistakes in the time and traffic of replicas whose state torch shards. Integration tests train them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.conftest import FakeTime
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock
from trainer.core.trace import Kind


class Tracer:
    """Records exchanges. Other calls do nothing."""

    full = on_own_thread = False

    def __init__(self) -> None:
        self.exchanges: list[tuple[Any, ...]] = []

    def group(self, ranks: Any) -> int:
        return 0

    def exchange(self, *record: Any) -> None:
        self.exchanges.append(record)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # in torch's own code
@pytest.mark.parametrize("traced", [False, True])
def test_the_broadcasts_of_zero1_are_a_collective_whose_first_record_has_the_time(traced: bool) -> None:
    from trainer.parallel.sharding import BroadcastSpan

    wall, cpu = FakeTime(0.0), FakeTime(0.0)
    comm = MemoryCommunicator(1, 3, Clock(wall, cpu), ThreadGroup(3))
    tracer: Any = Tracer()
    comm.clock.start()
    if traced:
        comm.clock.tracer = tracer
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
    records = [
        (Kind.BROADCAST, 0, 1.0, 6.0, 100, 0, 0.5),
        (Kind.BROADCAST, 0, 6.0, 6.0, 40, 1, 0.0),
        (Kind.BROADCAST, 0, 6.0, 6.0, 2, 1, 0.0),
        (Kind.BROADCAST, 0, 6.0, 6.0, 7, 2, 0.0),
    ]
    assert tracer.exchanges == (records if traced else [])
