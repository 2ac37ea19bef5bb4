"""Format kubernetes: an Indexed Job with a headless Service for each run, for `kubectl apply -k`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from shlex import quote
from typing import Any

from orchestrator.export.base import Options
from orchestrator.export.pods import (
    DATA,
    RESULTS,
    SPEC,
    Manifest,
    directory,
    in_memory,
    kustomization,
    manifest,
    network_policy,
    pod,
    selector,
    volumes,
)
from orchestrator.export.sweep_exporter import PlannedRun, SweepExporter
from orchestrator.sweeps.load import Sweep
from trainer.launch.launchers import PORT

TORCHRUN = "torch.distributed.run"
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
TMP_MB = 256


class KubernetesExporter(SweepExporter):
    """`RUN/`: an Indexed Job, a headless Service, a ConfigMap and a NetworkPolicy for each run."""

    name = "kubernetes"

    def refusal(self, run: PlannedRun, options: Options) -> str | None:
        if reason := super().refusal(run, options):
            return reason
        spec = run.spec
        needs: dict[str, Any] = {
            "link": spec.has_links,
            "node_speed": spec.slower_nodes,
            "faults": spec.faults,
            "on_loss": spec.on_loss == "continue",
            "restarts": spec.restarts,
        }
        for field, used in needs.items():
            if used:
                return f"{field} needs a runtime of Shardyard"
        return None

    def texts(
        self, sweep: Sweep, runs: Sequence[PlannedRun], options: Options
    ) -> Mapping[str, Mapping[str, str]]:
        found = {run.spec.key: _run(run, options) for run in runs}
        whole = "kustomization.yaml"
        return {**found, whole: {whole: kustomization([run.name for run in runs])}}

    def announcements(self, sweep: Sweep, runs: Sequence[PlannedRun]) -> Iterator[str]:
        if sweep.until_decided:
            yield (
                "the sweep adds seeds until its choice is decided, and Jobs do not: all runs that it may "
                f"need are exported, {len(runs)}; --set seed=0 exports one of each configuration"
            )

    def remarks(self, sweep: Sweep, runs: Sequence[PlannedRun], out: Path) -> Iterator[str]:
        yield f"start a run with: kubectl apply -k {quote(str(out))}/RUN"


def _run(run: PlannedRun, options: Options) -> Mapping[str, str]:
    """The files of a run in its directory."""
    data = {"spec.json": run.spec.model_dump_json(indent=1) + "\n"}
    spec = manifest("v1", "ConfigMap", run, immutable=True, data=data)
    files = directory(spec, job(run, options), network_policy(run), service(run))
    return {f"{run.name}/{name}": text for name, text in files.items()}


def service(run: PlannedRun) -> Manifest:
    """Gives the pods their names. The ranks find each other before they are ready."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector(run)}
    return manifest("v1", "Service", run, spec=spec)


def job(run: PlannedRun, options: Options) -> Manifest:
    """One pod for each node, which is not restarted."""
    spec = run.spec
    limits = {"cpu": f"{round(run.share * spec.cpus * 1000)}m", "memory": f"{run.share * spec.memory_mb}Mi"}
    if spec.on_gpu:
        limits["nvidia.com/gpu"] = str(spec.processes_per_node)
    several = _ranks_per_node(run) > 1
    container = {
        "name": "node",
        "command": ["python", *(("-m", TORCHRUN) if several else ()), "-m", "trainer"],
        "env": environment(run),
    }
    template = pod(
        run,
        options.image,
        limits,
        volumes(run, run.share * spec.shm_mb, in_memory(TMP_MB), options),
        container,
        restartPolicy="Never",
        subdomain=run.name,
        terminationGracePeriodSeconds=5,
    )
    indexed = {
        "completionMode": "Indexed",
        "completions": run.nodes,
        "parallelism": run.nodes,
        "backoffLimit": 0,
        "activeDeadlineSeconds": ceil(spec.timeout_s),
        "template": template,
    }
    return manifest("batch/v1", "Job", run, spec=indexed)


def _ranks_per_node(run: PlannedRun) -> int:
    """How many processes a pod starts; torchrun starts several."""
    return 1 if run.spec.topology == "single" else run.spec.processes_per_node


def environment(run: PlannedRun) -> list[Manifest]:
    """Environment variables of the container; the Job's controller sets JOB_COMPLETION_INDEX."""
    out = f"{RESULTS}/{run.sweep}/{run.spec.key}"
    host = f"{run.name}-0.{run.name}"  # the first pod's name in the Service
    ranks = _ranks_per_node(run)
    found = {
        **run.spec.thread_environment(),
        "SHARDYARD_LAUNCHER": "torchrun" if ranks > 1 else "kubernetes",
        "SHARDYARD_SPEC": f"{SPEC}/spec.json",
        "SHARDYARD_DATA": DATA,
        "SHARDYARD_OUT": out,
    }
    if run.spec.checkpoints:
        found["SHARDYARD_CHECKPOINTS"] = f"{out}/checkpoints"
    index: list[Manifest] = []
    if ranks > 1:  # torchrun's variables
        found |= {"PET_NNODES": str(run.nodes), "PET_NPROC_PER_NODE": str(ranks)}
        found |= {"PET_MASTER_ADDR": host, "PET_MASTER_PORT": str(PORT)}
        index = [{"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}}]
    else:
        found |= {"NNODES": str(run.nodes), "MASTER_ADDR": host, "MASTER_PORT": str(PORT)}
    return [*({"name": name, "value": value} for name, value in found.items()), *index]
