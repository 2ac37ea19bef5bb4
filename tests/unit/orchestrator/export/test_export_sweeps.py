"""Exports of a sweep's runs for clusters: they follow the published schemas, and start all ranks."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.commands.export import export
from orchestrator.errors import InputError
from orchestrator.export import EXPORTERS
from orchestrator.export.base import Options, option
from orchestrator.export.pods import PodExporter, container_security, pod_security
from orchestrator.export.sweep_exporter import PlannedRun, label_value
from orchestrator.runtimes.ray.options import RayOptions
from orchestrator.sweeps.load import load_sweep
from tests.unit.conftest import PROJECT
from trainer.launch.environment import read_context
from trainer.launch.launchers import LaunchError
from trainer.spec.run_spec import RunSpec

SWEEP = """\
name: my_sweep-
base: {model: mlp, epochs: 1}
blocks:
  - base: {strategy: ddp, nodes: 3}
  - base: {strategy: all_reduce, transport: gloo, nodes: 2, processes_per_node: 2, cpus: 0.5,
      memory_mb: 700}
  - base: {strategy: hogwild, nodes: 4, timeout_s: 7.5}
  - base: {strategy: rpc_split, nodes: 2, model: lenet}
"""
GPU = "name: gpu\nblocks: [base: {strategy: ddp, transport: nccl, nodes: 2}]\n"
IMAGE = Options(image="registry.example/shardyard:1")
CLAIMS = Options(image="shardyard:1", results_claim="results", data_claim="data")
PODS = ["kubernetes", "kubeflow"]
NEWEST = "1.37"  # of the schemas that requirements-dev.txt installs
Manifest = dict[str, Any]


def options(to: str) -> Options:
    return IMAGE if to in PODS else CLAIMS if to == "kuberay" else Options()


def exported(tmp_path: Path, to: str, text: str = SWEEP, given: Options | None = None) -> Path:
    """The directory of an export."""
    (tmp_path / "sweep.yml").write_text(text)
    [*export(tmp_path / "sweep.yml", to, tmp_path / "out", given or options(to))]
    return tmp_path / "out"


def manifests(out: Path) -> Iterator[Manifest]:
    """All objects of an export, without kustomizations."""
    for path in sorted(out.rglob("*.yaml")):
        if path.name != "kustomization.yaml":
            yield from yaml.safe_load_all(path.read_text())


def by_kind(out: Path, kind: str) -> dict[str, Manifest]:
    """The objects of a kind, by run key."""
    return {
        each["metadata"]["annotations"]["shardyard/run"].rpartition("-")[0]: each
        for each in manifests(out)
        if each["kind"] == kind
    }


def pod_of(manifest: Manifest) -> Manifest:
    """Labels and spec of a Job's or a TrainJob's pods, with what its trainer adds."""
    if manifest["kind"] == "Job":
        template: Manifest = manifest["spec"]["template"]
        return template
    (patch,) = manifest["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    template = job["template"]["spec"]["template"]
    trainer = manifest["spec"]["trainer"]
    (container,) = template["spec"]["containers"]
    container |= {name: trainer[name] for name in ("image", "command", "env")}
    container["resources"] = trainer["resourcesPerNode"]
    return template


def ray_specs(out: Path) -> tuple[Manifest, Manifest]:
    """The spec of the RayCluster, and that of the RayJob."""
    objects = {each["kind"]: each for each in manifests(out)}
    return objects["RayCluster"]["spec"], objects["RayJob"]["spec"]


def ray_pods(out: Path) -> dict[str, Manifest]:
    """The templates of a Ray cluster's pods and of that which submits the job, by their container."""
    cluster, job = ray_specs(out)
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    templates = [*(group["template"] for group in groups), job["submitterPodTemplate"]]
    return {template["spec"]["containers"][0]["name"]: template for template in templates}


def each_pod(out: Path) -> dict[str, Manifest]:
    jobs = by_kind(out, "Job") | by_kind(out, "TrainJob")
    return {key: pod_of(job) for key, job in jobs.items()}


DDP, ALL_REDUCE, HOGWILD, RPC = (
    "ddp-gloo-n3-s0",
    "all_reduce-gloo-n2x2-s0",
    "hogwild-memory-n4-s0",
    "rpc_split-rpc-n2-s0",
)


# Schemas


