"""The run record: its files, the cause of a failure, and the summary."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cluster_support import assigned
from tests.unit.conftest import event, rank_fields
from tests.unit.loopback_cluster import weights_file
from trainer.cluster.rank_assignment import AgentInfo
from trainer.cluster.run_record import RunRecord, signal_name
from trainer.core.cgroup import NodeUsage
from trainer.core.events import UNREPORTED, EventReader

USAGE: dict[str, Any] = {"cpu_s": 2.5, "throttled_s": None, "out_of_memory": 0}


def run_record(directory: Path, topology: str = "ddp", nodes: int = 2, **fields: Any) -> RunRecord:
    return RunRecord(directory / "live", assigned(topology, *range(1, nodes + 1), **fields))


def agent(record: RunRecord, name: str) -> AgentInfo:
    return next(each for each in record.assignment.agents if each.name == name)


def start(record: RunRecord, *ranks: int) -> None:
    for rank in ranks:
        record.add_event(event("start", rank, pid=100 + rank))


def finish(record: RunRecord, *ranks: int, **fields: Any) -> None:
    for rank in ranks:
        record.add_event(event("result", rank, **rank_fields(**fields)))
        record.add_event(event("done", rank))


def died_events(directory: Path) -> list[tuple[int, str, Any]]:
    events = EventReader(directory / "live").new()
    return [(e.rank, e.kind, e.fields.get("cause")) for e in events if e.kind == "died"]


# Files


def test_spec_and_assignment_are_written_first(tmp_path: Path) -> None:
    record = run_record(tmp_path, processes_per_node=2)
    live = tmp_path / "live"
    assert json.loads((live / "spec.json").read_text()) == record.assignment.spec.model_dump(mode="json")
    assignment = json.loads((live / "assignment.json").read_text())
    assert [(each["role"], each["ordinal"], each["ranks"]) for each in assignment] == [
        ("node", 1, [0, 1]),
        ("node", 2, [2, 3]),
    ]


def test_events_are_written_to_one_file_per_rank(tmp_path: Path) -> None:
    record = run_record(tmp_path)
    events = [
        event("start", 1, 1.0, pid=5),
        event("start", 0, 2.0, pid=6),
        event("ready", 1, 3.0),
    ]
    for each in events:
        record.add_event(each)
    assert EventReader(tmp_path / "live").new() == events
    lines = {path.name: len(path.read_text().splitlines()) for path in (tmp_path / "live").glob("*.jsonl")}
    assert lines == {"rank-0.jsonl": 1, "rank-1.jsonl": 2}


def test_weights_arrive_in_chunks(tmp_path: Path) -> None:
    record, weights = run_record(tmp_path, save_weights=True), weights_file(150)
    for first in range(0, len(weights), 100):
        assert not (tmp_path / "live" / "weights.npy").exists()
        chunk = base64.b64encode(weights[first : first + 100]).decode()
        record.add_weights(chunk, last=first + 100 >= len(weights))
    assert (tmp_path / "live" / "weights.npy").read_bytes() == weights


def test_usage_is_one_line_per_agent(tmp_path: Path) -> None:
    record = run_record(tmp_path, "mpi")
    for name in ("node-1", "launcher"):
        record.add_usage(agent(record, name), USAGE)
    lines = (tmp_path / "live" / "usage.jsonl").read_text().splitlines()
    assert [NodeUsage.model_validate_json(line) for line in lines] == [
        NodeUsage(name="node-1", ranks=[0], **USAGE),
        NodeUsage(name="launcher", ranks=[], **USAGE),
    ]


@pytest.mark.parametrize("restarts", [0, 2])
def test_memory_does_not_grow_with_events(tmp_path: Path, restarts: int) -> None:
    """The coordinator has 256 MiB; a rank writes two step events per second, and some runs take days."""
    record = run_record(tmp_path, restarts=restarts)
    start(record, 0, 1)
    before = len(pickle.dumps(record))
    for step in range(10_000):
        record.add_event(event("step", step % 2, epoch=1, step=step, loss=0.5))
    assert len(pickle.dumps(record)) - before < 100  # bytes
    lines = (tmp_path / "live" / "rank-0.jsonl").read_text().count("\n")
    assert lines == 5_001


# Causes


@pytest.mark.parametrize(
    ("kind", "fields", "cause"),
    [
        ("failed", {"cause": "ValueError: odd"}, "rank 1 failed: ValueError: odd"),
        ("died", {"cause": "killed by SIGKILL"}, "rank 1 was killed by SIGKILL"),
        ("terminated", {"cause": "stopped by SIGTERM"}, "rank 1 was stopped by SIGTERM"),
    ],
)
def test_exit_report_is_the_cause(tmp_path: Path, kind: str, fields: dict[str, Any], cause: str) -> None:
    record = run_record(tmp_path)
    start(record, 0, 1)
    record.add_event(event(kind, 1, **fields))
    assert record.failures == {"node-2": cause}


@pytest.mark.parametrize("started", [(0, 1), (0,)], ids=["started", "not started"])
def test_rank_that_ends_before_it_reports_has_failed(tmp_path: Path, started: tuple[int, ...]) -> None:
    """Other ranks may wait for it until the time limit."""
    record = run_record(tmp_path)
    start(record, *started)
    record.record_exit(agent(record, "node-2"), {1: 0}, out_of_memory=False)
    assert UNREPORTED in record.failures["node-2"]


def test_first_cause_counts(tmp_path: Path) -> None:
    record = run_record(tmp_path)
    record.add_event(event("failed", 0, cause="the reason"))
    record.fail(agent(record, "node-1"), "ended with exit code 1")
    record.fail(agent(record, "node-2"), "peer is gone")
    assert list(record.failures.items()) == [
        ("node-1", "rank 0 failed: the reason"),
        ("node-2", "peer is gone"),
    ]


def test_termination_at_shutdown_is_no_failure(tmp_path: Path) -> None:
    record = run_record(tmp_path)
    record.shutting_down = True
    record.add_event(event("terminated", 1, cause="stopped by SIGTERM"))
    assert record.failures == {}
    record.add_event(event("failed", 0, cause="odd"))
    assert record.failures == {"node-1": "rank 0 failed: odd"}


def test_kill_at_shutdown_is_no_failure(tmp_path: Path) -> None:
    record = run_record(tmp_path)
    start(record, 0)
    record.shutting_down = True
    for name in ("node-1", "node-2"):  # node-1 has started, node-2 has not
        record.record_exit(agent(record, name), {0: -9, 1: -9}, False)
    assert (died_events(tmp_path), record.failures) == ([], {})


# Ranks without an exit report


@pytest.mark.parametrize(
    ("codes", "out_of_memory", "cause"),
    [
        ({1: -9}, False, "killed by SIGKILL"),
        ({1: -11}, False, "killed by SIGSEGV"),
        ({1: -40}, False, "killed by signal 40"),
        ({1: -9}, True, "killed: its node needed more than 64 MiB of memory"),
        ({}, True, "killed: its node needed more than 64 MiB of memory"),
    ],
)
def test_died_event_for_a_rank_without_exit_report(
    tmp_path: Path, codes: dict[int, int], out_of_memory: bool, cause: str
) -> None:
    record = run_record(tmp_path, memory_mb=64)
    start(record, 0, 1)
    record.record_exit(agent(record, "node-2"), codes, out_of_memory)
    assert died_events(tmp_path) == [(1, "died", cause)]
    assert record.failures == {"node-2": f"rank 1 was {cause}"}
    (died,) = [e for e in EventReader(tmp_path / "live").new() if e.kind == "died"]
    assert (died.run, died.host) == (record.assignment.spec.key, "host")


@pytest.mark.parametrize("started", [(), (0,), (0, 1)])
@pytest.mark.parametrize("noticed", [False, True])
def test_killed_parent_of_the_ranks_is_the_cause(
    tmp_path: Path, started: tuple[int, ...], noticed: bool
) -> None:
    """In topology single the exit code is that of the process that has started the ranks."""
    record = run_record(tmp_path, "single")
    start(record, *started)
    if noticed:
        for rank in started:
            record.add_event(event("terminated", rank, cause="terminated"))
    record.record_exit(agent(record, "node-1"), {0: -9, 1: -9}, False)
    assert record.unreported == {"node-1": "the process that started all 2 nodes was killed by SIGKILL"}
    assert died_events(tmp_path) == []


def test_killed_process_with_all_ranks_is_the_cause(tmp_path: Path) -> None:
    record = run_record(tmp_path, "single", strategy="one_shot", transport="memory")
    start(record, 0, 1)
    record.record_exit(agent(record, "node-1"), {0: -9, 1: -9}, False)
    assert record.unreported == {"node-1": "the process with all 2 nodes was killed by SIGKILL"}


def test_ranks_that_end_before_their_parent_are_the_cause(tmp_path: Path) -> None:
    """Whatever kills the parent afterwards, and without memory the container's limit is the cause."""
    for number, kind in enumerate(("failed", "died")):
        record = run_record(tmp_path / str(number), "single")
        start(record, 0, 1)
        record.add_event(event(kind, 1, cause="killed by SIGSEGV"))
        record.record_exit(agent(record, "node-1"), {0: -9, 1: -9}, False)
        assert record.unreported == {}
        assert record.failures["node-1"].startswith("rank 1 ")
    record = run_record(tmp_path / "finished", "single")
    start(record, 0, 1)
    finish(record, 0, 1)
    record.record_exit(agent(record, "node-1"), {0: -9, 1: -9}, False)
    assert record.failures == {}
    record = run_record(tmp_path / "memory", "single")
    start(record, 0, 1)
    record.record_exit(agent(record, "node-1"), {0: -9, 1: -9}, True)
    assert record.unreported == {}
    assert {cause for _, _, cause in died_events(tmp_path / "memory")} == {
        "killed: its node needed more than 2048 MiB of memory"
    }


