"""What the pods of a run are made of, for Indexed Jobs and TrainJobs alike. As in compose/common.yml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from orchestrator.errors import InputError
from orchestrator.export.base import Options
from orchestrator.export.sweep_exporter import PlannedRun, SweepExporter, as_yaml
from orchestrator.runtimes.docker.image import IMAGE
from orchestrator.shipped import command
from orchestrator.sweeps.load import Sweep

Manifest = dict[str, Any]

USER = 10001  # the trainer image's
CONTAINER = "node"  # the name that Kubeflow's runtimes have for it, too
SPEC, DATA, RESULTS = "/etc/shardyard", "/data", "/results"
TMP_MB, RESULTS_MB = 256, 512
CLAIM = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"


class PodExporter(SweepExporter):
    """A format whose nodes are pods of the trainer image."""

    uses = (*SweepExporter.uses, "image", "results_claim", "data_claim")

    def check_values(self, options: Options) -> None:
        if not options.image:
            raise InputError(
                f"--to {self.name} needs --image, a name under which the cluster can pull the trainer "
                f"image; {command('image')} builds it as {IMAGE}, on this machine only"
            )
        if not re.fullmatch(r"[\w.:/@-]+", options.image, re.ASCII):
            raise InputError(f"--image {options.image!r}: is not the name of an image")
        for name in ("results_claim", "data_claim"):
            value = getattr(options, name)
            if value is not None and not re.fullmatch(CLAIM, value):
                raise InputError(
                    f"--{name.replace('_', '-')} {value!r}: is not the name of a PersistentVolumeClaim"
                )

    def refusal(self, run: PlannedRun, options: Options) -> str | None:
        if run.files and options.data_claim is None:
            return (
                f"dataset {run.spec.name_of('dataset')} needs --data-claim: its files are not in the image"
            )
        if run.spec.checkpoints and options.results_claim is None:
            return "checkpoints need --results-claim: without it they are gone with their pod"
        if not (run.share * run.spec.cpus * 1000).is_integer():
            return "cpus must be a multiple of 0.001 core"
        return None

    def common_texts(self, sweep: Sweep, runs: list[PlannedRun], options: Options) -> Mapping[str, str]:
        return {"kustomization.yaml": kustomization([run.name for run in runs])}


class Named(Protocol):
    """A run, or what several share. Annotations have what labels may have to shorten."""

    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> dict[str, str]: ...
    @property
    def annotations(self) -> dict[str, str]: ...


def metadata(of: Named) -> Manifest:
    """Name, labels and annotations of every object of a run."""
    return {"name": of.name, "labels": {**selector(of), **of.labels}, "annotations": of.annotations}


def selector(of: Named) -> dict[str, str]:
    """Labels that only the pods of a run have."""
    return {"app.kubernetes.io/name": "shardyard", "app.kubernetes.io/instance": of.name}


def kustomization(resources: list[str]) -> str:
    return as_yaml(
        {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": resources}
    )


def config_map(run: PlannedRun) -> Manifest:
    """The run's spec."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(run),
        "immutable": True,
        "data": {"spec.json": run.spec_json},
    }


def network_policy(of: Named) -> Manifest:
    """Lets the pods of a run talk to each other and to the cluster's DNS, and to nothing else."""
    peers = {"podSelector": {"matchLabels": selector(of)}}
    dns = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    ports = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(of),
        "spec": {
            **peers,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [peers]}],
            "egress": [{"to": [peers]}, {"to": [dns], "ports": ports}],
        },
    }


def entrypoint(run: PlannedRun) -> list[str]:
    return ["python", *run.module]


def environment(run: PlannedRun, options: Options, launcher: str) -> list[Manifest]:
    """Environment variables of the container."""
    out = f"{RESULTS}/{run.sweep}/{run.spec.key}"
    found = {
        **run.environment(launcher),
        "SHARDYARD_SPEC": f"{SPEC}/spec.json",
        "SHARDYARD_DATA": DATA,
        "SHARDYARD_OUT": out,
    }
    if run.spec.checkpoints:
        found["SHARDYARD_CHECKPOINTS"] = f"{out}/checkpoints"
    return [{"name": name, "value": value} for name, value in found.items()]


def resources(run: PlannedRun) -> Manifest:
    """Requests that equal the limits, so that no other pod takes what the run was promised."""
    spec = run.spec
    limits = {"cpu": f"{round(run.share * spec.cpus * 1000)}m", "memory": f"{run.share * spec.memory_mb}Mi"}
    if spec.on_gpu:
        limits["nvidia.com/gpu"] = str(spec.processes_per_node)
    return {"requests": limits, "limits": limits}


def pod_security() -> Manifest:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def volumes(run: PlannedRun, options: Options) -> list[Manifest]:
    """The directories of the container. What is in memory counts towards its memory limit."""
    return [
        {"name": "spec", "configMap": {"name": run.name}},
        in_memory("shm", run.share * run.spec.shm_mb),
        in_memory("tmp", TMP_MB),
        *claims(options),
    ]


def in_memory(name: str, size_mb: int) -> Manifest:
    return {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": f"{size_mb}Mi"}}


def claims(options: Options) -> list[Manifest]:
    """The volumes of results and data."""
    results: Manifest = {"name": "results", "emptyDir": {"sizeLimit": f"{RESULTS_MB}Mi"}}
    if options.results_claim:
        results = {"name": "results", "persistentVolumeClaim": {"claimName": options.results_claim}}
    if not options.data_claim:
        return [results]
    claim = {"claimName": options.data_claim, "readOnly": True}
    return [results, {"name": "data", "persistentVolumeClaim": claim}]


def mounts(options: Options) -> list[Manifest]:
    found: list[Manifest] = [
        {"name": "spec", "mountPath": SPEC, "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "results", "mountPath": RESULTS},
    ]
    if options.data_claim:
        found.append({"name": "data", "mountPath": DATA, "readOnly": True})
    return found