def strict(schema: Any) -> Any:
    """A resource definition's schema, with unknown fields as errors."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(each) for name, each in schema.items()}
    known = isinstance(schema.get("properties"), dict) and "type" in schema
    return {**found, "additionalProperties": False} if known else found


def schema_of(name: str) -> Any:
    return json.loads((PROJECT / "tests" / "support" / f"{name}.schema.json").read_text())


@pytest.mark.parametrize("given", [IMAGE, CLAIMS])
@pytest.mark.parametrize("to", PODS)
def test_manifests_follow_the_schemas_of_kubernetes(tmp_path: Path, to: str, given: Options) -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="requirements-dev.txt has kubernetes-validate"
    ).validate
    kinds = set()
    for manifest in manifests(exported(tmp_path, to, given=given)):
        if manifest["kind"] != "TrainJob":
            validate(manifest, NEWEST, strict=True)
            kinds.add(manifest["kind"])
    assert kinds == {"ConfigMap", "NetworkPolicy"} | ({"Job", "Service"} if to == "kubernetes" else set())


@pytest.mark.parametrize("given", [IMAGE, CLAIMS])
def test_train_jobs_follow_their_definition(tmp_path: Path, given: Options) -> None:
    definition = schema_of("kubeflow_trainjob")
    metadata = definition["properties"].pop("metadata")
    assert metadata == {"type": "object"}
    schema = strict(definition)
    schema["properties"]["metadata"] = metadata
    validator = jsonschema.Draft202012Validator(schema)
    for job in by_kind(exported(tmp_path, "kubeflow", given=given), "TrainJob").values():
        validator.validate(job)
        job["spec"]["trainer"]["numberOfNodes"] = 1
        assert "numberOfNodes" in next(validator.iter_errors(job)).message


def definitions_of_kuberay() -> dict[str, jsonschema.Draft202012Validator]:
    """By kind. Pod templates are objects there."""
    found = {}
    for kind in ("RayCluster", "RayJob"):
        definition = schema_of("kuberay")[kind]
        metadata = definition["properties"].pop("metadata")
        schema = strict(definition)
        schema["properties"]["metadata"] = metadata
        found[kind] = jsonschema.Draft202012Validator(schema)
    return found


def test_clusters_of_ray_follow_their_definitions(tmp_path: Path) -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="requirements-dev.txt has kubernetes-validate"
    ).validate
    validators = definitions_of_kuberay()
    objects = {each["kind"]: each for each in manifests(exported(tmp_path, "kuberay"))}
    assert objects.keys() == {"ConfigMap", "NetworkPolicy", *validators}
    for kind, manifest in objects.items():
        if kind not in validators:
            validate(manifest, NEWEST, strict=True)
            continue
        validators[kind].validate(manifest)
        manifest["spec"]["replicas"] = 1
        assert "replicas" in next(validators[kind].iter_errors(manifest)).message
    for name, template in ray_pods(tmp_path / "out").items():
        named = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}}
        validate({**named, "template": template}, NEWEST, strict=True)


def test_tasks_follow_the_schema_of_skypilot(tmp_path: Path) -> None:
    out = exported(tmp_path, "skypilot")
    tasks = [yaml.safe_load(path.read_text()) for path in out.glob("*.yaml")]
    assert len(tasks) == 4
    validator = jsonschema.Draft202012Validator(schema_of("skypilot_task"))
    for task in tasks:
        validator.validate(task)
        task["nodes"] = 1
        assert "nodes" in next(validator.iter_errors(task)).message


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl is installed")
@pytest.mark.parametrize("to", [*PODS, "kuberay"])
def test_kustomizations_have_all_objects(tmp_path: Path, to: str) -> None:
    out = exported(tmp_path, to)
    done = subprocess.run(
        ["kubectl", "kustomize", str(out)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))

    def names(objects: Any) -> list[tuple[str, str]]:
        return sorted((each["kind"], each["metadata"]["name"]) for each in objects)

    assert names(built) == names(manifests(out))


# Pods


@pytest.mark.parametrize("to", [*PODS, "kuberay"])
def test_pods_are_confined(tmp_path: Path, to: str) -> None:
    out = exported(tmp_path, to)
    for template in (ray_pods(out) if to == "kuberay" else each_pod(out)).values():
        pod = template["spec"]
        (container,) = pod["containers"]
        both = (pod["securityContext"], container["securityContext"])
        assert all(each["runAsUser"] == 10001 and each["runAsNonRoot"] for each in both)
        assert all(each["seccompProfile"] == {"type": "RuntimeDefault"} for each in both)
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert "hostPath" not in json.dumps(pod)


def test_the_page_s_pod_that_fetches_results_is_confined_as_the_others() -> None:
    page = (PROJECT / "docs" / "kubernetes.md").read_text()
    (text,) = re.findall(r"(?ms)^```yaml\n(apiVersion: .*?)^```$", page)
    pod = yaml.safe_load(text)["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"] == pod_security()
    assert container["securityContext"] == container_security()
    assert pod["automountServiceAccountToken"] is False


def test_jobs_run_once_and_not_for_longer_than_the_run(tmp_path: Path) -> None:
    jobs = by_kind(exported(tmp_path, "kubernetes"), "Job")
    nodes = {key: job["spec"]["completions"] for key, job in jobs.items()}
    assert nodes == {DDP: 3, ALL_REDUCE: 2, HOGWILD: 1, RPC: 2}
    for job in jobs.values():
        spec = job["spec"]
        assert spec["completionMode"] == "Indexed"
        assert (spec["parallelism"], spec["backoffLimit"]) == (spec["completions"], 0)
        assert spec["template"]["spec"]["restartPolicy"] == "Never"
        assert spec["template"]["spec"]["automountServiceAccountToken"] is False
    assert jobs[DDP]["spec"]["activeDeadlineSeconds"] == 600
    assert jobs[HOGWILD]["spec"]["activeDeadlineSeconds"] == 8


@pytest.mark.parametrize("to", PODS)
def test_limits_of_the_spec(tmp_path: Path, to: str) -> None:
    pods = each_pod(exported(tmp_path, to))
    expected = {
        DDP: ("1000m", "2048Mi", "256Mi"),
        ALL_REDUCE: ("500m", "700Mi", "256Mi"),
        HOGWILD: ("4000m", "8192Mi", "1024Mi"),  # one pod has the limits of four nodes
    }
    for key, (cpu, memory, shm) in expected.items():
        (container,) = pods[key]["spec"]["containers"]
        limits = {"cpu": cpu, "memory": memory}
        assert container["resources"] == {"requests": limits, "limits": limits}
        volumes = {each["name"]: each for each in pods[key]["spec"]["volumes"]}
        assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": shm}
        paths = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        assert paths["shm"] == "/dev/shm"
        assert paths.keys() == volumes.keys()


@pytest.mark.parametrize("to", PODS)
def test_claims_replace_the_directories_of_a_pod(tmp_path: Path, to: str) -> None:
    for template in each_pod(exported(tmp_path, to, given=CLAIMS)).values():
        volumes = {each["name"]: each for each in template["spec"]["volumes"]}
        assert volumes["results"]["persistentVolumeClaim"] == {"claimName": "results"}
        assert volumes["data"]["persistentVolumeClaim"] == {"claimName": "data", "readOnly": True}


@pytest.mark.parametrize("to", PODS)
def test_a_gpu_for_each_rank(tmp_path: Path, to: str) -> None:
    (template,) = each_pod(exported(tmp_path, to, GPU)).values()
    (container,) = template["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize("to", PODS)
def test_only_pods_of_the_run_talk_to_each_other(tmp_path: Path, to: str) -> None:
    out = exported(tmp_path, to)
    pods = each_pod(out)
    policies = by_kind(out, "NetworkPolicy")
    assert policies.keys() == pods.keys()
    for key, policy in policies.items():
        spec = policy["spec"]
        chosen = spec["podSelector"]["matchLabels"]
        reached = [
            other for other, pod in pods.items() if chosen.items() <= pod["metadata"]["labels"].items()
        ]
        assert reached == [key]
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        assert spec["ingress"] == [{"from": [{"podSelector": {"matchLabels": chosen}}]}]
        to_peers, to_dns = spec["egress"]
        assert to_peers == {"to": [{"podSelector": {"matchLabels": chosen}}]}
        assert {each["port"] for each in to_dns["ports"]} == {53}
        assert [*to_dns["to"][0]] == ["namespaceSelector", "podSelector"]


def test_the_headless_service_names_the_pods(tmp_path: Path) -> None:
    out = exported(tmp_path, "kubernetes")
    pods = each_pod(out)
    for key, service in by_kind(out, "Service").items():
        spec = service["spec"]
        assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
        assert spec["selector"].items() <= pods[key]["metadata"]["labels"].items()
        assert pods[key]["spec"]["subdomain"] == service["metadata"]["name"]


# Clusters of Ray


def test_a_worker_has_one_node_of_any_run(tmp_path: Path) -> None:
    cluster, _ = ray_specs(exported(tmp_path, "kuberay"))
    (group,) = cluster["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (3, 3, 3)
    # Ray reserves for a node of a run; the limits are those of hogwild, whose pod has four nodes.
    assert (group["rayStartParams"]["num-cpus"], group["rayStartParams"]["memory"]) == ("1", str(2**31))
    (container,) = group["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "4000m", "memory": f"{8192 + 1024}Mi"}
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_a_worker_has_the_gpus_of_a_node(tmp_path: Path) -> None:
    pods = ray_pods(exported(tmp_path, "kuberay", GPU))
    requested = {
        name: pod["spec"]["containers"][0]["resources"]["requests"].get("nvidia.com/gpu")
        for name, pod in pods.items()
    }
    assert requested == {"ray-head": None, "ray-worker": "1", "submitter": None}


def test_pods_of_ray_share_results_and_have_no_token_of_kubernetes(tmp_path: Path) -> None:
    out = exported(tmp_path, "kuberay")
    cluster, _ = ray_specs(out)
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["enableIngress"] is False
    for name, template in ray_pods(out).items():
        assert template["spec"]["automountServiceAccountToken"] is False
        volumes = {each["name"]: each for each in template["spec"]["volumes"]}
        (container,) = template["spec"]["containers"]
        assert {each["name"] for each in container["volumeMounts"]} == volumes.keys()
        if name != "submitter":
            assert volumes["results"]["persistentVolumeClaim"] == {"claimName": "results"}
            assert volumes["data"]["persistentVolumeClaim"] == {"claimName": "data", "readOnly": True}


def test_the_operator_alone_reaches_the_head_from_outside(tmp_path: Path) -> None:
    out = exported(tmp_path, "kuberay")
    (policy,) = [each["spec"] for each in manifests(out) if each["kind"] == "NetworkPolicy"]
    chosen = policy["podSelector"]
    for template in ray_pods(out).values():
        assert chosen["matchLabels"].items() <= template["metadata"]["labels"].items()
    peers, operator = policy["ingress"]
    assert peers == {"from": [{"podSelector": chosen}]}
    assert operator["from"][0]["podSelector"]["matchLabels"] == {
        "app.kubernetes.io/name": "kuberay-operator"
    }
    assert operator["ports"] == [{"protocol": "TCP", "port": 8265}]


def test_the_job_runs_the_sweep_on_its_cluster(tmp_path: Path) -> None:
    given = Options(**{**asdict(CLAIMS), "sets": ("lr=0.25",), "nodes": "2"})
    text = "name: s\nray: {wait_s: 9}\nblocks: [{base: {strategy: rpc_split}, axes: {nodes: [2, 3]}}]\n"
    out = exported(tmp_path, "kuberay", text, given)
    _, job = ray_specs(out)
    (name,) = {each["metadata"]["name"] for each in manifests(out)}
    assert job["clusterSelector"] == {"ray.io/cluster": name}
    command = shlex.split(job["entrypoint"])
    assert command[:4] == ["python", "-m", "orchestrator", "sweep"]
    (text,) = [each["data"]["sweep.yml"] for each in manifests(out) if each["kind"] == "ConfigMap"]
    (tmp_path / "inside.yml").write_text(text)
    arguments = [str(tmp_path / "inside.yml") if each.endswith(".yml") else each for each in command[3:]]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "results"), "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "rpc_split-rpc-n2-s0" in done.output
    loaded = load_sweep(tmp_path / "inside.yml")
    options = loaded.spec.options_of("ray")
    assert options == RayOptions(address="auto", wait_s=9)
    assert {"--shared-network", "ray", "lr=0.25"} <= {*command}


def test_ray_knows_the_parameters_of_its_start(tmp_path: Path) -> None:
    start = pytest.importorskip("ray.scripts.scripts", reason="ray is not installed").start
    cluster, _ = ray_specs(exported(tmp_path, "kuberay"))
    assert cluster["rayVersion"].rpartition(".")[0] == version("ray").rpartition(".")[0]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        given = [f"--{name}={value}" for name, value in group["rayStartParams"].items()]
        start.make_context("start", given)


@pytest.mark.parametrize(
    ("base", "given", "message"),
    [
        ("strategy: all_reduce, nodes: 2", CLAIMS, "mpi does not run on runtime ray"),
        ("strategy: ddp, nodes: 2, restarts: 1", CLAIMS, "lost rank"),
        ("strategy: ddp", IMAGE, "needs --results-claim"),
        ("strategy: ddp, cpus: 0.3333", CLAIMS, "0.001"),
    ],
)
def test_what_ray_cannot_run_is_refused(tmp_path: Path, base: str, given: Options, message: str) -> None:
    assert message in refused(tmp_path, "kuberay", base, given)


# Ranks


def environment_of(template: Manifest, node: int) -> dict[str, str]:
    """The variables of the pod of a node; fields of the pod are the Job's index."""
    (container,) = template["spec"]["containers"]
    return {
        "JOB_COMPLETION_INDEX": str(node),
        **{each["name"]: each.get("value", str(node)) for each in container["env"]},
    }


