"""Format kuberay: a cluster of KubeRay for a whole sweep, and the job that runs the sweep on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from shlex import join, quote

from orchestrator.errors import InputError
from orchestrator.export.base import Options
from orchestrator.export.pods import (
    DATA,
    RESULTS,
    SPEC,
    Manifest,
    PodExporter,
    claims,
    container_security,
    in_memory,
    kustomization,
    metadata,
    mounts,
    network_policy,
    pod_security,
)
from orchestrator.export.sweep_exporter import PlannedRun, as_yaml, dns_label, label_value
from orchestrator.runtimes.ray.placement import MIB, NodeResources
from orchestrator.runtimes.ray.runtime import RayRuntime
from orchestrator.sweeps.load import Sweep
from orchestrator.sweeps.yaml import parse_yaml
from trainer.spec.run_spec import RunSpec

RAY = "2.60.0"  # of the image; KubeRay must know it to authenticate clients
NAME_LENGTH = 47  # KubeRay's limit for a RayJob
DASHBOARD = 8265
OPERATOR = {"app.kubernetes.io/name": "kuberay-operator"}
RAYLET_MB = 1024  # of a raylet and its agents, beside the memory of its node
STORE_MB = 128  # of a raylet's object store: nothing is kept in it
TMP_MB = 2048  # Ray's session, on disk
HEAD = {"cpu": "2", "memory": "4096Mi"}
SUBMITTER = {"cpu": "500m", "memory": "512Mi"}


class KubeRayExporter(PodExporter):
    """`raycluster.yaml`, `rayjob.yaml`: a cluster of KubeRay and the job that runs the sweep on it."""

    name = "kuberay"
    uses = ("sets", "nodes", "image", "results_claim", "data_claim")

    def check_values(self, options: Options) -> None:
        super().check_values(options)
        if not options.results_claim:
            raise InputError("--to kuberay needs --results-claim: all nodes must see the results")

    def common_refusal(self, run: RunSpec) -> str | None:
        if run.has_imports:
            return "the code of components from import paths is not in the image"
        return RayRuntime(shared_network=True).unsupported_reason(run)

    def common_texts(self, sweep: Sweep, runs: list[PlannedRun], options: Options) -> Mapping[str, str]:
        cluster = PlannedCluster(sweep, runs, options)
        manifests = {
            "configmap.yaml": config_map(cluster),
            "networkpolicy.yaml": policy(cluster),
            "raycluster.yaml": ray_cluster(cluster),
            "rayjob.yaml": ray_job(cluster),
        }
        files = {name: as_yaml(manifest) for name, manifest in manifests.items()}
        return {**files, "kustomization.yaml": kustomization([*manifests])}

    def advice(self, out: Path) -> str:
        return f"start the sweep with: kubectl apply -k {quote(str(out))}"


@dataclass(frozen=True)
class PlannedCluster:
    """A sweep, with the names that it has in a cluster."""

    sweep: Sweep
    runs: Sequence[PlannedRun]
    options: Options

    @property
    def title(self) -> str:
        return self.sweep.spec.name

    @property
    def name(self) -> str:
        """A DNS label, unique among sweeps of other names."""
        return dns_label(self.title, self.title, NAME_LENGTH)

    @property
    def labels(self) -> dict[str, str]:
        return {"shardyard/sweep": label_value(self.title)}

    @property
    def annotations(self) -> dict[str, str]:
        return {"shardyard/sweep": self.title}

    @property
    def node(self) -> NodeResources:
        """What Ray reserves for a node."""
        return NodeResources.of([run.spec for run in self.runs])

    @property
    def sweep_file(self) -> str:
        """The sweep's file, whose nodes are on the cluster of the machine that runs it."""
        content = parse_yaml(self.sweep.source, self.title)
        return as_yaml({**content, "ray": {**content.get("ray", {}), "address": "auto"}})

    @property
    def command(self) -> list[str]:
        """The command that runs the sweep in the head."""
        found = ["python", "-m", "orchestrator", "sweep", f"{SPEC}/sweep.yml", "--runtime", "ray"]
        found += ["--out", f"{RESULTS}/{self.title}", "--data-dir", DATA]
        for assignment in self.options.sets:
            found += ["--set", assignment]
        if self.options.nodes:
            found += ["--nodes", self.options.nodes]
        # Only pods of this cluster reach each other: see `policy`.
        return found + ["--shared-network"] * any(run.spec.topology == "rpc" for run in self.runs)