@pytest.mark.parametrize("report", ["done", "failed", "terminated", "died"])
@pytest.mark.parametrize("out_of_memory", [False, True])
def test_no_second_exit_report(tmp_path: Path, report: str, out_of_memory: bool) -> None:
    record = run_record(tmp_path)
    start(record, 0, 1)
    record.add_event(event(report, 1, cause="reported"))
    failures = dict(record.failures)
    record.record_exit(agent(record, "node-2"), {1: -9}, out_of_memory)
    assert record.failures == failures
    assert [cause for _, _, cause in died_events(tmp_path)] == (["reported"] if report == "died" else [])


@pytest.mark.parametrize("codes", [{1: 1}, {1: 143}, {}])  # {}: started by mpirun
def test_no_died_event_for_a_rank_that_exited(tmp_path: Path, codes: dict[int, int]) -> None:
    record = run_record(tmp_path)
    start(record, 1)
    record.record_exit(agent(record, "node-2"), codes, False)
    assert (died_events(tmp_path), record.failures) == ([], {})


@pytest.mark.parametrize("codes", [{1: 1}, {}])  # {}: started by mpirun
@pytest.mark.parametrize("started", [False, True])
def test_rank_without_space_for_its_exit_report(
    tmp_path: Path, codes: dict[int, int], started: bool
) -> None:
    record = run_record(tmp_path)
    start(record, 0, *([1] if started else []))
    finish(record, 0)
    for name in ("node-1", "node-2"):
        record.record_exit(agent(record, name), codes, False, full=True)
    assert record.failures.keys() == {"node-2"}
    assert "/run/shardyard" in record.failures["node-2"]
    assert record.unreported == ({} if started else record.failures)
    failed = [each for each in EventReader(tmp_path / "live").new() if each.kind == "failed"]
    assert [each.rank for each in failed] == ([1] if started else [])


