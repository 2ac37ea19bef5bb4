"""Mistakes in exports for clusters: unknown fields, open pods, sizes, ranks that never meet, names."""

from __future__ import annotations

import copy
import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from math import ceil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.commands.export import export
from orchestrator.errors import InputError
from orchestrator.export import EXPORTERS
from orchestrator.export.base import Options, option
from orchestrator.export.sweep_exporter import PlannedRun
from orchestrator.runtimes.ray.options import RayOptions
from orchestrator.sweeps.load import load_sweep
from tests.unit.conftest import PROJECT
from trainer.launch.environment import read_context
from trainer.launch.launchers import LaunchError
from trainer.spec.run_spec import RunSpec

SWEEP = """\
name: my_sweep-
base: {model: mlp, epochs: 2}
blocks:
  - base: {strategy: ddp, nodes: 3}
  - base: {strategy: all_reduce, transport: gloo, nodes: 2, processes_per_node: 2, cpus: 0.5,
      memory_mb: 700}
  - base: {strategy: hogwild, nodes: 4, timeout_s: 7.5}
  - base: {strategy: rpc_split, nodes: 2, model: lenet}
"""
WITH_CHECKPOINTS = SWEEP.replace("nodes: 3}", "nodes: 3, checkpoint_epochs: 1}")
DDP, ALL_REDUCE, HOGWILD = "ddp-gloo-n3-s0", "all_reduce-gloo-n2x2-s0", "hogwild-memory-n4-s0"
# Of each run: pods, seconds, cores, memory, shared memory. One pod has the limits of hogwild's four nodes.
SIZES = {
    DDP: (3, 600, "1000m", "2048Mi", "256Mi"),
    ALL_REDUCE: (2, 600, "500m", "700Mi", "256Mi"),
    HOGWILD: (1, 8, "4000m", "8192Mi", "1024Mi"),
    "rpc_split-rpc-n2-s0": (2, 600, "1000m", "2048Mi", "256Mi"),
}
GPU = "name: gpu\nblocks: [base: {strategy: ddp, transport: nccl, nodes: 2}]\n"
IMAGE = Options(image="registry.example/shardyard:1")
CLAIMS = Options(image="shardyard:1", results_claim="results", data_claim="data")
OPTIONS = {"kubernetes": IMAGE, "kubeflow": CLAIMS, "kuberay": CLAIMS, "skypilot": Options()}
PODS = ["kubernetes", "kubeflow"]
NEWEST = "1.37"  # of the schemas that requirements-dev.txt installs
Manifest = dict[str, Any]


@dataclass(frozen=True)
class Exported:
    """An export: what it printed, and the objects that `kubectl apply -k` reads, or the tasks."""

    out: Path
    lines: list[str]
    objects: list[Manifest]

    def of_kind(self, kind: str) -> dict[str, Manifest]:
        """By run key."""
        found = [each for each in self.objects if each["kind"] == kind]
        names = [each["metadata"]["annotations"]["shardyard/run"].rpartition("-")[0] for each in found]
        return dict(zip(names, found, strict=True))

    def pods(self) -> dict[str, Manifest]:
        """The templates of all pods: by run key, and those of Ray by their container."""
        jobs = {key: job["spec"]["template"] for key, job in self.of_kind("Job").items()}
        if found := jobs | {key: train_pod(job) for key, job in self.of_kind("TrainJob").items()}:
            return found
        cluster, job, _ = self.ray()
        groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
        templates = [*(group["template"] for group in groups), job["submitterPodTemplate"]]
        return {each["spec"]["containers"][0]["name"]: each for each in templates}

    def ray(self) -> tuple[Manifest, Manifest, Manifest]:
        """The specs of RayCluster, RayJob and NetworkPolicy."""
        specs = {each["kind"]: each.get("spec", {}) for each in self.objects}
        return specs["RayCluster"], specs["RayJob"], specs["NetworkPolicy"]


Exports = Mapping[str, Exported]


def exported(folder: Path, to: str, text: str = SWEEP, given: Options | None = None) -> Exported:
    (folder / "sweep.yml").write_text(text)
    out = folder / to
    lines = [*export(folder / "sweep.yml", to, out, given or OPTIONS[to])]
    files = out.glob("*.yaml") if to == "skypilot" else listed(out)
    return Exported(out, lines, [each for path in files for each in yaml.safe_load_all(path.read_text())])


def listed(out: Path) -> Iterator[Path]:
    for name in yaml.safe_load((out / "kustomization.yaml").read_text())["resources"]:
        yield from listed(out / name) if (out / name).is_dir() else [out / name]


