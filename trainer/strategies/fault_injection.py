"""Fault injection: no training; a rank crashes, is killed, stalls or floods its log."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainer.core.strategy import Strategy

if TYPE_CHECKING:
    from trainer.core.context import NodeContext
    from trainer.core.events import EventWriter
    from trainer.core.result import TrainResult
    from trainer.training.task import Task


class InjectedFault(Exception):
    """The failure that was asked for."""


class FaultInjection(Strategy):
    """Loads no data, no model and no torch, and connects to nobody.

    ok: works for `work_s` and ends. crash: rank `rank` raises. kill: it is gone without a word, as
    after the kernel's out-of-memory killer. stall: it never ends. flood: it prints `lines` log lines.
    """

    transports: ClassVar[tuple[str, ...]] = ("memory", "gloo", "mpi", "rpc")
    uses_partition: ClassVar[bool] = False
    trains: ClassVar[bool] = False

    fault: Literal["ok", "crash", "kill", "stall", "flood"] = "ok"
    rank: int = Field(0, ge=0, description="which rank misbehaves; the others behave")
    work_s: float = Field(0.0, ge=0, description="seconds each rank pretends to work first")
    lines: int = Field(10_000, ge=1, le=10_000_000, description="log lines of a flood")

    def train(self, context: NodeContext, task: Task, events: EventWriter) -> TrainResult:
        from trainer.core.clock import Clock
        from trainer.core.result import TrainResult

        clock = Clock()
        events.write("train_start", parameters=0)
        clock.start()
        time.sleep(self.work_s)
        if context.rank == self.rank:
            self._misbehave()
        clock.stop()
        events.write("train_end")
        return TrainResult(
            steps=0,
            samples=0,
            train_s=clock.train_s,
            work_cpu_s=0.0,
            seconds=clock.seconds,
            bytes_sent=0.0,
        )

    def _misbehave(self) -> None:
        match self.fault:
            case "crash":
                raise InjectedFault("fault_injection crashed, as asked")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stall":
                while True:
                    time.sleep(3600)
            case "flood":
                for line in range(self.lines):
                    sys.stdout.write(f"fault_injection line {line}\n")
