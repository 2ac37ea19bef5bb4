"""Format wandb: offline runs of Weights & Biases. Nothing is sent."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from orchestrator.errors import InputError
from orchestrator.export.base import Exported, ResultsExporter, file_name, is_current, mark_current
from orchestrator.export.contents import ExportedRun, ExportedSweep

OFFLINE_RUN = r"offline-run-\d{8}_\d{6}-"


class WandbExporter(ResultsExporter):
    """`wandb/offline-run-*`: an offline run for each run, in a project with the name of the sweep."""

    name = "wandb"
    modules = ("wandb",)

    def check_libraries(self) -> None:
        # Variables of an online run, such as WANDB_MODE and WANDB_RUN_ID, do not apply here.
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            del os.environ[name]
        os.environ.update(WANDB_MODE="offline", WANDB_ERROR_REPORTING="false")
        super().check_libraries()

    def write(self, sweep: ExportedSweep, out: Path) -> Iterator[Exported]:
        import wandb

        try:
            for run in sweep.runs:
                old = [*_directories(out, identifier(run))]
                if len(old) == 1 and is_current(old[0], run):
                    yield Exported(run.label, "unchanged")
                    continue
                for directory in old:  # first, since the name of a directory has no more than the second
                    shutil.rmtree(directory)
                mark_current(_write(run, out), run)
                yield Exported(run.label, "replaced" if old else "added")
        except wandb.Error as error:
            raise InputError(f"{out}: wandb cannot write to it: {error}; choose another --out") from error
        finally:
            wandb.teardown()

    def advice(self, out: Path) -> str:
        return f"nothing was sent; to upload: wandb sync {quote(str(out))}/wandb/offline-run-*"


def identifier(run: ExportedRun) -> str:
    """The id of the run, of which a project has one."""
    return file_name(f"{run.tags['sweep']}-{run.key}")


def _directories(out: Path, name: str) -> Iterator[Path]:
    """The offline runs of this id."""
    for path in (out / "wandb").glob("offline-run-*"):
        if re.fullmatch(OFFLINE_RUN + re.escape(name), path.name):
            yield path


def _write(run: ExportedRun, out: Path) -> Path:
    """Write an offline run. Returns its directory."""
    import wandb

    settings = wandb.Settings(
        mode="offline",
        root_dir=str(out),
        silent=True,
        console="off",
        symlink=False,
        # Facts of this machine and process, which are not those of the run.
        host="",
        username="",
        email="",
        disable_git=True,
        disable_code=True,
        save_code=False,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    started = wandb.init(
        project=run.tags["sweep"],
        id=identifier(run),
        name=run.key,
        tags=[run.tags["status"]],
        config={**run.parameters, "run": dict(run.tags)},
        settings=settings,
    )
    started.define_metric("epoch/*", step_metric="epoch")
    for epoch in run.epochs:
        curves = {f"epoch/{name}": value for name, value in epoch.values.items()}
        started.log({"epoch": epoch.number, **curves, "_timestamp": epoch.time_s})
    started.summary.update(dict(run.metrics))
    started.finish(exit_code=0 if run.ok else 1)
    return Path(started.settings.sync_dir)
