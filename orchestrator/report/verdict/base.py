"""What a report opens with: what to choose, how certain that is, and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.report.model.labels import Workload


@dataclass(frozen=True)
class Option:
    """A configuration to choose. Means as text, with their intervals.

    name: as in findings. shape: its nodes. accuracy, time, speedup: with 95 % intervals; that of a speedup
    is the one by which it was compared with serial. difference: of its accuracy from serial's, with the
    interval by which the two were compared, if they were. sent: bytes that a rank sent. best_accuracy,
    best_time: whether it is claimed to be better than every other configuration that may be chosen, and
    than serial.
    """

    name: str
    shape: str
    accuracy: str
    difference: str
    time: str
    speedup: str
    sent: str
    best_accuracy: bool = False
    best_time: bool = False


@dataclass(frozen=True)
class Verdict:
    """What to choose for a workload.

    headline: one sentence. certainty: what is decided, what is not, and what would decide it. decided:
    whether claims decide the choice. options: what the reader chooses between. shown: what is shown of the
    first option, `the fastest of 5; slower than serial`; empty if that is only whether it is decided.
    """

    workload: Workload
    headline: str
    certainty: str
    decided: bool
    options: tuple[Option, ...] = ()
    shown: str = ""


@dataclass(frozen=True)
class Evidence:
    """One line on what the report rests on.

    topic: a word or two. ok: False if it limits what may be concluded. anchor: of the finding that has the
    full text; empty if there is none.
    """

    topic: str
    text: str
    ok: bool
    anchor: str = ""