def train_pod(job: Manifest) -> Manifest:
    """The pods of a TrainJob, with what its trainer adds."""
    (patch,), trainer = job["spec"]["runtimePatches"], job["spec"]["trainer"]
    (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    template: Manifest = replicated["template"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    container |= {name: trainer[name] for name in ("image", "command", "env")}
    container["resources"] = trainer["resourcesPerNode"]
    return template


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    """The sweep in each format; with claims and checkpoints for kubeflow, and neither for kubernetes."""
    texts = dict.fromkeys(OPTIONS, SWEEP) | {"kubeflow": WITH_CHECKPOINTS}
    return {to: exported(tmp_path_factory.mktemp("exports"), to, text) for to, text in texts.items()}


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


@pytest.fixture(scope="module")
def schemas() -> Mapping[str, Any]:
    """Of resource definitions by kind, and of SkyPilot's tasks."""
    names = ("kubeflow_trainjob", "skypilot_task", "kuberay")
    job, task, ray = (
        json.loads((PROJECT / f"tests/support/{name}.schema.json").read_text()) for name in names
    )
    found = {"TrainJob": strict(job), "task": task}
    found |= {kind: strict(ray[kind]) for kind in ("RayCluster", "RayJob")}
    return {kind: jsonschema.Draft202012Validator(schema) for kind, schema in found.items()}


@pytest.mark.parametrize("to", OPTIONS)
def test_objects_have_only_fields_that_their_definitions_know(
    exports: Exports, schemas: Mapping[str, Any], to: str
) -> None:
    reason = "requirements-dev.txt has kubernetes-validate"
    validate = pytest.importorskip("kubernetes_validate", reason=reason).validate
    for manifest in exports[to].objects:
        kind = manifest.get("kind", "task")
        if kind in schemas:
            schemas[kind].validate(manifest)
            assert [*schemas[kind].iter_errors({**manifest, "unknown": 1})]
        else:
            validate(manifest, NEWEST, strict=True)
    if to != "skypilot":
        for template in exports[to].pods().values():  # objects of any form in these definitions
            pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}}
            validate({**pod, "template": template}, NEWEST, strict=True)
        written = {*exports[to].out.rglob("*.yaml")} - {*exports[to].out.rglob("kustomization.yaml")}
        assert {*listed(exports[to].out)} == written


# Pods


@pytest.mark.parametrize("to", [*PODS, "kuberay"])
def test_pods_are_confined_and_mount_their_volumes(exports: Exports, to: str) -> None:
    for name, template in exports[to].pods().items():
        (container,) = template["spec"]["containers"]
        pod, own = template["spec"]["securityContext"], container["securityContext"]
        for each in (pod, own):
            assert (each["runAsUser"], each["runAsNonRoot"]) == (10001, True)
            assert each["seccompProfile"] == {"type": "RuntimeDefault"}
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
        assert template["spec"].get("automountServiceAccountToken", to == "kubeflow") is (to == "kubeflow")
        volumes = {each.pop("name"): each for each in copy.deepcopy(template["spec"]["volumes"])}
        assert {each["name"] for each in container["volumeMounts"]} == volumes.keys()
        assert "hostPath" not in {kind for each in volumes.values() for kind in each}
        if to != "kubernetes" and name != "submitter":
            claim = {"claimName": "data", "readOnly": True}
            found = [volumes[each] for each in ("results", "data")]
            assert found == [{"persistentVolumeClaim": each} for each in ({"claimName": "results"}, claim)]


@pytest.mark.parametrize("to", PODS)
def test_jobs_run_once_with_the_pods_the_time_and_the_limits_of_the_run(exports: Exports, to: str) -> None:
    jobs = exports[to].of_kind("Job" if to == "kubernetes" else "TrainJob")
    pods = exports[to].pods()
    assert jobs.keys() == SIZES.keys()
    for key, (nodes, seconds, cpu, memory, shm) in SIZES.items():
        spec, (container,) = jobs[key]["spec"], pods[key]["spec"]["containers"]
        if to == "kubernetes":
            assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (nodes, nodes, 0)
            assert (spec["completionMode"], pods[key]["spec"]["restartPolicy"]) == ("Indexed", "Never")
        else:
            assert spec["trainer"]["numNodes"] == nodes
        assert spec["activeDeadlineSeconds"] == seconds
        limits = {"cpu": cpu, "memory": memory}
        assert container["resources"] == {"requests": limits, "limits": limits}
        size = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm}}
        assert size in pods[key]["spec"]["volumes"]
        assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]