def spec_of(out: Path, key: str) -> RunSpec:
    return RunSpec.model_validate_json(by_kind(out, "ConfigMap")[key]["data"]["spec.json"])


@pytest.mark.parametrize("key", [DDP, RPC])
def test_pods_of_a_job_are_the_ranks_of_the_run(tmp_path: Path, key: str) -> None:
    out = exported(tmp_path, "kubernetes")
    spec, job, template = spec_of(out, key), by_kind(out, "Job")[key], each_pod(out)[key]
    name = job["metadata"]["name"]
    for node in range(spec.nodes):
        context = read_context(spec, environment_of(template, node))
        assert (context.rank, context.size) == (node, spec.nodes)
        assert context.rendezvous == f"tcp://{name}-0.{name}:29500"
        assert str(context.out_dir) == f"/results/my_sweep-/{spec.key}"
    assert template["spec"]["containers"][0]["command"] == ["python", "-m", "trainer"]


@pytest.mark.parametrize("key", [DDP, RPC])
def test_pods_of_a_train_job_are_the_ranks_of_the_run(tmp_path: Path, key: str) -> None:
    out = exported(tmp_path, "kubeflow")
    spec, job, template = spec_of(out, key), by_kind(out, "TrainJob")[key], each_pod(out)[key]
    trainer, name = job["spec"]["trainer"], job["metadata"]["name"]
    for node in range(spec.nodes):
        set_by_kubeflow = {
            "PET_NNODES": str(trainer["numNodes"]),
            "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
            "PET_NODE_RANK": str(node),
            "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
            "PET_MASTER_PORT": "29500",
        }
        context = read_context(spec, {**environment_of(template, node), **set_by_kubeflow})
        assert (context.rank, context.size) == (node, spec.nodes)
        assert context.rendezvous == f"tcp://{name}-node-0-0.{name}:29500"