def test_rank_that_is_killed_without_space_was_killed(tmp_path: Path) -> None:
    record = run_record(tmp_path)
    start(record, 1)
    record.record_exit(agent(record, "node-2"), {1: -9}, False, full=True)
    assert died_events(tmp_path) == [(1, "died", "killed by SIGKILL")]


def test_rank_killed_before_it_started(tmp_path: Path) -> None:
    """No event of the rank can say so."""
    record = run_record(tmp_path)
    record.record_exit(agent(record, "node-1"), {0: -9}, False)
    assert record.failures == {"node-1": "rank 0, before it started: killed by SIGKILL"}
    assert record.unreported == record.failures
    assert EventReader(tmp_path / "live").new() == []


def test_lost_agent_whose_ranks_have_started(tmp_path: Path) -> None:
    """Events of its ranks say so, unless they have written their exit reports."""
    record = run_record(tmp_path, processes_per_node=2)
    start(record, 2, 3)
    finish(record, 2)
    record.record_loss(agent(record, "node-2"), "cut off")
    assert died_events(tmp_path) == [(3, "died", "cut off")]
    assert (record.failures, record.unreported) == ({"node-2": "rank 3 was cut off"}, {})


def test_lost_agent_whose_ranks_have_not_started(tmp_path: Path) -> None:
    record = run_record(tmp_path)
    record.record_loss(agent(record, "node-2"), "cut off")
    assert record.unreported == record.failures == {"node-2": "rank 1, before it started: cut off"}


def test_died_events_for_all_ranks_of_a_node(tmp_path: Path) -> None:
    record = run_record(tmp_path, processes_per_node=2)
    start(record, 0, 1, 2, 3)
    finish(record, 2)
    record.record_exit(agent(record, "node-2"), {2: 0, 3: -9}, False)
    record.record_loss(agent(record, "node-1"), "killed")
    assert sorted(rank for rank, _, _ in died_events(tmp_path)) == [0, 1, 3]
    assert record.failures["node-2"] == "rank 3 was killed by SIGKILL"