def test_only_ranks_have_gpus(tmp_path: Path) -> None:
    found = {
        name: pod["spec"]["containers"][0]["resources"]["requests"].get("nvidia.com/gpu")
        for to in ("kubernetes", "kuberay")
        for name, pod in exported(tmp_path, to, GPU).pods().items()
    }
    assert found == {"ddp-nccl-n2-s0": "1", "ray-head": None, "ray-worker": "1", "submitter": None}


@pytest.mark.parametrize("to", PODS)
def test_pods_reach_only_those_of_their_run_and_find_them_before_they_are_ready(
    exports: Exports, to: str
) -> None:
    pods, services = exports[to].pods(), exports[to].of_kind("Service")
    policies = exports[to].of_kind("NetworkPolicy")
    assert policies.keys() == pods.keys()
    for key, policy in policies.items():
        peers = {"podSelector": policy["spec"]["podSelector"]}
        labels = peers["podSelector"]["matchLabels"]
        chosen = [other for other in pods if labels.items() <= pods[other]["metadata"]["labels"].items()]
        assert (chosen, policy["spec"]["policyTypes"]) == ([key], ["Ingress", "Egress"])
        to_peers, to_dns = policy["spec"]["egress"]
        assert (policy["spec"]["ingress"], to_peers) == ([{"from": [peers]}], {"to": [peers]})
        assert {each["port"] for each in to_dns["ports"]} == {53}
        assert [*to_dns["to"][0]] == ["namespaceSelector", "podSelector"]
        if to == "kubernetes":
            service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels}
            assert services[key]["spec"] == service
            assert pods[key]["spec"]["subdomain"] == services[key]["metadata"]["name"]


# Clusters of Ray


def test_a_worker_has_one_node_of_any_run(exports: Exports) -> None:
    cluster, _, _ = exports["kuberay"].ray()
    (group,) = cluster["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (3, 3, 3)
    # Ray reserves for a node of a run; the limits are those of hogwild, whose pod has four nodes.
    assert (group["rayStartParams"]["num-cpus"], group["rayStartParams"]["memory"]) == ("1", str(2**31))
    (container,) = group["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "4000m", "memory": f"{8192 + 1024}Mi"}
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    size = {"medium": "Memory", "sizeLimit": f"{128 + 1024}Mi"}  # of Ray's store and of four nodes
    assert {"name": "shm", "emptyDir": size} in group["template"]["spec"]["volumes"]


def test_clusters_need_a_token_and_only_the_operator_reaches_them_from_outside(exports: Exports) -> None:
    cluster, _, policy = exports["kuberay"].ray()
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["enableIngress"] is False
    chosen, (peers, operator) = policy["podSelector"], policy["ingress"]
    for template in exports["kuberay"].pods().values():
        assert chosen["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert peers == {"from": [{"podSelector": chosen}]}
    labels = {"app.kubernetes.io/name": "kuberay-operator"}
    assert operator["from"][0]["podSelector"]["matchLabels"] == labels
    assert operator["ports"] == [{"protocol": "TCP", "port": 8265}]


def test_the_job_runs_the_sweep_on_its_cluster(tmp_path: Path) -> None:
    given = replace(CLAIMS, sets=("lr=0.25",), nodes="2")
    text = "name: s\nray: {wait_s: 9}\nblocks: [{base: {strategy: rpc_split}, axes: {nodes: [2, 3]}}]\n"
    out = exported(tmp_path, "kuberay", text, given)
    (name,) = {each["metadata"]["name"] for each in out.objects}
    job, inside = out.ray()[1], tmp_path / "inside.yml"
    assert job["clusterSelector"] == {"ray.io/cluster": name}
    command = shlex.split(job["entrypoint"])
    assert command[:4] == ["python", "-m", "orchestrator", "sweep"]
    (text,) = [each["data"]["sweep.yml"] for each in out.objects if each["kind"] == "ConfigMap"]
    inside.write_text(text)
    arguments = [str(inside) if each.endswith(".yml") else each for each in command[3:]]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "results"), "--dry-run"])
    assert (done.exit_code, "rpc_split-rpc-n2-s0" in done.output) == (0, True)
    assert load_sweep(inside).spec.options_of("ray") == RayOptions(address="auto", wait_s=9)
    assert {"--shared-network", "ray", "lr=0.25"} <= {*command}


