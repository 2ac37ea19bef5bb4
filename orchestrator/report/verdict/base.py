"""What a report opens with: what to choose, how certain that is, and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.report.formats import ABSENT
from orchestrator.report.model.labels import Workload

UNTIMED = "The machine was busy, so times are not compared."
MARKS = {"ok": "✓", "limited": "!", "inapplicable": "–"}


@dataclass(frozen=True)
class Option:
    """A configuration to choose. Means as text, with their intervals.

    name: its name in findings. shape: its nodes. accuracy, time, speedup: the means with 95% intervals;
    that of a speedup is the one by which it was compared with serial. difference: the difference of its
    accuracy from serial's, with the interval by which the two were compared, if they were. sent:
    bytes that a rank sent. chance: the probability that it is within the tolerance of the best. samples:
    those of a step, `4 × 32`. state: `dropped` if others got more seeds, `reference` if others are compared
    with it. first: whether it is the first that the headline names. note: whose accuracy counts for it, if
    that is another one's.
    """

    name: str
    shape: str
    accuracy: str
    difference: str
    time: str
    speedup: str
    sent: str
    chance: str = ABSENT
    seeds: int = 0
    samples: str = ""
    state: Literal["", "dropped", "reference"] = ""
    first: bool = False
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """What to choose for a workload.

    headline: one sentence. certainty: how sure it is, and what it may cost. decided: whether it chooses.
    options: those that the reader chooses between. shown: how sure the first option is, `97% sure`; empty
    if that is only whether it is decided. better: how a better option differs from another by more than the
    tolerance, `over 5% faster`.
    """

    workload: Workload
    headline: str
    certainty: str
    decided: bool
    options: tuple[Option, ...] = ()
    shown: str = ""
    better: str = ""


@dataclass(frozen=True)
class Evidence:
    """One line on what the report rests on.

    topic: a word or two. ok: False if it limits what may be concluded; None if there is nothing to check.
    anchor: that of the finding with the full text; empty if there is none.
    """

    topic: str
    text: str
    ok: bool | None
    anchor: str = ""

    @property
    def state(self) -> str:
        """`ok`, `limited` or `inapplicable`."""
        return "inapplicable" if self.ok is None else "ok" if self.ok else "limited"

    @property
    def mark(self) -> str:
        return MARKS[self.state]