# Summary


def test_complete(tmp_path: Path) -> None:
    record = run_record(tmp_path, nodes=2)
    start(record, 0, 1)
    finish(record, 1)
    complete = [record.complete]
    for each in (event("done", 0), event("result", 0, **rank_fields()), event("died", 0, cause="killed")):
        record.add_event(each)
        complete.append(record.complete)
    assert complete == [False, False, True, False]


def test_summary_of_a_successful_run(tmp_path: Path) -> None:
    record = run_record(tmp_path, nodes=2, processes_per_node=2, seed=3)
    finish(record, 0, 1, 2, 3, samples=60_000, train_s=2.0, accuracy=0.975)
    assert record.summary() == [
        "ok: 2 nodes × 2 processes, world size 4, ddp over gloo, digits, 3 epochs, seed 3",
        "  trained 240,000 samples in 2.00 s, 120,000 samples/s",
        "  test accuracy 97.5%, same weights on all ranks",
    ]


def test_summary_of_a_resumed_run(tmp_path: Path) -> None:
    record = run_record(tmp_path)
    record.add_event(event("resumed", 0, epoch=2, step=5, age_s=1.0, times=1))
    finish(record, 0, 1)
    assert "the checkpoint after epoch 2 and 5 steps" in record.summary()[-1]


def test_summary_of_a_run_with_different_weights(tmp_path: Path) -> None:
    record = run_record(tmp_path)
    finish(record, 0)
    finish(record, 1, weights_digest="another", train_s=4.0)
    assert record.summary()[1:] == [
        "  trained 200 samples in 4.00 s, 50 samples/s",  # the slowest rank's time
        "  test accuracy 90.0%, ranks ended with different weights",
    ]


@pytest.mark.parametrize(
    ("strategy", "digests", "weights"),
    [
        ("pipeline", ["a", None, None, None], "one model on 4 nodes"),
        ("hybrid", ["a", None, "a", None], "same weights on all replicas"),
        ("hybrid", ["a", None, "b", None], "replicas ended with different weights"),
    ],
)
def test_summary_of_a_partitioned_model(
    tmp_path: Path, strategy: str, digests: list[str | None], weights: str
) -> None:
    record = run_record(tmp_path, nodes=4, strategy=strategy)
    for rank, digest in enumerate(digests):
        finish(record, rank, weights_digest=digest)
    assert record.summary()[-1] == f"  test accuracy 90.0%, {weights}"


def test_summary_of_a_run_without_training(tmp_path: Path) -> None:
    record = run_record(tmp_path, "rpc", nodes=1, strategy="fault_injection", transport="rpc")
    finish(record, 0, 1, samples=0, train_s=0.25, accuracy=None)
    assert record.summary() == ["ok: 2 nodes, world size 2, fault_injection over rpc, seed 0", "  0.25 s"]


def test_summary_of_a_failed_run(tmp_path: Path) -> None:
    record = run_record(tmp_path)
    finish(record, 0)
    record.add_event(event("failed", 1, cause="odd"))
    assert record.summary() == [
        "FAILED: 2 nodes, ddp over gloo, digits, 3 epochs, seed 0",
        "  node-2: rank 1 failed: odd",
    ]


def test_summary_of_a_failed_run_without_a_cause(tmp_path: Path) -> None:
    record = run_record(tmp_path, nodes=1)
    assert record.summary() == [
        "FAILED: 1 node, ddp over gloo, digits, 3 epochs, seed 0",
        "  not all results were received and saved",
    ]


def test_failure_of_a_complete_run(tmp_path: Path) -> None:
    record = run_record(tmp_path, nodes=1)
    finish(record, 0)
    record.fail(agent(record, "node-1"), "ended with exit code 3")
    assert record.summary()[0].startswith("FAILED: ")


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (15, "SIGTERM"), (40, "signal 40")])
def test_signal_names(number: int, name: str) -> None:
    assert signal_name(number) == name


# Runs that continue without a lost rank


def continuing(directory: Path, nodes: int = 3) -> RunRecord:
    """A record of such a run, in which all ranks train."""
    record = run_record(directory, nodes=nodes, **CONTINUES)
    train(record, *range(nodes))
    return record


def train(record: RunRecord, *ranks: int) -> None:
    start(record, *ranks)
    for rank in ranks:
        record.add_event(event("train_start", rank, parameters=1))


