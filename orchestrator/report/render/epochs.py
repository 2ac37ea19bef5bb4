"""The epochs of a run, and the columns of epochs.csv."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from orchestrator.report.model.labels import component_label
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities.data_partition import NO_CERTIFICATE
from orchestrator.report.quantities.times import NOT_RECORDED
from orchestrator.report.render.tables import Column, csv_column
from orchestrator.results.records import EpochPoint


@dataclass(frozen=True)
class Epoch:
    """An epoch of an ok run. points: its ranks'. before_s: wall time before it. samples: all ranks'."""

    row: Row
    number: int
    points: list[EpochPoint]
    before_s: float
    samples: int

    @property
    def end_s(self) -> float:
        return max(point.train_s for point in self.points)

    @property
    def loss(self) -> float | None:
        losses = [point.loss for point in self.points if point.loss is not None]
        return fmean(losses) if losses else None

    @property
    def samples_per_s(self) -> float | None:
        took_s = self.end_s - self.before_s
        return self.samples / took_s if self.samples and took_s > 0 else None


def epochs_of(row: Row) -> Iterator[Epoch]:
    """The epochs of a run on the row's clock, in order; none unless it is ok."""
    if not row.ok:
        return
    points: dict[int, list[EpochPoint]] = {}
    for point in row.result.epochs:
        points.setdefault(point.epoch, []).append(point)
    samples: dict[int, int] = {}
    for part in row.result.certificate.parts if row.result.certificate else ():
        samples[part.epoch] = samples.get(part.epoch, 0) + part.samples
    before_s = 0.0
    for number in sorted(points):
        epoch = Epoch(row, number, points[number], before_s, samples.get(number, 0))
        yield epoch
        before_s = epoch.end_s


# Programs read the file: add columns at the end, and do not rename them.
EPOCH_COLUMNS: tuple[Column[Epoch], ...] = (
    csv_column("key", lambda epoch: epoch.row.key, "the run's key"),
    csv_column("strategy", lambda epoch: component_label(epoch.row.run, "strategy"), "as in results.csv"),
    csv_column("nodes", lambda epoch: epoch.row.run.nodes, "as in results.csv"),
    csv_column("seed", lambda epoch: epoch.row.seed, "as in results.csv"),
    csv_column("epoch", lambda epoch: epoch.number, "counted from 1"),
    csv_column(
        "train_s",
        lambda epoch: epoch.end_s,
        "wall time from the start of training until all ranks have finished the epoch, without evaluation",
        unit="s",
    ),
    csv_column("lr", lambda epoch: epoch.points[0].lr, "the learning rate of the epoch", NOT_RECORDED),
    csv_column("loss", lambda epoch: epoch.loss, "loss of each rank's last batch, mean over ranks"),
    csv_column(
        "accuracy",
        lambda epoch: fmean(point.accuracy for point in epoch.points),
        "test accuracy of the model evaluated after the epoch; mean if each rank evaluates its own",
        unit="0 … 1",
    ),
    csv_column(
        "test_loss",
        lambda epoch: fmean(point.test_loss for point in epoch.points),
        "loss of the same on the test split",
    ),
    csv_column(
        "samples_per_s",
        lambda epoch: epoch.samples_per_s,
        "samples of all ranks in the epoch / its time",
        NO_CERTIFICATE,
        "1/s",
    ),
)
