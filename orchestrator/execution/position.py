"""Where a run is in its training, and how long a sweep still takes. Pure: displays show it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean

from orchestrator.results.times import duration
from trainer.core.events import Event


@dataclass
class TimeLeft:
    """Estimates the remaining time from the runs so far.

    staged: whether `total` counts the runs of a stage, of which a budget may leave out some.
    """

    total: int
    seconds: list[float] = field(default_factory=list)
    staged: bool = False

    def estimate(self, number: int, done: float = 0.0, elapsed_s: float = 0.0) -> str:
        """Time left in run `number` (from 1); empty if nothing is known yet.

        Before any run has ended, the running one shows how long a run takes.

        Args:
            done: share of the run's training that is done, 0 … 1.
            elapsed_s: seconds since the run started.
        """
        of_run = fmean(self.seconds) if self.seconds else elapsed_s / done if done else 0.0
        if not of_run:
            return ""
        # A run that takes longer than others has no time left, rather than less than none.
        running = (1 - done) * of_run if done else max(of_run - elapsed_s, 0.0)
        left = f"about {duration(running + (self.total - number) * of_run)} left"
        return f"at most {left} of this stage" if self.staged else left


@dataclass(frozen=True)
class Position:
    """Where a rank is in its training, as text; what an event does not say is empty.

    done: share of its epochs, 0 … 1. accuracy: that on the test split, after the last evaluated epoch.
    """

    done: float
    epoch: str
    loss: str = ""
    accuracy: str = ""
    throughput: str = ""


STARTING = Position(0.0, "starting")


def position(event: Event, before: Position = STARTING) -> Position | None:
    """Where the rank of an event is, or None. before: where it was. A parameter server has no loss."""
    fields = event.fields
    if event.kind == "step":
        steps = (fields["epoch"] - 1) * fields["steps"] + fields["step"]
        return Position(
            steps / (fields["epochs"] * fields["steps"]),
            f"{fields['epoch']}/{fields['epochs']} step {fields['step']}/{fields['steps']}",
            f"{fields['loss']:.3f}",
            before.accuracy,
            f"{fields['samples_per_s']:,.0f}",
        )
    if event.kind == "epoch":
        return Position(
            fields["epoch"] / fields["epochs"],
            f"{fields['epoch']}/{fields['epochs']} done",
            "" if fields["loss"] is None else f"{fields['loss']:.3f}",
            f"{fields['accuracy']:.1%}",
            before.throughput,
        )
    return None


def share_done(positions: Iterable[Position]) -> float:
    """The share of a run's training that is done, 0 … 1: the mean over its ranks."""
    return fmean([at.done for at in positions] or [0.0])
