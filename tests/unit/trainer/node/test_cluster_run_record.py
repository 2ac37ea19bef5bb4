"""Mistakes in the run record: wrong files, causes that are lost or blamed on others, the summary."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cluster_support import assigned
from tests.unit.conftest import event, rank_fields
from trainer.core.events import UNREPORTED, Event, EventReader
from trainer.node.run_record import RunRecord

Step = Event | Callable[[RunRecord], None]


def recorded(path: Path, *steps: Step, topology: str = "ddp", nodes: int = 2, **fields: Any) -> RunRecord:
    """The record of a run after these events and calls."""
    record = RunRecord(path / "live", assigned(topology, *range(1, nodes + 1), **fields))
    for step in steps:
        if isinstance(step, Event):
            record.add_event(step)
        else:
            step(record)
    return record


def starts(*ranks: int) -> list[Step]:
    return [event("start", rank, pid=100 + rank) for rank in ranks]


def trains(*ranks: int) -> list[Step]:
    return [*starts(*ranks), *(event("train_start", rank, parameters=1) for rank in ranks)]


def finishes(*ranks: int, **fields: Any) -> list[Step]:
    results = {rank: event("result", rank, **rank_fields(**fields)) for rank in ranks}
    return [each for rank in ranks for each in (results[rank], event("done", rank))]


def calls(method: str, name: str, *arguments: Any) -> Step:
    """Call a method of the record for the named agent."""

    def call(record: RunRecord) -> None:
        agents = {each.name: each for each in record.assignment.agents}
        getattr(record, method)(agents[name], *arguments)

    return call


def shuts_down(record: RunRecord) -> None:
    record.shutting_down = True


# Files


def test_files_of_a_run(tmp_path: Path) -> None:
    events = [event("start", 1, 1.0, pid=5), event("start", 0, 2.0, pid=6), event("ready", 1, 3.0)]
    record = recorded(tmp_path, *events, topology="mpi", processes_per_node=2)
    live = tmp_path / "live"
    assert json.loads((live / "spec.json").read_text()) == record.assignment.spec.model_dump(mode="json")
    agents = json.loads((live / "assignment.json").read_text())
    found = [(each["role"], each["ordinal"], each["ranks"], each["public_keys"]) for each in agents]
    assert found == [("launcher", 1, [], {}), ("node", 1, [0, 1], {}), ("node", 2, [2, 3], {})]
    assert EventReader(live).new() == events
    counts = {path.name: path.read_text().count("\n") for path in live.glob("*.jsonl")}
    assert counts == {"rank-0.jsonl": 1, "rank-1.jsonl": 2}


@pytest.mark.parametrize("restarts", [0, 2])
def test_memory_does_not_grow_with_events(tmp_path: Path, restarts: int) -> None:
    """The coordinator has 256 MiB; a rank writes two step events per second, and some runs take days."""
    record = recorded(tmp_path, *starts(0, 1), restarts=restarts)
    record._tell_suspended = print  # which can be pickled
    before = len(pickle.dumps(record))
    for step in range(1000):
        record.add_event(event("step", step % 2, epoch=1, step=step, loss=0.5))
    assert len(pickle.dumps(record)) - before < 100  # bytes


# Causes

BOTH, FAILED = starts(0, 1), event("failed", 1, cause="odd")
FULL = "its directory /run/shardyard is full"
MEMORY = "rank 1 was killed: its node needed more than 64 MiB of memory"


def ends(code: int | None, memory: bool = False, full: bool = False) -> Step:
    """Rank 1 ends with this exit code, of which its agent knows nothing if mpirun has started it."""
    directory = "/run/shardyard" if full else None
    return calls("record_exit", "node-2", {} if code is None else {1: code}, memory, directory)


@pytest.mark.parametrize(
    ("steps", "cause", "unreported", "died"),
    [
        # The first exit report of a rank is the cause.
        ([*BOTH, FAILED, ends(-9), calls("fail", "node-2", "late")], "rank 1 failed: odd", False, 0),
        ([*BOTH, event("died", 1, cause="killed"), ends(-9, memory=True)], "rank 1 was killed", False, 1),
        ([*BOTH, event("terminated", 1, cause="ended"), ends(-9)], "rank 1 was ended", False, 0),
        ([*BOTH, event("done", 1), ends(-9, memory=True)], None, False, 0),
        # Then its exit code, unless its log says more.
        ([*BOTH, ends(0)], f"rank 1 failed: {UNREPORTED}", False, 0),
        ([*BOTH, ends(1)], None, False, 0),
        ([*BOTH, ends(None)], None, False, 0),
        ([*BOTH, ends(-11)], "rank 1 was killed by SIGSEGV", False, 1),
        ([*BOTH, ends(-40)], "rank 1 was killed by signal 40", False, 1),
        ([*BOTH, ends(-9, memory=True)], MEMORY, False, 1),
        ([*BOTH, ends(None, memory=True)], MEMORY, False, 1),
        ([*BOTH, ends(1, full=True)], f"rank 1 failed: {FULL}", False, 0),
        ([*BOTH, ends(None, full=True)], f"rank 1 failed: {FULL}", False, 0),
        ([*BOTH, event("done", 1), ends(1, full=True)], None, False, 0),
        ([*BOTH, ends(-9, full=True)], "rank 1 was killed by SIGKILL", False, 1),
        ([*BOTH, calls("record_loss", "node-2", "cut off")], "rank 1 was cut off", False, 1),
        # Before it has started, no event can say so.
        ([ends(0)], f"rank 1, before it started: {UNREPORTED}", True, 0),
        ([ends(-9)], "rank 1, before it started: killed by SIGKILL", True, 0),
        ([ends(1, full=True)], f"rank 1, before it started: {FULL}", True, 0),
        ([calls("record_loss", "node-2", "cut off")], "rank 1, before it started: cut off", True, 0),
        # At shutdown, only errors are failures.
        ([*BOTH, shuts_down, event("terminated", 1, cause="ended")], None, False, 0),
        ([*BOTH, shuts_down, ends(-9)], None, False, 0),
        ([shuts_down, ends(-9)], None, False, 0),
        ([*BOTH, shuts_down, FAILED], "rank 1 failed: odd", False, 0),
    ],
)
def test_cause_of_a_failed_node(
    tmp_path: Path, steps: list[Step], cause: str | None, unreported: bool, died: int
) -> None:
    record = recorded(tmp_path, *steps, memory_mb=64)
    assert record.failures == ({"node-2": cause} if cause else {})
    assert record.unreported == (record.failures if unreported else {})
    events = [each for each in EventReader(tmp_path / "live").new() if each.kind == "died"]
    assert [(each.rank, each.host) for each in events] == [(1, "host")] * died


KILLED = calls("record_exit", "node-1", {0: -9, 1: -9}, False)
KILLED_FOR_MEMORY = calls("record_exit", "node-1", {0: -9, 1: -9}, True)
PARENT = "the process that started all 2 nodes was killed by SIGKILL"


@pytest.mark.parametrize(
    ("steps", "cause", "unreported"),
    [
        ([*BOTH, KILLED], PARENT, True),
        ([*BOTH, *(event("terminated", rank, cause="ended") for rank in (0, 1)), KILLED], PARENT, True),
        ([*BOTH, FAILED, KILLED], "rank 1 failed: odd", False),
        ([*BOTH, event("died", 1, cause="killed"), KILLED], "rank 1 was killed", False),
        ([*BOTH, *finishes(0, 1), KILLED], None, False),
        ([*BOTH, KILLED_FOR_MEMORY], MEMORY.replace("1", "0"), False),
    ],
)
def test_killed_parent_of_the_ranks_is_the_cause(
    tmp_path: Path, steps: list[Step], cause: str | None, unreported: bool
) -> None:
    """In topology single, exit codes are those of the process that has started the ranks."""
    record = recorded(tmp_path, *steps, topology="single", memory_mb=64)
    assert (record.unreported if unreported else record.failures).get("node-1") == cause
    assert bool(record.unreported) == unreported


def test_ranks_of_a_node_are_lost_together(tmp_path: Path) -> None:
    lost = [calls("record_exit", "node-2", {2: 0, 3: -9}, False), calls("record_loss", "node-1", "killed")]
    record = recorded(tmp_path, *starts(0, 1, 2, 3), *finishes(2), *lost, processes_per_node=2)
    events = [each for each in EventReader(tmp_path / "live").new() if each.kind == "died"]
    assert sorted(each.rank for each in events) == [0, 1, 3]
    assert record.failures == {"node-1": "rank 0 was killed", "node-2": "rank 3 was killed by SIGKILL"}


# Summary


RPC: dict[str, Any] = {"topology": "rpc", "nodes": 1, "strategy": "fault_injection", "transport": "rpc"}
HYBRID: dict[str, Any] = {"nodes": 4, "strategy": "hybrid"}
RESUMED = event("resumed", 0, epoch=2, step=5, age_s=1.0, times=1)
WHOLE = finishes(0, 1, 2, 3, samples=60_000)
SLOWER = [*finishes(0), *finishes(1, weights_digest="another", train_s=4.0)]


def digests(*found: str | None) -> list[Step]:
    """All ranks finish, with weights of these digests."""
    return [each for rank, digest in enumerate(found) for each in finishes(rank, weights_digest=digest)]


@pytest.mark.parametrize(
    ("fields", "steps", "number", "line"),
    [
        ({}, SLOWER, 0, "ok: 2 nodes, world size 2, ddp over gloo, digits, 3 epochs, seed 0"),
        ({"processes_per_node": 2, "seed": 3}, WHOLE, 0, "ok: 2 nodes × 2 processes, world size 4, ddp "),
        (RPC, finishes(0, 1), 0, "ok: 2 nodes, world size 2, fault_injection over rpc, seed 0"),
        ({}, [*finishes(0), FAILED], 0, "FAILED: 2 nodes, ddp over gloo, digits, 3 epochs, seed 0"),
        ({}, [*finishes(0, 1), calls("fail", "node-1", "late")], 0, "FAILED: "),
        ({"nodes": 1}, [], 0, "FAILED: 1 node, "),
        ({"nodes": 1}, [], 1, "  not all results were received and saved"),
        ({"processes_per_node": 2}, WHOLE, 1, "  trained 240,000 samples in 2.00 s, 120,000 samples/s"),
        ({"processes_per_node": 2}, WHOLE, 2, "  test accuracy 90.0%, same weights on all ranks"),
        ({}, SLOWER, 1, "  trained 200 samples in 4.00 s, 50 samples/s"),
        ({}, SLOWER, 2, "  test accuracy 90.0%, ranks ended with different weights"),
        (RPC, finishes(0, 1, accuracy=None), 1, "  2.00 s"),
        ({}, [RESUMED, *finishes(0, 1)], 3, "  resumed from the checkpoint after epoch 2 and 5 steps"),
        ({"strategy": "pipeline"}, digests("a", None), 2, "  test accuracy 90.0%, one model on 2 nodes"),
        (HYBRID, digests("a", None, "a", None), 2, "  test accuracy 90.0%, same weights on all replicas"),
        (HYBRID, digests("a", None, "b", None), 2, "  test accuracy 90.0%, replicas ended with different"),
    ],
)
def test_summary(tmp_path: Path, fields: dict[str, Any], steps: list[Step], number: int, line: str) -> None:
    assert recorded(tmp_path, *steps, **fields).summary()[number].startswith(line)


# Runs that continue without a lost rank


CONTINUES: dict[str, Any] = {"nodes": 3, "strategy": "gossip", "transport": "gloo", "on_loss": "continue"}
SERVER: dict[str, Any] = {"topology": "rpc", "strategy": "async_parameter_server", "transport": "rpc"}


def dies(rank: int) -> Event:
    return event("died", rank, cause="killed by SIGKILL")


def returns(rank: int, incarnation: int = 1) -> list[Step]:
    head = event("start", rank, pid=7, incarnation=incarnation)
    return [head, event("waiting", rank, incarnation=incarnation), event("train_start", rank, parameters=1)]


@pytest.mark.parametrize(
    ("fields", "steps", "failures"),
    [
        ({}, [dies(1), *finishes(0, 2)], {}),
        (
            {},
            [
                calls("record_exit", "node-2", {1: -9}, False),
                calls("fail", "node-2", "killed"),
                *finishes(0, 2),
            ],
            {},
        ),
        ({}, [calls("record_loss", "node-2", "killed together with its container"), *finishes(0, 2)], {}),
        ({}, [event("result", 1, **rank_fields()), dies(1), *finishes(0, 2)], {}),  # one result too many
        ({}, [dies(1), *returns(1), *finishes(0, 1, 2)], {}),
        ({}, [dies(1), *returns(1), dies(1), *returns(1, 2), *finishes(0, 1, 2)], {}),
        ({}, [dies(1), *returns(1), event("failed", 1, cause="odd")], {"node-2": "rank 1 failed: odd"}),
        ({}, [dies(1), dies(0), *finishes(2)], {}),
        ({}, [dies(1), dies(0), dies(2)], {"node-3": "rank 2 was killed by SIGKILL"}),
        ({}, [FAILED], {"node-2": "rank 1 failed: odd"}),
        ({}, [event("terminated", 1, cause="ended")], {"node-2": "rank 1 was ended"}),
        (SERVER, [dies(0)], {"master": "rank 0 was killed by SIGKILL"}),  # a server is required
    ],
)
def test_which_losses_end_a_run(
    tmp_path: Path, fields: dict[str, Any], steps: list[Step], failures: dict[str, str]
) -> None:
    ranks = range(4 if fields else 3)
    record = recorded(tmp_path, *trains(*ranks), *steps, **{**CONTINUES, **fields})
    assert record.failures == failures
    assert record.complete == (not failures)


def test_lost_rank_is_no_failure_while_others_train(tmp_path: Path) -> None:
    record = recorded(tmp_path, *trains(0, 1, 2), dies(1), **CONTINUES)
    assert record.membership
    assert [*record.membership.current.incarnations("member")] == [0, 2]
    assert not record.complete
    for step in finishes(0, 2):
        record.add_event(step)  # type: ignore[arg-type]
    assert record.summary()[-1] == "  node-2 was lost; the others continued without it"
    record = recorded(tmp_path, *trains(1, 2), *starts(0), dies(0), **CONTINUES)  # it does not train yet
    assert record.failures == {"node-1": "rank 0 was killed by SIGKILL"}