def test_ray_knows_the_parameters_of_its_start(exports: Exports) -> None:
    start = pytest.importorskip("ray.scripts.scripts", reason="ray is not installed").start
    cluster, _, _ = exports["kuberay"].ray()
    assert cluster["rayVersion"].rpartition(".")[0] == version("ray").rpartition(".")[0]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        start.make_context("start", [f"--{key}={value}" for key, value in group["rayStartParams"].items()])


# Ranks

NUMBERS = ("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR")


@pytest.mark.parametrize("to", PODS)
def test_pods_are_the_ranks_of_their_run(exports: Exports, to: str) -> None:
    jobs = exports[to].of_kind("Job" if to == "kubernetes" else "TrainJob")
    specs = exports[to].of_kind("ConfigMap")
    for key, template in exports[to].pods().items():
        name = jobs[key]["metadata"]["name"]
        spec = RunSpec.model_validate_json(specs[key]["data"]["spec.json"])
        host = f"{name}-0.{name}" if to == "kubernetes" else f"{name}-node-0-0.{name}"
        (container,) = template["spec"]["containers"]
        for node in range(SIZES[key][0]):
            env = {each["name"]: each.get("value", str(node)) for each in container["env"]}
            env["JOB_COMPLETION_INDEX"] = str(node)
            saved = f"{env['SHARDYARD_OUT']}/checkpoints" if spec.checkpoints else None
            assert env.get("SHARDYARD_CHECKPOINTS") == saved
            if to == "kubeflow":  # which sets these
                trainer = jobs[key]["spec"]["trainer"]
                values = (trainer["numNodes"], node, trainer["numProcPerNode"], host)
                env |= {**dict(zip(NUMBERS, map(str, values), strict=True)), "PET_MASTER_PORT": "29500"}
            if key == ALL_REDUCE:  # torchrun starts two ranks
                assert container["command"][1:] == ["-m", "torch.distributed.run", "-m", "trainer"]
                assert [env[each] for each in NUMBERS] == ["2", str(node), "2", host]
                with pytest.raises(LaunchError, match="RANK is not set"):
                    read_context(spec, env)
                continue
            context = read_context(spec, env)
            assert (context.rank, context.size) == (node, spec.world_size)
            assert context.rendezvous == ("" if key == HOGWILD else f"tcp://{host}:29500")
            assert str(context.out_dir) == f"/results/my_sweep-/{spec.key}"
            assert container["command"] == ["python", "-m", "trainer"]


def environment_of(task: Manifest, node: int, home: Path) -> dict[str, str]:
    """What a task's `run` gives to Python, with `ARGUMENTS`."""
    python = home / "shardyard" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nARGUMENTS="$*" exec env -0\n')
    python.chmod(0o755)
    cluster = {
        "SKYPILOT_NODE_RANK": str(node),
        "SKYPILOT_NUM_NODES": str(task["num_nodes"]),
        "SKYPILOT_NODE_IPS": "".join(f"10.0.0.{each}\n" for each in range(1, task["num_nodes"] + 1)),
        "SKYPILOT_NUM_GPUS_PER_NODE": "0",
    }
    env = {"PATH": "/usr/bin:/bin", "HOME": str(home), **task["envs"], **cluster}
    written = subprocess.check_output(["bash", "-c", task["run"]], env=env, timeout=30, text=True)
    return dict(each.split("=", 1) for each in written.split("\0")[:-1])


def test_machines_of_skypilot_are_the_nodes_of_the_run(exports: Exports, tmp_path: Path) -> None:
    out = exports["skypilot"].out
    for task in exports["skypilot"].objects:
        assert all((out / source).exists() for source in task["file_mounts"].values())
        subprocess.run(["bash", "-n", "-c", task["setup"]], check=True, timeout=30)
        spec = RunSpec.model_validate_json((out / f"specs/{task['name']}.json").read_text())
        nodes, _, *sizes = SIZES[spec.key.rpartition("-")[0]]
        cores, megabytes = (int(re.sub(r"\D", "", each)) for each in sizes[:2])
        least = {"cpus": f"{ceil(cores / 1000)}+", "memory": f"{ceil(megabytes / 1024)}+"}
        assert (task["num_nodes"], least.items() <= task["resources"].items()) == (nodes, True)
        for node in range(task["num_nodes"]):
            env = environment_of(task, node, tmp_path / f"{task['name']}-{node}")
            assert env["SHARDYARD_OUT"].endswith(f"/results/my_sweep-/{spec.key}")
            if spec.processes_per_node == 1:
                assert (read_context(spec, env).rank, env["ARGUMENTS"]) == (node, "-m trainer")
            else:
                assert [env[each] for each in NUMBERS] == ["2", str(node), "2", "10.0.0.1"]
                assert env["ARGUMENTS"] == "-m torch.distributed.run -m trainer"