def config_map(cluster: PlannedCluster) -> Manifest:
    """The sweep's file."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(cluster),
        "data": {"sweep.yml": cluster.sweep_file},
    }


def policy(cluster: PlannedCluster) -> Manifest:
    """As of a run; KubeRay's operator asks the head for the state of the job."""
    found = network_policy(cluster)
    operator = {"namespaceSelector": {}, "podSelector": {"matchLabels": OPERATOR}}
    ports = [{"protocol": "TCP", "port": DASHBOARD}]
    found["spec"]["ingress"].append({"from": [operator], "ports": ports})
    return found


def ray_cluster(cluster: PlannedCluster) -> Manifest:
    """A head that has no nodes of a run, and a worker for each node of the largest run."""
    count = max(run.nodes for run in cluster.runs)
    node, store = cluster.node, str(STORE_MB * MIB)
    head = {"num-cpus": "0", "object-store-memory": store}
    # For one node of a run; KubeRay would give it the memory of the raylet, too.
    worker = {
        "num-cpus": str(ceil(node.cpus)),
        "memory": str(node.memory_mb * MIB),
        "object-store-memory": store,
    }
    shm_mb = STORE_MB + max(run.share * run.spec.shm_mb for run in cluster.runs)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": metadata(cluster),
        "spec": {
            "rayVersion": RAY,
            "authOptions": {"mode": "token"},
            "enableInTreeAutoscaling": False,
            "headGroupSpec": {
                "serviceType": "ClusterIP",
                "enableIngress": False,
                "rayStartParams": head,
                "template": pod(cluster, "ray-head", HEAD, 2 * STORE_MB),
            },
            "workerGroupSpecs": [
                {
                    "groupName": "nodes",
                    "replicas": count,
                    "minReplicas": count,
                    "maxReplicas": count,
                    "rayStartParams": worker,
                    "template": pod(cluster, "ray-worker", limits(cluster), shm_mb),
                }
            ],
        },
    }


def ray_job(cluster: PlannedCluster) -> Manifest:
    """Runs the sweep in the head, once. The cluster stays for another sweep, or to fetch results."""
    submitter = pod(cluster, "submitter", SUBMITTER)
    submitter["spec"]["restartPolicy"] = "Never"
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata(cluster),
        "spec": {
            "clusterSelector": {"ray.io/cluster": cluster.name},
            "submissionMode": "K8sJobMode",
            "entrypoint": join(cluster.command),
            "submitterPodTemplate": submitter,
        },
    }


def limits(cluster: PlannedCluster) -> Manifest:
    """Resources of a worker: those of a node of each run, and memory for the raylet beside it."""
    cpus = max(run.share * run.spec.cpus for run in cluster.runs)
    memory_mb = max(run.share * run.spec.memory_mb for run in cluster.runs)
    found = {"cpu": f"{round(cpus * 1000)}m", "memory": f"{memory_mb + RAYLET_MB}Mi"}
    return {**found, "nvidia.com/gpu": str(cluster.node.gpus)} if cluster.node.gpus else found


def pod(cluster: PlannedCluster, name: str, limits: Manifest, shm_mb: int | None = None) -> Manifest:
    """The template of a pod of the cluster. KubeRay adds the command, the probes and Ray's token.

    Args:
        shm_mb: size of /dev/shm; None: a pod without it, and without the sweep's file, results and data.
    """
    about, options = metadata(cluster), cluster.options
    volumes: list[Manifest] = [{"name": "tmp", "emptyDir": {"sizeLimit": f"{TMP_MB}Mi"}}]
    if shm_mb is not None:
        spec: Manifest = {"name": "spec", "configMap": {"name": cluster.name}}
        volumes += [spec, in_memory("shm", shm_mb), *claims(options)]
    names = {each["name"] for each in volumes}
    container = {
        "name": name,
        "image": options.image,
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}],
        "resources": {"requests": limits, "limits": limits},
        "securityContext": container_security(),
        "volumeMounts": [each for each in mounts(options) if each["name"] in names],
    }
    template = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": volumes,
    }
    return {"metadata": {key: about[key] for key in ("labels", "annotations")}, "spec": template}
