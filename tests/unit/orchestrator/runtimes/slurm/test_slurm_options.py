"""Mistakes in options of Slurm jobs: which place wins, what is refused, and what messages name.

Slurm's errors here are those of Slurm 22.05 with slurmdbd.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.slurm import commands
from orchestrator.runtimes.slurm.options import SlurmOptions, read_site_file, read_variables, site_path
from orchestrator.runtimes.slurm.refusals import JobRequest, Partition, explain, parse_partitions, too_long
from orchestrator.runtimes.slurm.runtime import SlurmRuntime
from orchestrator.sweeps.load import load_sweep
from trainer.spec.run_spec import RunSpec

SWEEP = "name: x\nbase: {strategy: serial}\nblocks: [{}]\nslurm: "


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("{partion: debug}", "partion"),
        ("{time: 30}", "slurm.time 30"),
        ("{time: soon}", "slurm.time soon"),
        (f"{{time: '{'9' * 5000}'}}", "slurm.time"),
        ("{time: '٣'}", "slurm.time"),
        ("{partition: 'a b'}", "slurm.partition a b"),
        ('{account: "a\\nb"}', "slurm.account"),
        ("{mpi: pmi2}", "slurm.mpi pmi2 mpirun pmix"),
        ("{arguments: [-x]}", "slurm.arguments[0] -x --NAME=VALUE"),
        ("{arguments: [--exclusive, --nodes=3]}", "slurm.arguments[1] --nodes Shardyard sets"),
        ('{arguments: ["--qos=a\\nrm"]}', "slurm.arguments[0]"),
        ("{container: {engine: docker, image: x}}", "slurm.container.engine apptainer pyxis"),
        ("{container: {engine: pyxis, image: --x}}", "slurm.container.image --x"),
        ("{arguments: [--container-image=x]}", "slurm.arguments[0] --container-image `container`"),
    ],
)
def test_invalid_options_name_file_key_and_value(tmp_path: Path, options: str, named: str) -> None:
    sweep = tmp_path / "sweep.yml"
    sweep.write_text(SWEEP + options)
    with pytest.raises(InputError) as raised:
        load_sweep(sweep)
    for each in (str(sweep), *named.split()):
        assert each in str(raised.value)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The path of the site file, in a directory of its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "shardyard").mkdir()
    assert site_path() == tmp_path / "shardyard" / "slurm.yml"
    return site_path()


def test_invalid_site_file_and_variable_are_named(site: Path) -> None:
    assert read_site_file(site) == SlurmOptions()
    for content in ("[a]", "partion: debug", "account: 3", "a: [", "account: a\naccount: b"):
        site.write_text(content)
        with pytest.raises(InputError, match=r"slurm\.yml"):
            read_site_file(site)
    with pytest.raises(InputError, match=r"^SBATCH_TIMELIMIT: 'soon'"):
        read_variables({"SBATCH_TIMELIMIT": "soon", "SBATCH_GRES": ""})


def test_sweep_wins_over_the_site_and_variables(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCOUNT", "PARTITION", "CONSTRAINT"):
        monkeypatch.setenv(f"SBATCH_{name}", "variable")
    site.write_text("account: site\npartition: site\narguments: [--exclusive]\n")
    asked: list[JobRequest] = []
    monkeypatch.setattr(commands, "call", lambda *argv: "")
    monkeypatch.setattr("orchestrator.runtimes.slurm.runtime.too_long", lambda each, _: asked.append(each))
    runtime = SlurmRuntime()
    runtime.configure(SlurmOptions(partition="sweep", arguments=[]))
    for _ in range(2):  # runs of the same size are asked about once
        assert runtime.unsupported_reason(request().spec) is None
    (found,) = asked
    chosen = {"partition": "sweep", "account": "site", "constraint": "variable", "arguments": []}
    assert found.options.model_dump(exclude_none=True) == chosen
    places = ["slurm.partition", f"{site}: account", "SBATCH_CONSTRAINT", "slurm.gres"]
    assert [found.place(key) for key in ("partition", "account", "constraint", "gres")] == places
    others = {"nodes": 3, "processes_per_node": 2, "threads": 2, "timeout_s": 60, "checkpoint_epochs": 1}
    for name, value in others.items():
        assert runtime.unsupported_reason(request(**{name: value}).spec) is None
    assert len(asked) == 1 + 5


def test_what_containers_cannot_do_is_refused(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "call", lambda *argv: "")
    runtime, image = SlurmRuntime(), {"engine": "pyxis", "image": "x"}
    runtime.configure(SlurmOptions.model_validate({"container": image}))
    mpi = {"strategy": "all_reduce", "transport": "mpi"}
    assert "slurm.container: transport mpi" in str(runtime.unsupported_reason(request(**mpi).spec))
    assert runtime.unsupported_reason(request().spec) is None
    for name in ("a,b", "a:b"):
        with pytest.raises(InputError, match=name):
            runtime.plan(request().spec, RunPaths(site.parent / name / "run"), site)
    runtime.configure(SlurmOptions.model_validate({"container": image, "allocation": "sweep"}))
    assert "slurm.allocation: 'sweep'" in str(runtime.unsupported_reason(request().spec))


SINFO = """debug*|4|infinite|4|24105|(null)|(null)|up
short|2|10:00|4+|24105|avx,rome|gpu:a100:2|up
short|1|10:00|8|24105|avx|(null)|up
off|2|1-00:00:00|4|24105|(null)|(null)|down
"""
CLUSTER = [
    Partition("debug", 4, "infinite", 4, default=True),
    Partition("short", 3, "10:00", 8, features=frozenset({"avx", "rome"}), gres=frozenset({"gpu:a100:2"})),
    Partition("off", 2, "1-00:00:00", 4, up=False),
]


def request(options: dict[str, Any] | None = None, **fields: Any) -> JobRequest:
    spec = {"strategy": "local_sgd", "transport": "gloo", "nodes": 2, "timeout_s": 120, **fields}
    chosen = SlurmOptions.model_validate(options or {})
    return JobRequest(RunSpec.model_validate(spec), chosen, lambda key: f"slurm.{key}")


SHORT = {"partition": "short"}
BAD_ACCOUNT = "Invalid account or account/partition combination specified"
ACCOUNTS = "your accounts: research, teaching; a partition can admit only some; Slurm says 'Invalid account"
BAD_SIZE = "Requested node configuration is not available"
PARTITIONS = "partitions: debug (default), short, off (not up); Slurm says "


@pytest.mark.parametrize(
    ("error", "asked", "message"),
    [
        ("Invalid partition name specified", request({"partition": "x"}),
            f"slurm.partition: 'x' is not allowed; {PARTITIONS}"),
        ("Required partition not available (inactive or drain)", request({"partition": "off"}),
            f"slurm.partition: 'off' is not allowed; {PARTITIONS}"),
        (BAD_ACCOUNT, request({"account": "x"}), f"slurm.account: 'x' is not allowed; {ACCOUNTS}"),
        (BAD_ACCOUNT, request(), f"slurm.account is not set; {ACCOUNTS}"),
        (BAD_SIZE, request(nodes=9), "nodes: 9 is not allowed: partition debug has 4 nodes of 4 CPUs; "),
        (BAD_SIZE, request({"arguments": ["--mem=9G"]}, processes_per_node=2),
            "the run asks for 2 node(s) of 2 CPU(s) (processes_per_node × threads), with slurm.arguments: "
            "['--mem=9G']; partition debug has 4 nodes of 4 CPUs; "),
        ("Invalid generic resource (gres) specification", request({"gres": "gpu:9", **SHORT}),
            "slurm.gres: 'gpu:9' is not allowed; nodes have: gpu:a100:2; "),
        ("Requested time limit is invalid (missing or exceeds some lim", request({"time": "60", **SHORT}),
            "slurm.time: '60' is not allowed: partition short permits 10:00; "),
        ("Invalid qos specification", request({"arguments": ["--qos=x"]}), "slurm.arguments: ['--qos=x']"),
    ],
)  # fmt: skip
def test_refusal_names_key_value_and_what_is_allowed(error: str, asked: JobRequest, message: str) -> None:
    assert parse_partitions(SINFO) == CLUSTER
    found = explain(f"allocation failure: {error}", asked, CLUSTER, ["teaching", "research"])
    assert found.startswith(message)
    assert "\n" not in found


PERMITS = "partition short permits 10:00"
OTHERS = "partitions that permit it: debug (default), off (not up)"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request({**SHORT, "time": "11"}), f"slurm.time: '11' is not allowed: {PERMITS}; {OTHERS};"),
        (request(SHORT, timeout_s=540), f"timeout_s: 540 needs a time limit of 11 minutes, but {PERMITS}"),
        (request(SHORT, timeout_s=480), "None"),
        (request({"partition": "short,debug", "time": "11"}), "None"),
        (request({"time": "11"}), "None"),
        (request({**SHORT, "time": "11", "arguments": ["--qos=long"]}), "None"),
    ],
)
def test_time_limit_of_the_partition(asked: JobRequest, message: str) -> None:
    assert str(too_long(asked, CLUSTER)).startswith(message)
