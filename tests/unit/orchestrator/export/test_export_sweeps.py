"""Mistakes in exports for clusters: unknown fields, open pods, sizes, ranks that never meet, names."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
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
from tests.unit.golden import assert_reviewed
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
OPTIONS = {"kubernetes": IMAGE, "kuberay": CLAIMS}
SHOWN = {"kubernetes": "all-reduce", "kuberay": ""}  # in golden files
NEWEST = "1.37"  # of the schemas that requirements-dev.txt installs
Manifest = dict[str, Any]


@dataclass(frozen=True)
class Exported:
    """An export: what it printed, and the objects that `kubectl apply -k` reads."""

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
        if found := {key: job["spec"]["template"] for key, job in self.of_kind("Job").items()}:
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
    folder.mkdir(exist_ok=True)
    (folder / "sweep.yml").write_text(text)
    out = folder / to
    lines = [*export(folder / "sweep.yml", to, out, given or OPTIONS[to])]
    return Exported(out, lines, [yaml.safe_load(path.read_text()) for path in listed(out)])


def listed(out: Path) -> Iterator[Path]:
    for name in yaml.safe_load((out / "kustomization.yaml").read_text())["resources"]:
        yield from listed(out / name) if (out / name).is_dir() else [out / name]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    """The sweep in each format."""
    return {to: exported(tmp_path_factory.mktemp("exports"), to) for to in OPTIONS}


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
    """Of KubeRay's resource definitions by kind."""
    ray = json.loads((PROJECT / "tests/support/kuberay.schema.json").read_text())
    return {kind: jsonschema.Draft202012Validator(strict(ray[kind])) for kind in ("RayCluster", "RayJob")}


@pytest.mark.parametrize("to", OPTIONS)
def test_objects_have_only_fields_that_their_definitions_know(
    exports: Exports, schemas: Mapping[str, Any], to: str
) -> None:
    reason = "requirements-dev.txt has kubernetes-validate"
    validate = pytest.importorskip("kubernetes_validate", reason=reason).validate
    for manifest in exports[to].objects:
        kind = manifest["kind"]
        if kind in schemas:
            schemas[kind].validate(manifest)
            assert [*schemas[kind].iter_errors({**manifest, "unknown": 1})]
        else:
            validate(manifest, NEWEST, strict=True)
    for template in exports[to].pods().values():  # objects of any form in these definitions
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}}
        validate({**pod, "template": template}, NEWEST, strict=True)
    written = {*exports[to].out.rglob("*.yaml")} - {*exports[to].out.rglob("kustomization.yaml")}
    assert {*listed(exports[to].out)} == written


@pytest.mark.parametrize("to", OPTIONS)
def test_the_files_of_a_sweep_are_as_they_were_reviewed(exports: Exports, to: str) -> None:
    """Read in their diff what confines pods, who reaches them, and what limits they have."""
    out = exports[to].out
    shown = (path for path in sorted(out.rglob("*.yaml")) if path.parent == out or SHOWN[to] in str(path))
    files = (f"# {path.relative_to(out)}\n{path.read_text()}" for path in shown)
    text = re.sub(r"spec\.json: \|\n(?: {4}.*\n)+", "spec.json: SPEC\n", "---\n".join(files))
    assert_reviewed(f"export_{to}.yaml", text)


def test_exporting_again_replaces_only_what_has_changed(tmp_path: Path) -> None:
    for image, changes in (("a:1", "5 added"), ("a:1", "5 unchanged"), ("a:2", "4 replaced, 1 unchanged")):
        found = exported(tmp_path, "kubernetes", given=Options(image=image)).lines
        assert (len(found[:-2]), found[-2]) == (5, changes)


# Pods


def test_only_ranks_have_gpus(tmp_path: Path) -> None:
    found = {
        name: pod["spec"]["containers"][0]["resources"]["requests"].get("nvidia.com/gpu")
        for to in ("kubernetes", "kuberay")
        for name, pod in exported(tmp_path, to, GPU).pods().items()
    }
    assert found == {"ddp-nccl-n2-s0": "1", "ray-head": None, "ray-worker": "1", "submitter": None}


# Clusters of Ray


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


# Ranks

NUMBERS = ("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR")


