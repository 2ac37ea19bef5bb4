"""Fault injection: a rank does to itself what the spec's `faults` say about its node."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Protocol

from trainer.core.clock import WORK, Clock
from trainer.core.context import NodeContext
from trainer.core.event_schema import Injected
from trainer.core.events import EventWriter
from trainer.core.record import checked, parse_object
from trainer.core.regular_files import read_below, why_unread
from trainer.spec.faults import CutOff, Drop, Fault, Kill, Pause, Slow
from trainer.spec.run_spec import RunSpec
from trainer.training.packet_loss import PacketLoss, connections, service_ports
from trainer.training.pause import pause


class FaultError(Exception):
    """A fault cannot be injected. The message names it and says why."""


class Means(Protocol):
    """How faults are brought about."""

    def kill(self) -> None:
        """End this process at once."""

    def pause(self, seconds: float) -> None:
        """Stop this process for so many seconds. Raises OSError."""

    def sleep(self, seconds: float) -> None:
        """Let the calling thread sleep."""

    def lose_packets(self, share: float) -> Callable[[], None]:
        """Lose a share of the packets from other ranks. Returns what ends it. Raises OSError."""


class RealMeans:
    """Signals to this process, and options of its sockets."""

    def __init__(self, context: NodeContext) -> None:
        self._rendezvous = context.rendezvous

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def pause(self, seconds: float) -> None:
        pause(seconds)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def lose_packets(self, share: float) -> Callable[[], None]:
        """Sockets that are opened later lose no packets: transports connect before training starts."""
        found = connections(service_ports(self._rendezvous, os.environ))
        if not found:
            raise OSError("this process has no TCP connection to another rank")
        loss = PacketLoss(found)
        try:
            loss.start(share)
        except OSError:
            loss.stop()
            raise
        return loss.stop


class FaultInjector:
    """The faults of one rank. Each fires once per run, also if its ranks are restarted or the run resumes.

    Before a fault acts, the rank creates a file that marks it as fired, in the directory of the
    checkpoints if there are any, and writes an event. A rank that is started again repeats the events of
    earlier faults, and what lasts until the end of training is in force again from the start.
    """

    def __init__(
        self,
        context: NodeContext,
        spec: RunSpec,
        events: EventWriter,
        clock: Clock,
        means: Means | None = None,
    ) -> None:
        """means: how to bring faults about; None: for real."""
        node = context.rank // spec.processes_per_node
        self._waiting = {number: fault for number, fault in enumerate(spec.faults) if fault.node == node}
        self._context, self._events, self._clock = context, events, clock
        self._means = means or RealMeans(context)
        self._started_at = 0.0
        self._epoch = self._steps = 0
        self._slow: list[tuple[float, float]] = []  # factor, and when it ends on the clock
        self._work_before: float | None = None
        self._timers: list[threading.Timer] = []
        self._restore: list[Callable[[], None]] = []
        self._error: FaultError | None = None  # of a timer's thread, raised in the rank's own
        self._lock = threading.Lock()
        self._over = False

    def started(self, steps: int) -> None:
        """Training starts. steps: the steps that the rank had taken at the checkpoint, or 0."""
        self._started_at, self._steps = self._clock.wall(), steps
        for number, fault in [*self._waiting.items()]:
            if (record := self._record_of(number)) is not None:
                del self._waiting[number]
                fields = record.model_dump() | {"earlier": True}
                self._events.write_quietly("fault", **fields)
                if fault.effect.lasting:
                    self._act(number, fault)
            elif fault.at.second is not None:
                self._after(fault.at.second, partial(self._fire, number, fault))

    def at_epoch(self, epoch: int) -> None:
        """An epoch starts. Raises FaultError."""
        self._epoch = epoch
        self._fire_where(lambda fault: fault.at.epoch == epoch)

    def before_step(self, steps: int) -> None:
        """The rank has taken so many steps of the run, and takes the next one. Raises FaultError."""
        self._steps = steps
        self._fire_where(lambda fault: fault.at.drawn_step == steps + 1)
        if self._slow and self._work_before is None:
            self._work_before = self._work_s()

    def after_step(self) -> None:
        """The step has ended; the steps of a slow node last longer.

        The added time has no CPU time, so it ends up in phase cpu_contention, as that of a node with a
        small CPU quota.
        """
        self._steps += 1
        if self._work_before is None:
            return
        now = self._clock.wall()
        self._slow = [(factor, until) for factor, until in self._slow if now < until]
        if self._slow:
            factor = prod(factor for factor, _ in self._slow)
            with self._clock.phase("compute"):
                self._means.sleep((factor - 1) * (self._work_s() - self._work_before))
        self._work_before = self._work_s() if self._slow else None

    def ended(self) -> None:
        """Training has ended, and with it all faults. Raises FaultError."""
        with self._lock:
            self._over = True
        for timer in self._timers:
            timer.cancel()
        for restore in self._restore:
            restore()
        self._slow = []
        if self._error:
            raise self._error

    def _fire_where(self, due: Callable[[Fault], bool]) -> None:
        if self._error:
            raise self._error
        for number, fault in [*self._waiting.items()] if self._waiting else ():
            if due(fault):
                self._fire(number, fault)

    def _fire(self, number: int, fault: Fault) -> None:
        """Mark and report the fault, then bring it about."""
        self._waiting.pop(number, None)
        second = self._clock.wall() - self._started_at
        record = Injected(
            fault=number, action=fault.action, epoch=self._epoch, step=self._steps, second=second
        )
        if self._mark(number, record):
            self._events.write("fault", **record.model_dump())
            self._act(number, fault)

    def _act(self, number: int, fault: Fault) -> None:
        try:
            match fault.effect:
                case Kill():
                    self._means.kill()
                case Pause(seconds=seconds):
                    self._means.pause(seconds)
                case Slow(factor=factor, seconds=lasts):
                    until = float("inf") if lasts is None else self._clock.wall() + lasts
                    self._slow.append((factor, until))
                case CutOff(seconds=lasts):
                    self._lose_packets(1.0, lasts)
                case Drop(share=share, seconds=lasts):
                    self._lose_packets(share, lasts)
        except OSError as error:
            raise FaultError(f"fault {number}, {fault.title}, is not possible: {error}") from error

    def _lose_packets(self, share: float, seconds: float | None) -> None:
        restore = self._means.lose_packets(share)
        self._restore.append(restore)
        if seconds is not None:
            self._after(seconds, restore)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` in so many seconds in a thread of its own, unless training has ended."""

        def run() -> None:
            with self._lock:
                if self._over:
                    return
            try:
                act()
            except FaultError as error:
                self._error = error

        timer = threading.Timer(seconds, run)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _work_s(self) -> float:
        """Seconds that the rank has spent working so far."""
        seconds = self._clock.state()["seconds"]
        return sum(seconds[phase] for phase in WORK)

    def _path(self, number: int) -> Path | None:
        """The file that marks a fault of this rank as fired; None if the run keeps no files."""
        directory = self._context.checkpoint_dir or self._context.out_dir
        return directory / f"fault-{number}-rank-{self._context.rank}.json" if directory else None

    def _record_of(self, number: int) -> Injected | None:
        """What the rank reported about a fault that has fired. Raises FaultError if it cannot be read."""
        path = self._path(number)
        if path is None:
            return None
        try:
            return checked(Injected, parse_object(read_below(path.parent, path.name), path.name), path.name)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise FaultError(f"{path}: cannot be read ({why_unread(error)}); remove it") from error

    def _mark(self, number: int, record: Injected) -> bool:
        """Mark a fault as fired. Returns False if it had fired. Raises FaultError."""
        path = self._path(number)
        if path is None:
            return True
        temporary = path.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps(record.model_dump()), encoding="utf-8")
            os.link(temporary, path)  # does not replace an existing file, and is never seen half-written
            temporary.unlink()
        except FileExistsError:
            return False
        except OSError as error:
            raise FaultError(f"{path}: cannot be written: {error.strerror}") from error
        return True
