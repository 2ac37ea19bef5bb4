"""Format kuberay: a cluster of KubeRay for a whole sweep, and the job that runs the sweep on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from shlex import join, quote
from typing import Any

from orchestrator.errors import InputError
from orchestrator.export.base import Options
from orchestrator.export.pods import (
    DATA,
    RESULTS,
    SPEC,
    Manifest,
    as_yaml,
    directory,
    manifest,
    network_policy,
    pod,
    volumes,
)
from orchestrator.export.sweep_exporter import PlannedRun, SweepExporter, dns_label, label_value
from orchestrator.runtimes.ray.placement import MIB, NodeResources
from orchestrator.runtimes.ray.runtime import RayRuntime
from orchestrator.sweeps.load import Sweep, load_sweep
from orchestrator.sweeps.yaml import parse_yaml
from trainer.spec.registries import STRATEGIES

RAY = "2.60.0"  # of the image; KubeRay must know it to authenticate clients
NAME_LENGTH = 47  # KubeRay's limit for a RayJob
DASHBOARD = 8265
OPERATOR = {"app.kubernetes.io/name": "kuberay-operator"}
RAYLET_MB = 1024  # of a raylet and its agents, beside the memory of its node
STORE_MB = 128  # of a raylet's object store: nothing is kept in it
TMP = {"sizeLimit": "2048Mi"}  # Ray's session, on disk
HEAD = {"cpu": "2", "memory": "4096Mi"}
SUBMITTER = {"cpu": "500m", "memory": "512Mi"}


class KubeRayExporter(SweepExporter):
    """`raycluster.yaml`, `rayjob.yaml`: a cluster of KubeRay and the job that runs the sweep on it."""

    name = "kuberay"

    def check_values(self, options: Options) -> None:
        super().check_values(options)
        if not options.results_claim:
            raise InputError("--to kuberay needs --results-claim: all nodes must see the results")

    def refusal(self, run: PlannedRun, options: Options) -> str | None:
        ray = RayRuntime(shared_network=True)
        return super().refusal(run, options) or ray.unsupported_reason(run.spec)

    def texts(
        self, sweep: Sweep, runs: Sequence[PlannedRun], options: Options
    ) -> Mapping[str, Mapping[str, str]]:
        cluster = PlannedCluster(sweep, runs, options)
        spec = manifest("v1", "ConfigMap", cluster, data={"sweep.yml": sweep_file(cluster)})
        files = directory(spec, policy(cluster), ray_cluster(cluster), ray_job(cluster))
        return {", ".join(files): files}

    def remarks(self, sweep: Sweep, runs: Sequence[PlannedRun], out: Path) -> Iterator[str]:
        yield f"start the sweep with: kubectl apply -k {quote(str(out))}"


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


def sweep_file(cluster: PlannedCluster) -> str:
    """The sweep's file, whose nodes are on the cluster of the machine that runs it.

    Raises InputError if its runs over mpi cannot be made others, over gloo.
    """
    sweep, options, name = cluster.sweep, cluster.options, cluster.title
    content = parse_yaml(sweep.source, name)
    runs = {run.spec.key for run in cluster.runs}
    if runs != {run.key for run in sweep.runs}:
        content = _over_gloo({**content, "blocks": [*_with_mpi(content)]})
        found = load_sweep(Path(name), options.sets, options.nodes, text=as_yaml(content))
        if {run.key for run in found.runs} != runs:
            raise InputError(
                f"--gloo-for-mpi: {name}: a block has mpi for some of its strategies only; write "
                "`transport` in its base or axes"
            )
    return as_yaml({**content, "ray": {**content.get("ray", {}), "address": "auto"}})


def _with_mpi(content: Manifest) -> Iterator[Manifest]:
    """The blocks of a sweep's file. They name mpi where it is the default of all of their strategies."""
    for block in content["blocks"]:
        base = block.get("base", {})
        written = {**content.get("base", {}), **base, **block.get("axes", {})}
        found = written.get("strategy", [])
        strategies = found if isinstance(found, list) else [found]
        defaults = {STRATEGIES.parse(each).transports[0] for each in strategies}
        if "transport" not in written and defaults <= {"mpi"}:
            base = {**base, "transport": "mpi"}
        # What is left out over mpi alone has no twin.
        skip = [each for each in block.get("skip", []) if each.get("transport") != "mpi"]
        yield {**block, "base": base, "skip": skip}


def _over_gloo(content: Any) -> Any:
    """What a sweep's file has, with gloo in the place of mpi, except in what is left out."""
    if isinstance(content, list):
        return [_over_gloo(each) for each in content]
    if not isinstance(content, dict):
        return content
    found = {key: value if key == "skip" else _over_gloo(value) for key, value in content.items()}
    transport = found.get("transport")
    if transport == "mpi":
        found["transport"] = "gloo"
    elif isinstance(transport, list):
        found["transport"] = [*dict.fromkeys("gloo" if each == "mpi" else each for each in transport)]
    return found


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
    spec = {
        "rayVersion": RAY,
        "authOptions": {"mode": "token"},
        "enableInTreeAutoscaling": False,
        "headGroupSpec": {
            "serviceType": "ClusterIP",
            "enableIngress": False,
            "rayStartParams": head,
            "template": ray_pod(cluster, "ray-head", HEAD, 2 * STORE_MB),
        },
        "workerGroupSpecs": [
            {
                "groupName": "nodes",
                "replicas": count,
                "minReplicas": count,
                "maxReplicas": count,
                "rayStartParams": worker,
                "template": ray_pod(cluster, "ray-worker", limits(cluster), shm_mb),
            }
        ],
    }
    return manifest("ray.io/v1", "RayCluster", cluster, spec=spec)


def ray_job(cluster: PlannedCluster) -> Manifest:
    """Runs the sweep in the head, once. The cluster stays for another sweep, or to fetch results."""
    spec = {
        "clusterSelector": {"ray.io/cluster": cluster.name},
        "submissionMode": "K8sJobMode",
        "entrypoint": join(cluster.command),
        "submitterPodTemplate": ray_pod(cluster, "submitter", SUBMITTER, restartPolicy="Never"),
    }
    return manifest("ray.io/v1", "RayJob", cluster, spec=spec)


def limits(cluster: PlannedCluster) -> Manifest:
    """Resources of a worker: those of a node of each run, and memory for the raylet beside it."""
    cpus = max(run.share * run.spec.cpus for run in cluster.runs)
    memory_mb = max(run.share * run.spec.memory_mb for run in cluster.runs)
    found = {"cpu": f"{round(cpus * 1000)}m", "memory": f"{memory_mb + RAYLET_MB}Mi"}
    return {**found, "nvidia.com/gpu": str(cluster.node.gpus)} if cluster.node.gpus else found


def ray_pod(
    cluster: PlannedCluster, name: str, limits: Manifest, shm_mb: int | None = None, **spec: Any
) -> Manifest:
    """The template of a pod of the cluster. KubeRay adds the command, the probes and Ray's token.

    Args:
        shm_mb: size of /dev/shm; None: a pod without it, and without the sweep's file, results and data.
        spec: further fields of the pod.
    """
    mounted = volumes(cluster, shm_mb or 0, TMP, cluster.options)
    if shm_mb is None:
        mounted = [each for each in mounted if each["name"] == "tmp"]
    variables = {"HOME": "/tmp", "RAY_USAGE_STATS_ENABLED": "0"}
    env = [{"name": variable, "value": value} for variable, value in variables.items()]
    container = {"name": name, "env": env}
    return pod(cluster, cluster.options.image, limits, mounted, container, **spec)