@pytest.mark.parametrize("to", PODS)
def test_torchrun_starts_several_ranks_of_a_pod(tmp_path: Path, to: str) -> None:
    out = exported(tmp_path, to)
    template = each_pod(out)[ALL_REDUCE]
    assert template["spec"]["containers"][0]["command"][1:3] == ["-m", "torch.distributed.run"]
    found = environment_of(template, 1)
    if to == "kubernetes":
        assert (found["PET_NNODES"], found["PET_NODE_RANK"], found["PET_NPROC_PER_NODE"]) == ("2", "1", "2")
    else:
        assert by_kind(out, "TrainJob")[ALL_REDUCE]["spec"]["trainer"]["numProcPerNode"] == 2
    spec = spec_of(out, ALL_REDUCE)
    with pytest.raises(LaunchError, match="RANK is not set"):
        read_context(spec, found)
    inner = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert read_context(spec, {**found, **inner}).rank == 3


@pytest.mark.parametrize("to", PODS)
def test_one_pod_has_all_ranks_of_topology_single(tmp_path: Path, to: str) -> None:
    out = exported(tmp_path, to)
    pet = {"PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "1"}
    found = environment_of(each_pod(out)[HOGWILD], 0) | (pet if to == "kubeflow" else {})
    assert read_context(spec_of(out, HOGWILD), found).size == 4


def run_task(tmp_path: Path, task: Mapping[str, Any], node: int) -> tuple[dict[str, str], list[str]]:
    """Run a task's `run` with a Python that writes its environment. Returns that, and its arguments."""
    home = tmp_path / f"home-{node}"
    python = home / "shardyard" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S -c "$DUMP" "$@"\n')
    python.chmod(0o755)
    dump = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"
    addresses = "".join(f"10.0.0.{each}\n" for each in range(1, task["num_nodes"] + 1))
    cluster = {
        "SKYPILOT_NODE_RANK": str(node),
        "SKYPILOT_NUM_NODES": str(task["num_nodes"]),
        "SKYPILOT_NODE_IPS": addresses,
        "SKYPILOT_NUM_GPUS_PER_NODE": "0",
    }
    done = subprocess.run(
        ["bash", "-c", task["run"]],
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "DUMP": dump, **task["envs"], **cluster},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    environment, arguments = json.loads(done.stdout)
    return environment, arguments


def test_machines_of_skypilot_are_the_nodes_of_the_run(tmp_path: Path) -> None:
    out = exported(tmp_path, "skypilot")
    tasks = {path.stem: yaml.safe_load(path.read_text()) for path in out.glob("*.yaml")}
    for name, task in tasks.items():
        for source in task["file_mounts"].values():
            assert (out / source).exists()
        subprocess.run(["bash", "-n", "-c", task["setup"]], check=True, timeout=30)
        spec = RunSpec.model_validate_json((out / "specs" / f"{name}.json").read_text())
        for node in range(task["num_nodes"]):
            environment, arguments = run_task(tmp_path / name, task, node)
            assert Path(environment["SHARDYARD_SPEC"]).name == "spec.json"
            if spec.processes_per_node == 1:
                context = read_context(spec, environment)
                assert context.rank == (0 if spec.topology == "single" else node)
                assert arguments == ["-m", "trainer"]
            else:
                numbers = ("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR")
                assert [environment[each] for each in numbers] == ["2", str(node), "2", "10.0.0.1"]
                assert arguments == ["-m", "torch.distributed.run", "-m", "trainer"]


def test_skypilot_downloads_a_dataset_that_needs_it(tmp_path: Path) -> None:
    text = "name: s\nblocks: [base: {strategy: ddp, dataset: mnist}]\n"
    (path,) = exported(tmp_path, "skypilot", text).glob("*.yaml")
    assert "prepare" in yaml.safe_load(path.read_text())["setup"]


# Names


def planned(sweep: str = "s", **fields: Any) -> PlannedRun:
    return PlannedRun(sweep, RunSpec.model_validate({"strategy": "ddp", **fields}))


@pytest.mark.parametrize("sweep", ["s", "7", "a" * 64, "a_b-", "0-" + "x" * 60])
def test_names_are_dns_labels_and_unique(sweep: str) -> None:
    runs = [planned(each, seed=seed) for each in (sweep, f"{sweep}x") for seed in range(20)]
    names = {run.name for run in runs}
    assert len(names) == len(runs)
    for run in runs:
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,46}[a-z0-9])?", run.name)
        assert len(f"{run.name}-node-0-1023") <= 63
        for value in run.labels.values():
            assert re.fullmatch(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", value)


def test_labels_that_are_shortened_stay_unique() -> None:
    assert label_value("ddp-gloo-n2-s0") == "ddp-gloo-n2-s0"
    long = ["a" * 64, "a" * 65, "b_", "b", "größe"]
    assert len({label_value(each) for each in long}) == len(long)


# Exporting again, and what is refused


@pytest.mark.parametrize("to", [*PODS, "skypilot"])
def test_exporting_again_changes_only_what_has_changed(tmp_path: Path, to: str) -> None:
    def changes(text: str) -> list[str]:
        (tmp_path / "sweep.yml").write_text(text)
        lines = export(tmp_path / "sweep.yml", to, tmp_path / "out", options(to))
        return [line.partition(":")[0] for line in lines if re.match(r"(added|replaced|unchanged): ", line)]

    assert {*changes(SWEEP)} == {"added"}
    assert {*changes(SWEEP)} == {"unchanged"}
    again = changes(SWEEP.replace("timeout_s: 7.5", "timeout_s: 9"))
    assert (again.count("replaced"), again.count("unchanged")) == (1, 4)


def refused(tmp_path: Path, to: str, base: str, given: Options | None = None) -> str:
    with pytest.raises(InputError) as error:
        exported(tmp_path, to, f"name: s\nblocks: [base: {{{base}}}]\n", given)
    assert not (tmp_path / "out").exists()
    return str(error.value)


@pytest.mark.parametrize("to", [*PODS, "skypilot"])
@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("strategy: all_reduce, nodes: 2", "transport mpi needs mpirun.*--gloo-for-mpi"),
        ("strategy: ddp, nodes: 2, link: {bandwidth_mbit: 10}", "link needs a runtime of Shardyard"),
        ("strategy: ddp, nodes: 2, node_speed: [1, 0.5]", "node_speed needs"),
        ("strategy: ddp, nodes: 2, restarts: 1", "restarts needs"),
        ("strategy: ddp, nodes: 2, checkpoint_epochs: 1", "checkpoints need"),
    ],
)
def test_runs_that_need_a_runtime_are_refused(tmp_path: Path, to: str, base: str, message: str) -> None:
    assert re.search(message, refused(tmp_path, to, base))


