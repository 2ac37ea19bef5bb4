"""Format kubernetes: an Indexed Job with a headless Service for each run, for `kubectl apply -k`."""

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
    selector,
    volumes,
)
from orchestrator.export.sweep_exporter import PlannedRun, as_yaml, pet_environment
from trainer.launch.launchers import PORT

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


class KubernetesExporter(PodExporter):
    """`RUN/`: an Indexed Job, a headless Service, a ConfigMap and a NetworkPolicy for each run."""

    name = "kubernetes"

    def texts(self, run: PlannedRun, options: Options) -> Mapping[str, str]:
        manifests = {
            "configmap.yaml": config_map(run),
            "job.yaml": job(run, options),
            "networkpolicy.yaml": network_policy(run),
            "service.yaml": service(run),
        }
        files = {name: as_yaml(manifest) for name, manifest in manifests.items()}
        files["kustomization.yaml"] = kustomization([*manifests])
        return {f"{run.name}/{name}": text for name, text in files.items()}

    def advice(self, out: Path) -> str:
        return f"start a run with: kubectl apply -k {quote(str(out))}/RUN"


def service(run: PlannedRun) -> Manifest:
    """Gives the pods their names. The ranks find each other before they are ready."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector(run)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(run), "spec": spec}


def job(run: PlannedRun, options: Options) -> Manifest:
    """One pod for each node, which is not restarted."""
    container = {
        "name": CONTAINER,
        "image": options.image,
        "imagePullPolicy": "IfNotPresent",
        "command": entrypoint(run),
        "env": [*environment(run, options, "kubernetes"), *_node(run)],
        "resources": resources(run),
        "securityContext": container_security(),
        "volumeMounts": mounts(options),
    }
    pod = {
        "restartPolicy": "Never",
        "subdomain": run.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": volumes(run, options),
    }
    about = metadata(run)
    template = {"metadata": {key: about[key] for key in ("labels", "annotations")}, "spec": pod}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": about,
        "spec": {
            "completionMode": "Indexed",
            "completions": run.nodes,
            "parallelism": run.nodes,
            "backoffLimit": 0,
            "activeDeadlineSeconds": run.timeout_s,
            "template": template,
        },
    }


def _node(run: PlannedRun) -> list[Manifest]:
    """Variables that say which node the pod is; the Job's controller sets JOB_COMPLETION_INDEX."""
    host = f"{run.name}-0.{run.name}"  # the first pod's name in the Service
    if run.ranks_per_node > 1:
        variables = pet_environment(run, host)
        index: list[Manifest] = [{"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}}]
    else:
        variables = {"NNODES": str(run.nodes), "MASTER_ADDR": host, "MASTER_PORT": str(PORT)}
        index = []
    return [*({"name": name, "value": value} for name, value in variables.items()), *index]