@pytest.mark.parametrize(("text", "given"), [(SWEEP, IMAGE), (WITH_CHECKPOINTS, CLAIMS)])
def test_pods_are_the_ranks_of_their_run(tmp_path: Path, text: str, given: Options) -> None:
    found = exported(tmp_path, "kubernetes", text, given)
    jobs, specs = found.of_kind("Job"), found.of_kind("ConfigMap")
    for key, template in found.pods().items():
        name = jobs[key]["metadata"]["name"]
        spec = RunSpec.model_validate_json(specs[key]["data"]["spec.json"])
        host = f"{name}-0.{name}"
        (container,) = template["spec"]["containers"]
        for node in range(SIZES[key][0]):
            env = {each["name"]: each.get("value", str(node)) for each in container["env"]}
            env["JOB_COMPLETION_INDEX"] = str(node)
            saved = f"{env['SHARDYARD_OUT']}/checkpoints" if spec.checkpoints else None
            assert env.get("SHARDYARD_CHECKPOINTS") == saved
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
        ("kubernetes", "nodes: 2, strategy: all_reduce", None, "mpi needs mpirun.*--gloo-for-mpi"),
        ("kubernetes", "nodes: 2, link: {bandwidth_mbit: 10}", None, "link needs a runtime of Shardyard"),
        ("kubernetes", "nodes: 2, node_speed: [1, 0.5]", None, "node_speed needs"),
        ("kubernetes", "nodes: 2, restarts: 1", None, "restarts needs"),
        ("kubernetes", "checkpoint_epochs: 1", None, "checkpoints need --results-claim"),
        ("kubernetes", "dataset: mnist", None, "needs --data-claim"),
        ("kubernetes", "cpus: 0.3333", None, "0.001"),
        ("kubernetes", "seed: 1", Options(sets=("epochs=1",)), "needs --image"),
        ("kubernetes", "seed: 1", Options(image="a b"), "--image 'a b': is not the name"),
        ("kubernetes", "seed: 1", Options(image="x", data_claim="A_b"), "--data-claim 'A_b': is not"),
        ("kuberay", "nodes: 2, strategy: all_reduce", CLAIMS, "mpi needs mpirun.*--gloo-for-mpi"),
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


def test_the_sweep_of_a_ray_cluster_has_gloo_in_the_place_of_mpi(tmp_path: Path) -> None:
    """Named in a block or an axis, left out, or by default; and other transports stay."""
    text = """\
name: s
questions: [{measure: train_s, compare: {transport: mpi, strategy: gossip}, against: {strategy: serial}}]
blocks:
  - base: {strategy: serial}
  - base: {strategy: gossip, transport: mpi, nodes: 2}
  - base: {nodes: 3}
    axes: {strategy: [all_reduce, one_shot]}
  - base: {nodes: 2}
    axes: {strategy: [local_sgd, ddp], transport: [mpi, gloo, rpc]}
    skip: [{strategy: ddp, transport: mpi}, {strategy: ddp, transport: [rpc, mpi]}]
"""
    given = replace(CLAIMS, gloo_for_mpi=True)
    out = exported(tmp_path, "kuberay", text, given)
    (file,) = [each["data"]["sweep.yml"] for each in out.objects if each["kind"] == "ConfigMap"]
    (tmp_path / "inside.yml").write_text(file)
    found = [run.key.rpartition("-")[0] for run in load_sweep(tmp_path / "inside.yml").runs]
    assert found == [
        "serial-memory-n1-s0",
        "gossip-gloo-n2-s0",
        "all_reduce-gloo-n3-s0",
        "one_shot-gloo-n3-s0",
        "local_sgd-gloo-n2-s0",
        "local_sgd-rpc-n2-s0",
        "ddp-gloo-n2-s0",
    ]
    mixed = "name: s\nblocks: [{base: {nodes: 2}, axes: {strategy: [all_reduce, ddp]}}]\n"
    with pytest.raises(InputError, match=r"--gloo-for-mpi: s: .*`transport`"):
        exported(tmp_path / "mixed", "kuberay", mixed, given)
    assert not (tmp_path / "mixed" / "kuberay").exists()


def test_a_sweep_that_runs_until_it_is_decided_says_first_how_many_are_exported(tmp_path: Path) -> None:
    text = "name: s\nrepeat: 5\nblocks: [{base: {strategy: serial}}, {base: {strategy: ddp, nodes: 2}}]\n"
    cases: Any = (("true", (), ["10"]), ("true", ("seed=0",), []), ("false", (), []))
    for staged, sets, announced in cases:
        whole = f"until_decided: {staged}\n{text}"
        found = exported(tmp_path, "kubernetes", whole, replace(IMAGE, sets=sets)).lines
        before = list(takewhile(lambda line: not re.match("added|replaced|unchanged", line), found))
        assert [re.findall(r"\d+", line)[0] for line in before] == announced


def test_options_of_other_formats_are_refused(tmp_path: Path) -> None:
    values: dict[str, Any] = {"sets": ("epochs=1",), "gloo_for_mpi": True}
    for to in EXPORTERS.entries:
        for name in Options.__dataclass_fields__.keys() - {*EXPORTERS.load(to).uses}:
            with pytest.raises(InputError, match=f"{option(name)} has no effect with --to {to}"):
                [*export(tmp_path, to, None, Options(**{name: values.get(name, "x")}))]
