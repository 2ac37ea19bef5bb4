"""Format mlflow: a database of runs, without a server."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, TypeVar

from orchestrator.errors import InputError
from orchestrator.export.base import Exported, ResultsExporter
from orchestrator.export.contents import ExportedRun, ExportedSweep
from orchestrator.report.model.labels import as_written

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

T = TypeVar("T")

DIGEST = "shardyard.digest"  # the tag with the digest of what was exported
MAX_BATCH = 100  # parameters, tags or metrics that MLflow takes at once


class MlflowExporter(ResultsExporter):
    """`mlflow.db`: a database with the sweep as an experiment."""

    name = "mlflow"
    modules = ("mlflow", "sqlalchemy", "alembic")

    def check_libraries(self) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # is read when mlflow is imported
        super().check_libraries()
        for name in ("mlflow", "alembic"):  # which report every step of creating the database
            logging.getLogger(name).setLevel(logging.WARNING)

    def write(self, sweep: ExportedSweep, out: Path) -> Iterator[Exported]:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            client = MlflowClient(tracking_uri=store(out))
            experiment = _experiment(client, sweep.name, out)
            known = _known_runs(client, experiment)
            for run in sweep.runs:
                yield _export(client, experiment, run, known.get(run.key, []))
        except (MlflowException, SQLAlchemyError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(f"{out}: MLflow cannot write to it: {reason}; choose another --out") from error

    def advice(self, out: Path) -> str:
        return f"open with the package mlflow: mlflow ui --backend-store-uri {quote(store(out))}"


def store(out: Path) -> str:
    """The tracking URI. Raises InputError for a path that no such URI can have."""
    database = str(out.resolve() / "mlflow.db")
    if "?" in database:  # where the options of a URI begin
        raise InputError(f"{out}: MLflow takes no path with a question mark; choose another --out")
    return f"sqlite:///{database}"


def _experiment(client: MlflowClient, name: str, out: Path) -> str:
    """The id of the experiment of this name, which is created if there is none."""
    found = client.get_experiment_by_name(name)
    if found is None:
        return str(client.create_experiment(name, (out.resolve() / "artifacts").as_uri()))
    return str(found.experiment_id)


def _known_runs(client: MlflowClient, experiment: str) -> dict[str, list[Run]]:
    """The runs of the experiment by key."""
    known: dict[str, list[Run]] = {}
    token = None
    while True:
        page = client.search_runs([experiment], page_token=token)
        for run in page:
            known.setdefault(run.data.tags.get("key", ""), []).append(run)
        if not (token := page.token):
            return known


def _export(client: MlflowClient, experiment: str, run: ExportedRun, old: Sequence[Run]) -> Exported:
    if [each.data.tags.get(DIGEST) for each in old] == [run.digest]:
        return Exported(run.label, "unchanged")
    _create(client, experiment, run)
    for each in old:
        client.delete_run(each.info.run_id)
    return Exported(run.label, "replaced" if old else "added")


def _create(client: MlflowClient, experiment: str, run: ExportedRun) -> None:
    from mlflow.entities import Param, RunTag

    start, end = round(run.started_s * 1000), round(run.ended_s * 1000)
    created = client.create_run(experiment, start, {"key": run.key}, run.key)
    name = created.info.run_id
    parameters = [Param(_allowed(key), as_written(value)) for key, value in run.parameters.items()]
    for params in _batches(parameters):
        client.log_batch(name, params=params)
    for tags in _batches([RunTag(key, text) for key, text in run.tags.items()]):
        client.log_batch(name, tags=tags)
    for metrics in _batches([*_metrics(run)]):
        client.log_batch(name, metrics=metrics)
    client.set_terminated(name, "FINISHED" if run.ok else "FAILED", end)
    client.set_tag(name, DIGEST, run.digest)  # last, so that an interrupted export is repeated


def _metrics(run: ExportedRun) -> Iterator[Metric]:
    from mlflow.entities import Metric

    for epoch in run.epochs:
        for name, value in epoch.values.items():
            yield Metric(f"epoch/{name}", value, round(epoch.time_s * 1000), epoch.number)
    last = run.epochs[-1].number if run.epochs else 0
    for name, value in run.metrics.items():
        yield Metric(name, value, round(run.ended_s * 1000), last)


def _allowed(name: str) -> str:
    """The name of a parameter without what MLflow refuses, such as the `>` of `link.pairs.0>1`."""
    return re.sub(r"[^\w.:/ -]", "_", name)


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), MAX_BATCH):
        yield items[start : start + MAX_BATCH]
