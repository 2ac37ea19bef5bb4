"""The ledger: what is kept of a run, who is to blame, and what is said at the end."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cluster_support import called
from tests.unit.conftest import event, rank_fields
from trainer.cluster.rank_assignment import Agent
from trainer.cluster.run_record import RunRecord, signal_name
from trainer.core.cgroup import NodeUsage
from trainer.core.events import EventReader

USAGE: dict[str, Any] = {"cpu_s": 2.5, "throttled_s": None, "out_of_memory": 0}


def run_record(directory: Path, topology: str = "ddp", nodes: int = 2, **fields: Any) -> RunRecord:
    return RunRecord(directory / "live", called(topology, *range(1, nodes + 1), **fields))


def member(kept: RunRecord, name: str) -> Agent:
    return next(each for each in kept._roster.members if each.name == name)


def start(kept: RunRecord, *ranks: int) -> None:
    for rank in ranks:
        kept.keep(event("start", rank, pid=100 + rank))


def finish(kept: RunRecord, *ranks: int, **fields: Any) -> None:
    for rank in ranks:
        kept.keep(event("result", rank, **rank_fields(**fields)))
        kept.keep(event("done", rank))


def last_words(directory: Path) -> list[tuple[int, str, Any]]:
    told = EventReader(directory / "live").new()
    return [(e.rank, e.kind, e.fields.get("cause")) for e in told if e.kind == "died"]


# In files


def test_the_run_and_its_members_are_kept_first(tmp_path: Path) -> None:
    kept = run_record(tmp_path, processes_per_node=2)
    live = tmp_path / "live"
    assert json.loads((live / "spec.json").read_text()) == kept._roster.spec.model_dump(mode="json")
    assignment = json.loads((live / "roster.json").read_text())
    assert [(each["role"], each["ordinal"], each["ranks"]) for each in assignment] == [
        ("node", 1, [0, 1]),
        ("node", 2, [2, 3]),
    ]


def test_events_are_kept_as_they_came_a_file_for_each_rank(tmp_path: Path) -> None:
    kept = run_record(tmp_path)
    told = [event("start", 1, 1.0, pid=5), event("start", 0, 2.0, pid=6), event("epoch", 1, 3.0, loss=0.1)]
    for each in told:
        kept.keep(each)
    assert EventReader(tmp_path / "live").new() == told
    lines = {path.name: len(path.read_text().splitlines()) for path in (tmp_path / "live").glob("*.jsonl")}
    assert lines == {"rank-0.jsonl": 1, "rank-1.jsonl": 2}


def test_weights_come_in_pieces(tmp_path: Path) -> None:
    kept, weights = run_record(tmp_path), bytes(range(256)) * 3
    for first in range(0, len(weights), 100):
        assert not (tmp_path / "live" / "weights.npy").exists()
        piece = base64.b64encode(weights[first : first + 100]).decode()
        kept.keep_weights(piece, last=first + 100 >= len(weights))
    assert (tmp_path / "live" / "weights.npy").read_bytes() == weights


def test_usage_is_a_line_for_each_member(tmp_path: Path) -> None:
    kept = run_record(tmp_path, "mpi")
    for name in ("node-1", "launcher"):
        kept.keep_usage(member(kept, name), USAGE)
    lines = (tmp_path / "live" / "usage.jsonl").read_text().splitlines()
    assert [NodeUsage.model_validate_json(line) for line in lines] == [
        NodeUsage(name="node-1", ranks=[0], **USAGE),
        NodeUsage(name="launcher", ranks=[], **USAGE),
    ]


@pytest.mark.parametrize("restarts", [0, 2])
def test_what_a_long_run_says_is_kept_in_files_alone(tmp_path: Path, restarts: int) -> None:
    """The head has 256 MiB; a rank tells of a step twice a second, and some runs take days."""
    kept = run_record(tmp_path, restarts=restarts)
    start(kept, 0, 1)
    before = len(pickle.dumps(kept))
    for step in range(10_000):
        kept.keep(event("step", step % 2, epoch=1, step=step, loss=0.5))
    assert len(pickle.dumps(kept)) - before < 100  # bytes
    lines = (tmp_path / "live" / "rank-0.jsonl").read_text().count("\n")
    assert lines == 5_001


# Who has failed


@pytest.mark.parametrize(
    ("kind", "fields", "cause"),
    [
        ("failed", {"cause": "ValueError: odd"}, "rank 1 failed: ValueError: odd"),
        ("died", {"cause": "killed by SIGKILL"}, "rank 1 was killed by SIGKILL"),
        ("terminated", {"cause": "stopped by SIGTERM"}, "rank 1 was stopped by SIGTERM"),
    ],
)
def test_a_rank_s_last_word_is_its_node_s_failure(
    tmp_path: Path, kind: str, fields: dict[str, Any], cause: str
) -> None:
    kept = run_record(tmp_path)
    start(kept, 0, 1)
    kept.keep(event(kind, 1, **fields))
    assert kept.failures == {"node-2": cause}


def test_the_first_reason_is_the_one_that_counts(tmp_path: Path) -> None:
    kept = run_record(tmp_path)
    kept.keep(event("failed", 0, cause="the reason"))
    kept.fail(member(kept, "node-1"), "ended with exit code 1")
    kept.fail(member(kept, "node-2"), "peer is gone")
    assert list(kept.failures.items()) == [
        ("node-1", "rank 0 failed: the reason"),
        ("node-2", "peer is gone"),
    ]


def test_who_is_sent_away_has_not_failed(tmp_path: Path) -> None:
    kept = run_record(tmp_path)
    kept.leaving = True
    kept.keep(event("terminated", 1, cause="stopped by SIGTERM"))
    assert kept.failures == {}
    kept.keep(event("failed", 0, cause="odd"))  # but who fails has
    assert kept.failures == {"node-1": "rank 0 failed: odd"}


def test_who_had_to_be_killed_when_it_was_sent_away_has_not_failed(tmp_path: Path) -> None:
    kept = run_record(tmp_path)
    start(kept, 0)
    kept.leaving = True
    for name in ("node-1", "node-2"):  # the one was up, the other not yet
        kept.record_exit(member(kept, name), {0: -9, 1: -9}, False)
    assert (last_words(tmp_path), kept.failures) == ([], {})


# Ranks that ended without a word


@pytest.mark.parametrize(
    ("codes", "out_of_memory", "cause"),
    [
        ({1: -9}, False, "killed by SIGKILL"),
        ({1: -11}, False, "killed by SIGSEGV"),
        ({1: -40}, False, "killed by signal 40"),
        (None, False, "killed together with its container, or cut off from the head"),
        ({1: -9}, True, "killed: its node needed more than 64 MiB of memory"),
        ({}, True, "killed: its node needed more than 64 MiB of memory"),
    ],
)
def test_the_ledger_says_a_last_word_for_who_left_none(
    tmp_path: Path, codes: dict[int, int] | None, out_of_memory: bool, cause: str
) -> None:
    kept = run_record(tmp_path, memory_mb=64)
    start(kept, 0, 1)
    kept.record_exit(member(kept, "node-2"), codes, out_of_memory)
    assert last_words(tmp_path) == [(1, "died", cause)]
    assert kept.failures == {"node-2": f"rank 1 was {cause}"}
    (died,) = [e for e in EventReader(tmp_path / "live").new() if e.kind == "died"]
    assert (died.run, died.host) == (kept._roster.spec.key, "host")


@pytest.mark.parametrize("word", ["done", "failed", "terminated", "died"])
@pytest.mark.parametrize(("codes", "out_of_memory"), [({1: -9}, False), (None, False), ({1: -9}, True)])
def test_who_has_said_its_last_word_is_not_given_another(
    tmp_path: Path, word: str, codes: dict[int, int] | None, out_of_memory: bool
) -> None:
    kept = run_record(tmp_path)
    start(kept, 0, 1)
    kept.keep(event(word, 1, cause="what it said"))
    failures = dict(kept.failures)
    kept.record_exit(member(kept, "node-2"), codes, out_of_memory)
    assert kept.failures == failures
    assert [cause for _, _, cause in last_words(tmp_path)] == (["what it said"] if word == "died" else [])


@pytest.mark.parametrize("codes", [{1: 0}, {1: 1}, {1: 143}, {}])  # {}: mpirun knows it
def test_who_ended_by_itself_was_not_killed(tmp_path: Path, codes: dict[int, int]) -> None:
    kept = run_record(tmp_path)
    start(kept, 1)
    kept.record_exit(member(kept, "node-2"), codes, False)
    assert (last_words(tmp_path), kept.failures) == ([], {})


def test_killed_before_it_came_up_there_is_no_event_to_speak_for_it(tmp_path: Path) -> None:
    kept = run_record(tmp_path)
    kept.record_exit(member(kept, "node-1"), {0: -9}, False)
    assert kept.failures == {"node-1": "rank 0, before it came up: killed by SIGKILL"}
    assert EventReader(tmp_path / "live").new() == []


def test_every_rank_of_a_node_is_buried(tmp_path: Path) -> None:
    kept = run_record(tmp_path, processes_per_node=2)
    start(kept, 0, 1, 2, 3)
    finish(kept, 2)
    kept.record_exit(member(kept, "node-2"), {2: 0, 3: -9}, False)
    kept.record_exit(member(kept, "node-1"), None, False)
    assert sorted(rank for rank, _, _ in last_words(tmp_path)) == [0, 1, 3]
    assert kept.failures["node-2"] == "rank 3 was killed by SIGKILL"


# The end


def test_complete_when_every_rank_has_a_result_and_is_done(tmp_path: Path) -> None:
    kept = run_record(tmp_path, nodes=2)
    start(kept, 0, 1)
    finish(kept, 1)
    complete = [kept.complete]
    for each in (event("done", 0), event("result", 0, **rank_fields()), event("died", 0, cause="killed")):
        kept.keep(each)
        complete.append(kept.complete)
    assert complete == [False, False, True, False]


def test_summary_of_a_run_that_is_ok(tmp_path: Path) -> None:
    kept = run_record(tmp_path, nodes=2, processes_per_node=2, seed=3)
    finish(kept, 0, 1, 2, 3, samples=60_000, train_s=2.0, accuracy=0.975)
    assert kept.summary() == [
        "ok: 2 nodes × 2 processes, world size 4, ddp over gloo, digits, 3 epochs, seed 3",
        "  trained 240,000 samples in 2.00 s, 120,000 samples/s",
        "  test accuracy 97.5%, same weights on all ranks",
    ]


def test_summary_says_when_the_run_went_on_from_a_checkpoint(tmp_path: Path) -> None:
    kept = run_record(tmp_path)
    kept.keep(event("resumed", 0, epoch=2, step=5, age_s=1.0, times=1))
    finish(kept, 0, 1)
    last = "  went on from the checkpoint after epoch 2 and 5 steps; what was lost is not in its time"
    assert kept.summary()[-1] == last


def test_summary_says_when_weights_differ(tmp_path: Path) -> None:
    kept = run_record(tmp_path)
    finish(kept, 0)
    finish(kept, 1, weights_digest="another", train_s=4.0)
    assert kept.summary()[1:] == [
        "  trained 200 samples in 4.00 s, 50 samples/s",  # the slowest rank's time
        "  test accuracy 90.0%, ranks ended with different weights",
    ]


@pytest.mark.parametrize(
    ("strategy", "digests", "told"),
    [
        ("pipeline", ["a", None, None, None], "one model on 4 nodes"),
        ("hybrid", ["a", None, "a", None], "same weights on all copies"),
        ("hybrid", ["a", None, "b", None], "copies ended with different weights"),
    ],
)
def test_summary_of_a_model_that_is_cut(
    tmp_path: Path, strategy: str, digests: list[str | None], told: str
) -> None:
    kept = run_record(tmp_path, nodes=4, strategy=strategy)
    for rank, digest in enumerate(digests):
        finish(kept, rank, weights_digest=digest)
    assert kept.summary()[-1] == f"  test accuracy 90.0%, {told}"


def test_summary_of_a_run_that_trains_nothing(tmp_path: Path) -> None:
    kept = run_record(tmp_path, "rpc", nodes=1, strategy="fault_injection", transport="rpc")
    finish(kept, 0, 1, samples=0, train_s=0.25, accuracy=None)
    assert kept.summary() == ["ok: 2 nodes, world size 2, fault_injection over rpc, seed 0", "  0.25 s"]


def test_summary_of_a_run_that_failed_names_who_and_why(tmp_path: Path) -> None:
    kept = run_record(tmp_path)
    finish(kept, 0)
    kept.keep(event("failed", 1, cause="odd"))
    assert kept.summary() == [
        "FAILED: 2 nodes, ddp over gloo, digits, 3 epochs, seed 0",
        "  node-2: rank 1 failed: odd",
    ]


def test_summary_of_a_run_that_ended_early_for_no_reason_that_is_known(tmp_path: Path) -> None:
    kept = run_record(tmp_path, nodes=1)
    assert kept.summary() == [
        "FAILED: 1 node, ddp over gloo, digits, 3 epochs, seed 0",
        "  not every result was given and kept",
    ]


def test_a_failure_counts_whatever_else_is_complete(tmp_path: Path) -> None:
    kept = run_record(tmp_path, nodes=1)
    finish(kept, 0)
    kept.fail(member(kept, "node-1"), "ended with exit code 3")
    assert kept.summary()[0].startswith("FAILED: ")


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (15, "SIGTERM"), (40, "signal 40")])
def test_signals_have_names(number: int, name: str) -> None:
    assert signal_name(number) == name
