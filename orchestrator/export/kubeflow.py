"""Format kubeflow: a TrainJob of Kubeflow Trainer for each run, for `kubectl apply -k`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote

from orchestrator.export.base import Options
from orchestrator.export.pods import (
    CONTAINER,
    Manifest,
    PodExporter,
    config_map,
    container_security,
    entrypoint,
    environment,
    kustomization,
    metadata,
    mounts,
    network_policy,
    pod_security,
    resources,
    volumes,
)
from orchestrator.export.sweep_exporter import PlannedRun, as_yaml

RUNTIME = "torch-distributed"  # the ClusterTrainingRuntime that sets torchrun's variables
MANAGER = "shardyard/export"
TRAINER_JOB = "node"  # the runtime's name of the job that trains


class KubeflowExporter(PodExporter):
    """`RUN/`: a TrainJob of Kubeflow Trainer, a ConfigMap and a NetworkPolicy for each run."""

    name = "kubeflow"

    def texts(self, run: PlannedRun, options: Options) -> Mapping[str, str]:
        manifests = {
            "configmap.yaml": config_map(run),
            "networkpolicy.yaml": network_policy(run),
            "trainjob.yaml": train_job(run, options),
        }
        files = {name: as_yaml(manifest) for name, manifest in manifests.items()}
        files["kustomization.yaml"] = kustomization([*manifests])
        return {f"{run.name}/{name}": text for name, text in files.items()}

    def advice(self, out: Path) -> str:
        return f"start a run with: kubectl apply -k {quote(str(out))}/RUN"


def train_job(run: PlannedRun, options: Options) -> Manifest:
    """The runtime's job with the trainer image; it sets PET_* variables and a headless Service."""
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(run),
        "spec": {
            "runtimeRef": {"name": RUNTIME},
            "activeDeadlineSeconds": run.timeout_s,
            "trainer": {
                "image": options.image,
                "command": entrypoint(run),
                "env": environment(run, options, "kubeflow"),
                "numNodes": run.nodes,
                "numProcPerNode": run.ranks_per_node,
                "resourcesPerNode": resources(run),
            },
            "runtimePatches": [{"manager": MANAGER, "trainingRuntimeSpec": _patch(run, options)}],
        },
    }


def _patch(run: PlannedRun, options: Options) -> Manifest:
    """What a TrainJob cannot say of its pods in `trainer`."""
    about = metadata(run)
    container = {
        "name": CONTAINER,
        "securityContext": container_security(),
        "volumeMounts": mounts(options),
    }
    pod = {
        "metadata": {key: about[key] for key in ("labels", "annotations")},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "securityContext": pod_security(),
            "containers": [container],
            "volumes": volumes(run, options),
        },
    }
    jobs = [{"name": TRAINER_JOB, "template": {"spec": {"template": pod}}}]
    return {"template": {"spec": {"replicatedJobs": jobs}}}