@pytest.mark.slow
def test_components_from_import_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\n\ndef net(shape, classes):\n"
        "    linear = nn.Linear(shape[1] * shape[2], classes)\n"
        "    return nn.Sequential(nn.Flatten(), linear, nn.LogSoftmax(dim=1))\n"
    )
    message = refused(tmp_path, "kubernetes", "strategy: ddp, model: './mine.py:net'")
    assert "import paths" in message


def test_what_pods_need_beside(tmp_path: Path) -> None:
    assert "needs --data-claim" in refused(tmp_path, "kubernetes", "strategy: ddp, dataset: mnist")
    assert "0.001" in refused(tmp_path, "kubernetes", "strategy: ddp, cpus: 0.3333")
    assert "needs --image" in refused(tmp_path, "kubernetes", "strategy: ddp", Options(sets=("epochs=1",)))
    for given in (Options(image="a b"), Options(image="x", data_claim="A_b")):
        assert "is not the name" in refused(tmp_path, "kubeflow", "strategy: ddp", given)
    assert "GPU" in refused(tmp_path, "skypilot", "strategy: ddp, transport: nccl")
    checkpoints = "name: s\nblocks: [base: {strategy: ddp, checkpoint_epochs: 1}]\n"
    (template,) = each_pod(exported(tmp_path, "kubernetes", checkpoints, CLAIMS)).values()
    assert environment_of(template, 0)["SHARDYARD_CHECKPOINTS"].startswith("/results/s/ddp-")


