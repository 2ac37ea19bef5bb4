"""Fault injection: no training; a rank crashes, is killed, stalls or floods its log."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import ClassVar, Literal

from pydantic import Field

from trainer.core.strategy import Strategy
from trainer.training.bare_session import BareSession


class InjectedFault(Exception):
    """The requested failure."""


class FaultInjection(Strategy):
    """Fail on purpose, without training, to test that failures are reported.

    Loads no data, model or torch, and connects to no other rank. ok: sleeps for `work_s` and ends.
    crash: rank `rank` raises an exception. exit: it ends with exit code 0 without a report. kill: it
    dies by SIGKILL, as after an out-of-memory kill. stall: it never ends. flood: it prints `lines` log
    lines.
    """

    transports: ClassVar[tuple[str, ...]] = ("memory", "gloo", "mpi", "rpc")
    virtual: ClassVar[bool] = False
    uses_partition: ClassVar[bool] = False
    trains: ClassVar[bool] = False
    untraced: ClassVar[str | None] = "it does not train"

    fault: Literal["ok", "crash", "exit", "kill", "stall", "flood"] = "ok"
    rank: int = Field(0, ge=0, description="the rank with the fault")
    work_s: float = Field(0.0, ge=0, description="seconds that each rank sleeps first")
    lines: int = Field(10_000, ge=1, le=10_000_000, description="log lines of a flood")

    def train(self, session: BareSession) -> None:
        session.start()
        time.sleep(self.work_s)
        if session.rank == self.rank:
            self._inject()

    def _inject(self) -> None:
        match self.fault:
            case "crash":
                raise InjectedFault("crash requested")
            case "exit":
                os._exit(0)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stall":
                while True:
                    time.sleep(3600)
            case "flood":
                for line in range(self.lines):
                    sys.stdout.write(f"fault_injection line {line}\n")
