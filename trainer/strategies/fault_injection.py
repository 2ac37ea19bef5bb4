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

    def train(self, session: BareSession) -> None:
        session.start()
        time.sleep(self.work_s)
        if session.rank == self.rank:
            self._misbehave()

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