# Names


@settings(deadline=None, max_examples=30)
@example("a" * 64)
@given(sweep=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", fullmatch=True))
def test_names_are_dns_labels_and_labels_are_values_and_all_are_unique(sweep: str) -> None:
    specs = [RunSpec(strategy="ddp", seed=seed) for seed in (0, 1)]  # type: ignore[arg-type]
    runs = [PlannedRun(name, spec) for name in (sweep, f"{sweep}x", f"{sweep}_") for spec in specs]
    assert len({run.name for run in runs}) == len({(*run.labels.values(),) for run in runs}) == len(runs)
    for run in runs:
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,46}[a-z0-9])?", run.name)
        for value, whole in zip(run.labels.values(), run.annotations.values(), strict=True):
            assert re.fullmatch(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", value)
            assert value == whole or re.search(r"\W|_$|-$|.{64}", whole)


# What is refused


@pytest.mark.parametrize(
    ("to", "base", "given", "message"),
    [
        ("kubeflow", "nodes: 2, strategy: all_reduce", None, "transport mpi needs mpirun.*--gloo-for-mpi"),
        ("kubernetes", "nodes: 2, link: {bandwidth_mbit: 10}", None, "link needs a runtime of Shardyard"),
        ("kubernetes", "nodes: 2, node_speed: [1, 0.5]", None, "node_speed needs"),
        ("kubernetes", "nodes: 2, restarts: 1", None, "restarts needs"),
        ("kubernetes", "checkpoint_epochs: 1", None, "checkpoints need --results-claim"),
        ("skypilot", "checkpoint_epochs: 1", None, "checkpoints need a directory"),
        ("skypilot", "transport: nccl", None, "GPU"),
        ("kubernetes", "dataset: mnist", None, "needs --data-claim"),
        ("kubernetes", "cpus: 0.3333", None, "0.001"),
        ("kubernetes", "seed: 1", Options(sets=("epochs=1",)), "needs --image"),
        ("kubeflow", "seed: 1", Options(image="a b"), "--image 'a b': is not the name"),
        ("kubeflow", "seed: 1", Options(image="x", data_claim="A_b"), "--data-claim 'A_b': is not"),
        ("kuberay", "nodes: 2, strategy: all_reduce", CLAIMS, "mpi does not run on runtime ray"),
        ("kuberay", "nodes: 2, restarts: 1", CLAIMS, "lost rank"),
        ("kuberay", "seed: 1", IMAGE, "needs --results-claim"),
    ],
)
def test_what_a_format_cannot_run_is_refused_before_anything_is_written(
    tmp_path: Path, to: str, base: str, given: Options | None, message: str
) -> None:
    strategy = "" if "strategy" in base else "strategy: ddp, "
    with pytest.raises(InputError, match=message):
        exported(tmp_path, to, f"name: s\nblocks: [base: {{{strategy}{base}}}]\n", given)
    assert not (tmp_path / to).exists()


def test_components_from_import_paths_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(RunSpec, "has_imports", True)
    for to in ("kubernetes", "kuberay"):
        with pytest.raises(InputError, match=r"import paths.* and 3 more"):
            exported(tmp_path, to)


def test_gloo_twins_are_asked_for_and_counted(tmp_path: Path) -> None:
    text = "name: s\nblocks: [{base: {strategy: all_reduce, nodes: 2}, axes: {transport: [mpi, gloo]}}]\n"
    out = exported(tmp_path, "kubernetes", text, replace(IMAGE, gloo_for_mpi=True))
    # The twin is the run over gloo, which the sweep has already.
    assert [*out.pods()] == ["all_reduce-gloo-n2-s0"]
    assert any("over mpi" in line and line.endswith(": 1") for line in out.lines)


def test_options_of_other_formats_are_refused(tmp_path: Path) -> None:
    values: dict[str, Any] = {"sets": ("epochs=1",), "gloo_for_mpi": True}
    for to in EXPORTERS.entries:
        for name in Options.__dataclass_fields__.keys() - {*EXPORTERS.load(to).uses}:
            with pytest.raises(InputError, match=f"{option(name)} has no effect with --to {to}"):
                [*export(tmp_path, to, None, Options(**{name: values.get(name, "x")}))]
