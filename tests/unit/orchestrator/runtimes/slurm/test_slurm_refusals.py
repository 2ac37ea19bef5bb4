"""Messages for requests that Slurm refuses. Its errors here are those of Slurm 22.05 with slurmdbd."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.runtimes.slurm import commands
from orchestrator.runtimes.slurm.commands import SlurmError
from orchestrator.runtimes.slurm.options import SlurmOptions, site_path
from orchestrator.runtimes.slurm.refusals import (
    JobRequest,
    Partition,
    explain,
    parse_partitions,
    too_long,
)
from orchestrator.runtimes.slurm.runtime import SlurmRuntime
from trainer.spec.run_spec import RunSpec

SINFO = """debug*|4|infinite|4|24105|(null)|(null)|up
short|2|10:00|4+|24105|avx,rome|gpu:a100:2|up
short|1|10:00|8|24105|avx|(null)|up
off|2|1-00:00:00|4|24105|(null)|(null)|down
"""
CLUSTER = parse_partitions(SINFO)


def request(options: dict[str, Any] | None = None, **fields: Any) -> JobRequest:
    spec = {"strategy": "local_sgd", "transport": "gloo", "nodes": 2, "timeout_s": 120, **fields}
    return JobRequest(
        RunSpec.model_validate(spec), SlurmOptions.model_validate(options or {}), lambda key: f"slurm.{key}"
    )


def test_partitions_of_sinfo() -> None:
    assert parse_partitions(SINFO) == [
        Partition("debug", 4, "infinite", 4, default=True),
        Partition(
            "short", 3, "10:00", 8, features=frozenset({"avx", "rome"}), gres=frozenset({"gpu:a100:2"})
        ),
        Partition("off", 2, "1-00:00:00", 4, up=False),
    ]


@pytest.mark.parametrize(
    ("options", "fields", "error", "named"),
    [
        (
            {"partition": "nope"},
            {},
            "Invalid partition name specified",
            ["slurm.partition", "nope", "debug"],
        ),
        (
            {"partition": "off"},
            {},
            "Required partition not available (inactive or drain)",
            ["slurm.partition", "off (not up)"],
        ),
        (
            {"account": "other"},
            {},
            "Invalid account or account/partition combination specified",
            ["slurm.account", "'other'", "research, teaching"],
        ),
        (
            {},
            {},
            "Invalid account or account/partition combination specified",
            ["slurm.account is not set", "research, teaching"],
        ),
        (
            {},
            {"nodes": 9},
            "Requested node configuration is not available",
            ["nodes: 9", "debug has 4 nodes"],
        ),
        ({"partition": "short"}, {"nodes": 4}, "Node count specification invalid", ["nodes: 4", "short"]),
        (
            {"arguments": ["--mem=999G"]},
            {"processes_per_node": 2},
            "Requested node configuration is not available",
            ["--mem=999G", "2 CPU(s)", "4 CPUs"],
        ),
        (
            {"gres": "gpu:9", "partition": "short"},
            {},
            "Invalid generic resource (gres) specification",
            ["slurm.gres", "gpu:9", "gpu:a100:2"],
        ),
        (
            {"constraint": "quantum", "partition": "short"},
            {},
            "Invalid feature specification",
            ["slurm.constraint", "quantum", "avx, rome"],
        ),
        (
            {"time": "60", "partition": "short"},
            {},
            "Requested time limit is invalid (missing or exceeds some limit)",
            ["slurm.time", "'60'", "10:00"],
        ),
        ({"arguments": ["--qos=x"]}, {}, "Invalid qos specification", ["slurm.arguments", "--qos=x"]),
    ],
)
def test_message_names_key_value_and_what_is_allowed(
    options: dict[str, Any], fields: dict[str, Any], error: str, named: list[str]
) -> None:
    message = explain(
        f"allocation failure: {error}", request(options, **fields), CLUSTER, ["teaching", "research"]
    )
    for each in named:
        assert each in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("options", "fields", "named"),
    [
        ({"partition": "short", "time": "11"}, {}, ["slurm.time", "'11'", "short", "10:00", "debug"]),
        ({"partition": "short"}, {"timeout_s": 540}, ["timeout_s: 540", "11 minutes", "10:00"]),
        ({"partition": "short"}, {"timeout_s": 480}, None),
        ({"partition": "short,debug", "time": "11"}, {}, None),
        ({"time": "11"}, {}, None),
        ({"partition": "short", "time": "11", "arguments": ["--qos=long"]}, {}, None),
    ],
)
def test_time_limit_of_the_partition(
    options: dict[str, Any], fields: dict[str, Any], named: list[str] | None
) -> None:
    message = too_long(request(options, **fields), CLUSTER)
    assert (message is None) is (named is None)
    for each in named or ():
        assert each in str(message)


def test_message_names_where_an_option_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The sweep file, then the file of the site, then the variables of sbatch."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SBATCH_ACCOUNT", "variable")
    monkeypatch.setenv("SBATCH_PARTITION", "variable")
    monkeypatch.setenv("SBATCH_CONSTRAINT", "variable")
    site_path().parent.mkdir()
    site_path().write_text("account: site\npartition: site\n")
    asked: list[JobRequest] = []

    def refuse(options: Sequence[str]) -> None:
        raise SlurmError("Invalid qos specification")

    def note(error: str, request: JobRequest, *_: Any) -> str:
        asked.append(request)
        return error

    monkeypatch.setattr(commands, "try_submission", refuse)
    monkeypatch.setattr(commands, "partitions", list)
    monkeypatch.setattr(commands, "accounts", list)
    monkeypatch.setattr("orchestrator.runtimes.slurm.runtime.explain", note)
    runtime = SlurmRuntime()
    runtime.configure(SlurmOptions(partition="sweep"))
    assert runtime.unsupported_reason(request().spec) == "Invalid qos specification"
    (found,) = asked
    assert found.options == SlurmOptions(partition="sweep", account="site", constraint="variable")
    assert found.place("partition") == "slurm.partition"
    assert found.place("account") == f"{site_path()}: account"
    assert found.place("constraint") == "SBATCH_CONSTRAINT"
    assert found.place("gres") == "slurm.gres"
