"""What a case of the matrix declares: a fault, its moment, a run, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.faults.scene import Scene

LOCAL, DOCKER, SLURM, SWARM, RAY = "local", "docker", "slurm", "swarm", "ray"
Strike = Callable[["Scene"], object]


class Moment(StrEnum):
    """When the fault strikes; the seed varies the moment within it."""

    BEFORE = "before the sweep"
    PENDING = "waiting for room"
    START = "start"
    CONNECTING = "connecting"
    FIRST_STEP = "first step"
    EPOCH = "epoch"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    TEARDOWN = "teardown"
    RESTART = "restart"


class Earlier(Enum):
    """What the same command has done before the one that is judged."""

    NOTHING = 0
    KILLED = 1  # it was killed after a checkpoint
    FINISHED = 2


class Then(StrEnum):
    """What the sweep does next."""

    OK = "the run ends ok"
    GOES_ON = "goes on with the next run"
    STOPS = "stops; the same command resumes"


def _nothing(scene: Scene) -> None: ...


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        words: for the page.
        strike: makes it happen, at the moment of the case.
        arrange: prepares it before the command starts. repair: undoes it before the command runs again.
        needs_root: whether only root can do it. needs_data: whether it needs the files of MNIST.
        alone: whether it disturbs other users of the engine. leaves: whether the next command has to
        remove what it leaves.
    """

    words: str
    strike: Strike
    arrange: Strike = _nothing
    repair: Strike = _nothing
    needs_root: bool = False
    needs_data: bool = False
    alone: bool = False
    leaves: bool = False


def fault(words: str, **options: Any) -> Callable[[Strike], Fault]:
    """Make a strike a fault with these words for the page."""
    return lambda strike: Fault(words, strike, **options)


@dataclass(frozen=True)
class Fact:
    """What a row or the command's output states. words: for the page. pattern: how it is checked."""

    words: str
    pattern: str


@dataclass(frozen=True)
class Verdict:
    """What must follow.

    Attributes:
        status: of the run's row, any of these; empty: it has no row yet.
        named: who is named. Fact NODE stands for the victims: the first node that is named must be one.
        cause: what is said about it. Both are only checked in a row that is not silent.
        within_s: from the fault to the row, or to the end of the command where the sweep stops.
        silent: statuses whose row need not name anything, such as ok after a fault that came too late.
        of_next: whether it is the row of the next run that names and says this.
    """

    status: tuple[str, ...]
    named: Fact | None
    cause: Fact | None
    within_s: float
    then: Then
    exit_code: int
    silent: tuple[str, ...] = ()
    of_next: bool = False


TRAINING: dict[str, Any] = {
    "dataset": {"name": "synthetic", "samples": 240, "test_samples": 64, "noise": 1.0},
    "model": {"name": "mlp", "hidden": [16]},
    "lr": 0.1,
    "timeout_s": 120,
}
GLOO = {"strategy": "all_reduce", "transport": "gloo", "nodes": 2}


def long(base: Mapping[str, Any] = GLOO, **fields: Any) -> dict[str, Any]:
    """A run that lasts longer than any case."""
    return {**TRAINING, "epochs": 10_000, **base, **fields}


def short(base: Mapping[str, Any] = GLOO, **fields: Any) -> dict[str, Any]:
    """A run that ends in seconds, so that it can be resumed."""
    return {**TRAINING, "epochs": 300, **base, **fields}


@dataclass(frozen=True)
class Case:
    """One row of the matrix.

    Attributes:
        run: fields of the run that is disturbed; a healthy run follows it in the sweep.
        victims: the ranks of which the seed chooses `count`; default: all.
        options: of the command.
        again: whether the same command is run again, and must end as if nothing had happened.
        sample: the runtimes on which CI plays it.
        next_run: fields of the healthy run that differ. sweep: further keys of the sweep file.
    """

    name: str
    fault: Fault
    verdict: Verdict
    run: Mapping[str, Any] = field(default_factory=long)
    moment: Moment = Moment.EPOCH
    runtimes: tuple[str, ...] = (LOCAL, DOCKER)
    victims: tuple[int, ...] = ()
    count: int = 1
    options: tuple[str, ...] = ()
    earlier: Earlier = Earlier.NOTHING
    again: bool = False
    sample: tuple[str, ...] = ()
    next_run: Mapping[str, Any] = field(default_factory=dict)
    sweep: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
