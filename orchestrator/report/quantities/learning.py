"""Learning rates, epochs, the time to a target accuracy, and the noise of gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from orchestrator.report import formats
from orchestrator.report.formats import ABSENT, count
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities.quantity import Bounds, Quantity
from orchestrator.report.statistics.spread import geometric_interval
from trainer.spec.noise_scale import unmeasured_reason

NOT_REACHED = "not reached"


def learning_rates(row: Row) -> list[float]:
    """The learning rate of each epoch, as used; empty for older results."""
    points = sorted(row.result.epochs, key=lambda point: point.epoch) if row.ok else []
    return [point.lr for point in points if point.lr is not None]


def last_epoch(row: Row) -> int | None:
    """The number of epochs that the run trained for."""
    return row.result.last_epoch if row.ok else None


def same_epochs(rows: Iterable[Row]) -> bool:
    """Whether all trained for the same number of epochs; otherwise their times do not compare."""
    return len({last_epoch(row) for row in rows}) < 2


def updates(row: Row) -> int | None:
    """Updates of the model: steps of the rank that took most, or of all ranks if they share a model."""
    if not row.ok:
        return None
    steps = [rank.steps for rank in row.result.ranks]
    return sum(steps) if row.run.strategy.shares_model else max(steps, default=None)


def target_reached(row: Row) -> bool | None:
    """Whether the run reached its target accuracy; None unless it is ok and had one."""
    if row.run.target_accuracy is None or not row.ok:
        return None
    return any(point.target_reached for point in row.result.epochs)


def seeds_at_target(group: Group) -> tuple[int, int]:
    """The number of ok seeds that reached their target accuracy, and the number of ok seeds."""
    return sum(bool(target_reached(row)) for row in group.ok_rows), len(group.ok_rows)


def _time_to_target_s(row: Row) -> float | None:
    """The time to the end of the first of the consecutive epochs that reached the target."""
    if not row.timed or not target_reached(row):
        return None
    first = (last_epoch(row) or 0) - row.run.patience + 1
    return max(point.train_s for point in row.result.epochs if point.epoch == first)


def _rounds_to_target(row: Row) -> float | None:
    """The rounds until the end of the first of the consecutive epochs that reached the target."""
    rounds, steps = row.run.strategy.rounds, updates(row)
    if rounds is None or rounds.steps is None or steps is None or not target_reached(row):
        return None
    epochs = last_epoch(row) or 1
    return ceil(steps * (epochs - row.run.patience + 1) / epochs / rounds.steps)


def _not_reached(row: Row) -> str:
    return NOT_REACHED if target_reached(row) is False else ABSENT


def _seeds_that_reached(group: Group, span: str) -> str:
    """The range, with the number of seeds if not all of them reached the target."""
    reached, number = seeds_at_target(group)
    some = f"{reached} of {count(number, 'seed')}" if reached < number else ""
    return ", ".join(filter(None, [span, some]))


def _from_first(group: Group, span: str) -> str:
    """The rate of the first epoch, if it is another one."""
    rates = learning_rates(group.ok_rows[0])
    return f"from {rates[0]:g}" if rates and rates[0] != rates[-1] else ""


def _rates_differ(rows: Sequence[Row]) -> bool:
    """Whether any run used another rate than the workload's `lr`."""
    return any(rate != row.run.lr for row in rows for rate in learning_rates(row))


def _stopped_early(rows: Sequence[Row]) -> bool:
    return any(last_epoch(row) not in (None, row.run.epochs) for row in rows)


def _noise_and_signal(row: Row) -> tuple[float, float] | None:
    """The two sums over all ranks and steps; None if they were not measured."""
    parts = [(point.gradient_noise, point.gradient_signal) for point in row.result.epochs]
    known = [(noise, signal) for noise, signal in parts if noise is not None and signal is not None]
    if not known or len(known) < len(parts):
        return None
    return sum(noise for noise, _ in known), sum(signal for _, signal in known)


def _noise_scale(row: Row) -> float | None:
    noise, signal = _noise_and_signal(row) or (0.0, 0.0)
    return noise / signal if noise > 0 and signal > 0 else None


def _no_noise_scale(row: Row) -> str:
    """Why there is none, for a table."""
    beyond = "mean gradient not above its noise" if _noise_and_signal(row) else ABSENT
    return unmeasured_reason(row.run) or beyond


def _noise_scale_interval(group: Group) -> Bounds | None:
    """On new seeds; None if some seed has no noise scale."""
    values = [Learning.noise_scale_samples.of(row) for row in group.ok_rows]
    known = [value for value in values if value is not None]
    return geometric_interval(known) if len(known) == len(values) else None


class Learning:
    """Epochs, rates, the way to the target, and the noise on it."""

    noise_scale_samples = Quantity(
        formats.significant,
        _noise_scale,
        "Noise scale, samples",
        ratio=True,
        interval=_noise_scale_interval,
        missing=_no_noise_scale,
        shown_for=lambda rows: any(row.run.noise_scale for row in rows),
    )

    rounds_to_target = Quantity(
        formats.whole,
        _rounds_to_target,
        "Rounds to target accuracy",
        ratio=True,
        detail=_seeds_that_reached,
        missing=_not_reached,
    )
    time_to_target_s = Quantity(
        formats.seconds,
        _time_to_target_s,
        "Time to target accuracy",
        ratio=True,
        timed=True,
        detail=_seeds_that_reached,
        missing=_not_reached,
    )
    lr_first_epoch = Quantity(formats.short, lambda row: next(iter(learning_rates(row)), None))
    lr_last_epoch = Quantity(
        "{:g}".format,
        lambda row: next(reversed(learning_rates(row)), None),
        "Learning rate",
        detail=_from_first,
        shown_for=_rates_differ,
    )
    epochs_trained = Quantity(formats.short, last_epoch, "Epochs", shown_for=_stopped_early)