def test_gloo_twins_are_asked_for_and_counted(tmp_path: Path) -> None:
    text = "name: s\nblocks: [{base: {strategy: all_reduce, nodes: 2}, axes: {transport: [mpi, gloo]}}]\n"
    (tmp_path / "sweep.yml").write_text(text)
    given = Options(image="x", gloo_for_mpi=True)
    lines = [*export(tmp_path / "sweep.yml", "kubernetes", tmp_path / "out", given)]
    # The twin is the run over gloo, which the sweep has already.
    assert [*by_kind(tmp_path / "out", "Job")] == ["all_reduce-gloo-n2-s0"]
    assert any("over mpi" in line and line.endswith(": 1") for line in lines)


@pytest.mark.parametrize("to", EXPORTERS.entries)
def test_options_of_other_formats_are_refused(tmp_path: Path, to: str) -> None:
    used = EXPORTERS.load(to).uses
    assert {*used} <= {*Options.__dataclass_fields__}
    values: dict[str, Any] = {"sets": ("epochs=1",), "gloo_for_mpi": True}
    for name in Options.__dataclass_fields__.keys() - {*used}:
        with pytest.raises(InputError, match=f"{option(name)} has no effect with --to {to}"):
            [*export(tmp_path, to, None, Options(**{name: values.get(name, "x")}))]


@pytest.mark.parametrize("to", PODS)
def test_options_change_all_runs(tmp_path: Path, to: str) -> None:
    assert issubclass(EXPORTERS.load(to), PodExporter)
    given = Options(image="x", sets=("epochs=4", "nodes=2"))
    out = exported(tmp_path, to, "name: s\nblocks: [base: {strategy: ddp, nodes: 3}]\n", given)
    spec = spec_of(out, "ddp-gloo-n2-s0")
    assert (spec.epochs, spec.nodes) == (4, 2)


def test_a_results_directory_is_no_sweep(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="takes a sweep file"):
        [*export(tmp_path, "kubernetes", None, IMAGE)]
    with pytest.raises(InputError, match=r"no such file or shipped sweep.*quickstart"):
        [*export(Path("quickstrt"), "kubernetes", None, IMAGE)]
