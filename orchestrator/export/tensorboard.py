"""Format tensorboard: event files with curves, results and hyperparameters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from orchestrator.export.base import Exported, ResultsExporter
from orchestrator.export.contents import ExportedRun, ExportedSweep
from orchestrator.results.store import write_atomic
from trainer.core.regular_files import read_regular

MARK = "shardyard.sha256"  # the digest of the run that was exported into the file's directory
EVENT_FILES = "events.out.tfevents.*"


class TensorBoardExporter(ResultsExporter):
    """`SWEEP/KEY/`: the event file of each run, with its parameters as hyperparameters.

    Curves are `epoch/*` and results `result/*`, in single precision: TensorBoard does not show others.
    """

    name = "tensorboard"
    modules = ("tensorboard", "torch.utils.tensorboard")

    def write(self, sweep: ExportedSweep, out: Path) -> Iterator[Exported]:
        for run in sweep.runs:
            directory = out / file_name(sweep.name) / file_name(run.key)
            if is_current(directory, run):
                yield Exported(run.label, "unchanged")
                continue
            old = [*directory.glob(EVENT_FILES)]
            for file in (*directory.glob(MARK), *old):
                file.unlink()
            _write_events(run, sweep, directory)
            mark_current(directory, run)
            yield Exported(run.label, "replaced" if old else "added")

    def advice(self, out: Path) -> str:
        return f"open with: tensorboard --logdir {quote(str(out))}"


def file_name(text: str) -> str:
    """The text as the name of a file, whatever is in it."""
    return re.sub(r"[^\w-]", "_", text, flags=re.ASCII)


def is_current(directory: Path, run: ExportedRun) -> bool:
    """Whether the directory has a complete export of exactly this run."""
    mark = directory / MARK
    return mark.exists() and read_regular(mark) == run.digest.encode()


def mark_current(directory: Path, run: ExportedRun) -> None:
    """Note that the export into the directory is complete."""
    write_atomic(directory / MARK, run.digest)


def _write_events(run: ExportedRun, sweep: ExportedSweep, directory: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    last = run.epochs[-1].number if run.epochs else 0
    with SummaryWriter(str(directory)) as writer:
        # TensorBoard reads from one run which columns its table has, so each run names those of all.
        columns = {name: value for each in sweep.runs for name, value in _hyperparameters(each).items()}
        metrics = {f"result/{name}": value for each in sweep.runs for name, value in each.metrics.items()}
        table, _, _ = hparams(columns, metrics)
        _, start, end = hparams(_hyperparameters(run), {})
        for summary in (table, start, end):
            writer.file_writer.add_summary(summary, walltime=run.started_s)
        for name, text in run.tags.items():
            writer.add_text(name, text, last, run.ended_s)
        for epoch in run.epochs:
            for name, value in epoch.values.items():
                writer.add_scalar(f"epoch/{name}", value, epoch.number, epoch.time_s)
        for name, value in run.metrics.items():
            writer.add_scalar(f"result/{name}", value, last, run.ended_s)


def _hyperparameters(run: ExportedRun) -> dict[str, str | int | float | bool]:
    return {**run.parameters, "status": run.tags["status"], "sweep": run.tags["sweep"]}
