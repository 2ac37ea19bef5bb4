"""Format skypilot: a task of SkyPilot for each run, for `sky launch`."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path
from shlex import join, quote

from orchestrator.export.base import Options
from orchestrator.export.sweep_exporter import PlannedRun, SweepExporter, as_yaml
from orchestrator.shipped import ROOT
from orchestrator.sweeps.load import Sweep
from trainer.launch.launchers import PORT

HOME = "~/shardyard"  # on the machines of the cluster
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
PREPARE = (
    "import json, pathlib; from trainer.spec.registries import DATASETS; "
    "spec = json.loads(pathlib.Path('spec.json').read_text()); "
    "DATASETS.parse(spec['dataset']).prepare(pathlib.Path('data'))"
)


class SkyPilotExporter(SweepExporter):
    """`RUN.yaml`: a task of SkyPilot for each run, its spec in `specs/`, and `trainer/` to install."""

    name = "skypilot"

    def refusal(self, run: PlannedRun, options: Options) -> str | None:
        if run.spec.on_gpu:
            return "transport nccl needs a type of GPU, which a sweep does not name"
        if run.spec.checkpoints:
            return "checkpoints need a directory that outlives the machines"
        return None

    def texts(self, run: PlannedRun, options: Options) -> Mapping[str, str]:
        return {f"{run.name}.yaml": as_yaml(task(run)), f"specs/{run.name}.json": run.spec_json}

    def common_texts(self, sweep: Sweep, runs: list[PlannedRun], options: Options) -> Mapping[str, str]:
        sources = ROOT / "trainer"
        files = [sources / "requirements.txt", *sorted(sources.rglob("*.py"))]
        return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}

    def advice(self, out: Path) -> str:
        return f"start a run with: cd {quote(str(out))} && sky launch -c CLUSTER RUN.yaml"


def task(run: PlannedRun) -> dict[str, object]:
    """One machine for each node, at least as large as the node's limits."""
    spec = run.spec
    return {
        "name": run.name,
        "num_nodes": run.nodes,
        "resources": {
            "cpus": f"{ceil(run.share * spec.cpus)}+",
            "memory": f"{ceil(run.share * spec.memory_mb / 1024)}+",
            "labels": {key.replace("/", "-"): value.lower() for key, value in run.labels.items()},
        },
        "file_mounts": {f"{HOME}/trainer": "./trainer", f"{HOME}/spec.json": f"./specs/{run.name}.json"},
        "envs": run.environment("skypilot"),
        "setup": _setup(run),
        "run": _run(run),
    }


def _setup(run: PlannedRun) -> str:
    """Install what the trainer needs, and download the run's dataset."""
    pip = ".venv/bin/pip install -q"
    lines = [
        "set -e",
        f"cd {HOME}",
        "python3 -m venv .venv",
        f"{pip} --no-deps --extra-index-url {CPU_BUILDS} \"$(grep '^torch==' trainer/requirements.txt)\"",
        f"{pip} -r trainer/requirements.txt",
    ]
    if run.files:
        lines.append(join([".venv/bin/python", "-c", PREPARE]))
    return "\n".join(lines) + "\n"


def _run(run: PlannedRun) -> str:
    """Start the ranks of this machine, for as long as the run may take."""
    lines = [
        "set -e",
        f"cd {HOME}",
        "export SHARDYARD_SPEC=$PWD/spec.json SHARDYARD_DATA=$PWD/data",
        f"export SHARDYARD_OUT=$PWD/results/{quote(f'{run.sweep}/{run.spec.key}')}",
    ]
    if run.ranks_per_node > 1:  # torchrun reads them
        lines.append(
            f"export PET_NNODES=$SKYPILOT_NUM_NODES PET_NODE_RANK=$SKYPILOT_NODE_RANK "
            f"PET_NPROC_PER_NODE={run.ranks_per_node}"
        )
        lines.append(
            f'export PET_MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n 1) PET_MASTER_PORT={PORT}'
        )
    limit = ["timeout", "--kill-after=10", str(run.timeout_s)]
    lines.append(join([*limit, ".venv/bin/python", *run.module]))
    return "\n".join(lines) + "\n"
