"""The objects of a cluster that Indexed Jobs and Ray clusters share: pods as in compose/common.yml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import yaml

from orchestrator.export.base import Options

Manifest = dict[str, Any]

USER = 10001  # the trainer image's
SPEC, DATA, RESULTS = "/etc/shardyard", "/data", "/results"
PLACES = {"spec": SPEC, "shm": "/dev/shm", "tmp": "/tmp", "results": RESULTS, "data": DATA}  # of volumes
READ_ONLY = ("spec", "data")
RESULTS_MB = 512
# Of a pod and of its container alike.
SECURITY = {"runAsNonRoot": True, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}}


class Named(Protocol):
    """A run, or what several share. Annotations have what labels may have to shorten."""

    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> dict[str, str]: ...
    @property
    def annotations(self) -> dict[str, str]: ...


def selector(of: Named) -> dict[str, str]:
    """Labels that only the pods of a run have."""
    return {"app.kubernetes.io/name": "shardyard", "app.kubernetes.io/instance": of.name}


def manifest(version: str, kind: str, of: Named, **fields: Any) -> Manifest:
    """An object of a run, with its name, labels and annotations."""
    about = {"name": of.name, "labels": {**selector(of), **of.labels}, "annotations": of.annotations}
    return {"apiVersion": version, "kind": kind, "metadata": about, **fields}


def network_policy(of: Named) -> Manifest:
    """Lets the pods of a run talk to each other and to the cluster's DNS, and to nothing else."""
    peers = {"podSelector": {"matchLabels": selector(of)}}
    dns = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    ports = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    spec = {
        **peers,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [peers]}],
        "egress": [{"to": [peers]}, {"to": [dns], "ports": ports}],
    }
    return manifest("networking.k8s.io/v1", "NetworkPolicy", of, spec=spec)


def pod(
    of: Named,
    image: str | None,
    limits: Manifest,
    volumes: Sequence[Manifest],
    container: Manifest,
    **spec: Any,
) -> Manifest:
    """The template of a pod with one container.

    Args:
        limits: of the container. Its requests equal them, so that no other pod takes what the run was
            promised.
        volumes: what is mounted, each at the place of its name.
        container: name, environment and command of the container.
        spec: further fields of the pod.
    """
    whole = {
        "name": container["name"],
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        **container,
        "resources": {"requests": limits, "limits": limits},
        "securityContext": {
            **SECURITY,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [_mount(each["name"]) for each in volumes],
    }
    return {
        "metadata": {"labels": {**selector(of), **of.labels}, "annotations": of.annotations},
        "spec": {
            **spec,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {**SECURITY, "runAsGroup": USER, "fsGroup": USER},
            "containers": [whole],
            "volumes": volumes,
        },
    }


def _mount(name: str) -> Manifest:
    read_only = {"readOnly": True} if name in READ_ONLY else {}
    return {"name": name, "mountPath": PLACES[name], **read_only}


def volumes(of: Named, shm_mb: int, tmp: Manifest, options: Options) -> list[Manifest]:
    """The directories of a container. What is in memory counts towards its memory limit.

    tmp: the emptyDir at /tmp.
    """
    results: Manifest = {"emptyDir": {"sizeLimit": f"{RESULTS_MB}Mi"}}
    if options.results_claim:
        results = {"persistentVolumeClaim": {"claimName": options.results_claim}}
    found = [
        {"name": "spec", "configMap": {"name": of.name}},
        {"name": "shm", "emptyDir": in_memory(shm_mb)},
        {"name": "tmp", "emptyDir": tmp},
        {"name": "results", **results},
    ]
    if options.data_claim:
        claim = {"claimName": options.data_claim, "readOnly": True}
        found.append({"name": "data", "persistentVolumeClaim": claim})
    return found


def in_memory(size_mb: int) -> Manifest:
    return {"medium": "Memory", "sizeLimit": f"{size_mb}Mi"}


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_yaml(document: Mapping[str, Any]) -> str:
    """The document as YAML, keys in their order."""
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))


def kustomization(resources: Sequence[str]) -> str:
    return as_yaml(
        {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [*resources],
        }
    )


def directory(*manifests: Manifest) -> dict[str, str]:
    """The files of a directory for `kubectl apply -k`: one for each object, with the name of its kind."""
    files = {f"{each['kind'].lower()}.yaml": as_yaml(each) for each in manifests}
    return {**files, "kustomization.yaml": kustomization([*files])}