CONTINUES: dict[str, Any] = {"strategy": "gossip", "transport": "gloo", "on_loss": "continue"}
KILLED = {"cause": "killed by SIGKILL"}


@pytest.mark.parametrize("how", ["event", "exit code", "agent"])
def test_lost_rank_is_no_failure(tmp_path: Path, how: str) -> None:
    record = continuing(tmp_path)
    lost = agent(record, "node-2")
    if how == "event":
        record.add_event(event("died", 1, **KILLED))
    elif how == "exit code":
        record.record_exit(lost, {1: -9}, False)
        record.fail(lost, "killed by SIGKILL")  # as the coordinator does with exit codes
    else:
        record.record_loss(lost, "killed together with its container")
    assert record.failures == record.unreported == {}
    assert record.membership is not None
    assert [*record.membership.current.incarnations("member")] == [0, 2]
    assert [(rank, kind) for rank, kind, _ in died_events(tmp_path)] == [(1, "died")]
    finish(record, 0)
    assert not record.complete
    finish(record, 2)
    assert record.complete
    assert record.summary()[0].startswith("ok: ")


def test_rank_that_returns_has_no_exit_report(tmp_path: Path) -> None:
    record = continuing(tmp_path)
    record.add_event(event("died", 1, **KILLED))
    record.add_event(event("start", 1, pid=7, incarnation=1))
    record.add_event(event("waiting", 1, incarnation=1))
    record.add_event(event("train_start", 1, parameters=1))
    finish(record, 0, 1, 2)
    assert record.complete


def test_rank_that_returns_is_needed_again(tmp_path: Path) -> None:
    record = continuing(tmp_path)
    record.add_event(event("died", 1, **KILLED))
    record.add_event(event("start", 1, pid=7, incarnation=1))
    record.add_event(event("waiting", 1, incarnation=1))
    record.add_event(event("train_start", 1, parameters=1))
    record.add_event(event("failed", 1, cause="odd"))
    assert record.failures == {"node-2": "rank 1 failed: odd"}


def test_every_rank_but_one_can_be_lost(tmp_path: Path) -> None:
    record = continuing(tmp_path)
    for rank in (1, 0):
        record.add_event(event("died", rank, **KILLED))
    assert record.failures == {}
    assert record.membership is not None
    assert [*record.membership.current.incarnations("member")] == [2]
    record.add_event(event("died", 2, **KILLED))
    assert record.failures == {"node-3": "rank 2 was killed by SIGKILL"}
    assert not record.complete


def test_rank_can_be_lost_twice(tmp_path: Path) -> None:
    record = continuing(tmp_path)
    for incarnation in (1, 2):
        record.add_event(event("died", 1, **KILLED))
        record.add_event(event("start", 1, pid=7, incarnation=incarnation))
        record.add_event(event("waiting", 1, incarnation=incarnation))
        record.add_event(event("train_start", 1, parameters=1))
    assert record.failures == {}
    assert record.membership is not None
    assert record.membership.current.incarnations("member", "waiting") == {0: 0, 1: 2, 2: 0}


@pytest.mark.parametrize(
    ("fields", "events", "name"),
    [
        # A server is required.
        ({"strategy": "async_parameter_server", "transport": "rpc"}, ["train_start"], "master"),
        ({}, [], "node-1"),  # it does not train yet
    ],
)
def test_loss_that_ends_a_run(tmp_path: Path, fields: dict[str, Any], events: list[str], name: str) -> None:
    topology = "rpc" if fields else "ddp"
    record = run_record(tmp_path, topology, 3, **{**CONTINUES, **fields})
    train(record, 1, 2)
    start(record, 0)
    for kind in events:
        record.add_event(event(kind, 0, **({"parameters": 1} if kind == "train_start" else {})))
    record.add_event(event("died", 0, **KILLED))
    assert record.failures == {name: "rank 0 was killed by SIGKILL"}


@pytest.mark.parametrize("kind", ["failed", "terminated"])
def test_error_of_a_rank_fails_a_run_that_would_continue_without_it(tmp_path: Path, kind: str) -> None:
    record = continuing(tmp_path)
    record.add_event(event(kind, 1, cause="odd"))
    assert [*record.failures] == ["node-2"]


def test_rank_lost_after_its_result(tmp_path: Path) -> None:
    """Before `done`: its result is one too many."""
    record = continuing(tmp_path)
    record.add_event(event("result", 1, **rank_fields()))
    record.add_event(event("died", 1, **KILLED))
    finish(record, 0, 2)
    assert record.complete
