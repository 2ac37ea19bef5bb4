"""epochs.csv: one line per run and epoch, raw numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from statistics import fmean

from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.labels import component_label
from orchestrator.report.model.rows import Row

# Names are a promise to those who read the file with a program: add at the end, never rename.
COLUMNS = (
    "key",
    "strategy",
    "nodes",
    "seed",
    "epoch",
    "train_s",
    "lr",
    "loss",
    "accuracy",
    "test_loss",
    "images_per_s",
)
Line = dict[str, str | int | float | None]


def epochs_csv(comparison: Comparison) -> str:
    """The file's text: the runs that are ok, in the order of the sweep file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in comparison.rows:
        writer.writerows(lines(row))
    return text.getvalue()


def lines(row: Row) -> Iterator[Line]:
    """An epoch each. train_s: seconds from the beginning of training, of the slowest rank. loss: of the
    ranks' last batches, accuracy and test_loss: of their models, means over ranks."""
    certificate = row.result.certificate
    before_s = 0.0
    for epoch in range(1, (row.result.last_epoch or 0) + 1) if row.ok else ():
        points = [point for point in row.result.epochs if point.epoch == epoch]
        losses = [point.loss for point in points if point.loss is not None]
        samples = (
            sum(part.samples for part in certificate.parts if part.epoch == epoch) if certificate else 0
        )
        train_s = max(point.train_s for point in points)
        yield {
            "key": row.key,
            "strategy": component_label(row.run, "strategy"),
            "nodes": row.run.nodes,
            "seed": row.seed,
            "epoch": epoch,
            "train_s": train_s,
            "lr": points[0].lr,
            "loss": fmean(losses) if losses else None,
            "accuracy": fmean(point.accuracy for point in points),
            "test_loss": fmean(point.test_loss for point in points),
            "images_per_s": samples / (train_s - before_s) if samples and train_s > before_s else None,
        }
        before_s = train_s
