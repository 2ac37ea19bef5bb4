"""Mistakes about faults that runs inject into themselves: what they cost, and what else they change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.results.records import RunResult
from tests.support.nightly import nightly
from tests.support.runs import RunCache, digests

Execute = Callable[..., RunResult]

# Three steps per epoch on each of three nodes.
TRANSPORTS = ["gloo", *nightly("mpi", "rpc")]
RUN: dict[str, Any] = {"strategy": "all_reduce", "nodes": 3, "epochs": 6}


def wait_for_node(result: RunResult, node: int) -> float:
    """Seconds that the other nodes waited for a node."""
    return sum(rank.wait_s_by_rank[node] for rank in result.ranks if rank.wait_s_by_rank)


def where(result: RunResult) -> list[tuple[str, int, int, int]]:
    """Each fault's action, node, epoch, and steps taken before."""
    return [(fault.action, fault.node, fault.epoch, fault.step) for fault in result.faults]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_faults_that_end_cost_time_and_nothing_else(
    execute: Execute, run_cache: RunCache, transport: str
) -> None:
    undisturbed = run_cache.get(**RUN, transport=transport).result
    faults = [
        {"pause": {"node": 1, "seconds": 1.0}, "at": {"epoch": 2}},
        {"cut_off": {"node": 2, "seconds": 0.7}, "at": {"step": 8}},
        {"drop": {"node": 0, "share": 0.2, "seconds": 0.5}, "at": {"random": {"steps": [11, 11]}}},
        {"pause": {"node": 2, "seconds": 1.0}, "at": {"step": 1000}},
    ]
    result = execute(**RUN, transport=transport, faults=faults)
    assert (result.status, result.cause) == ("ok", None)
    assert where(result) == [("pause", 1, 2, 3), ("cut_off", 2, 3, 7), ("drop", 0, 4, 10)]
    assert digests(result) == digests(undisturbed)
    assert result.accuracy == undisturbed.accuracy
    assert result.repeated_steps == 0
    # The pause blocks the node itself, and a cut all exchanges with it: neither can take less time.
    assert (result.train_s or 0) > 1.0 + 0.7
    assert wait_for_node(result, 1) > 1.0  # the two others, almost all of the pause
    injected, missed = [flag for flag in result.flags if "inject" in flag]
    assert injected.startswith("3 faults were injected")
    assert missed.startswith("fault 3 was never injected")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_slow_node_is_the_straggler(execute: Execute, run_cache: RunCache, transport: str) -> None:
    undisturbed = run_cache.get(**RUN, transport=transport).result
    slow = {"slow": {"node": 2, "factor": 200}, "at": {"second": 0}}
    result = execute(**RUN, transport=transport, faults=[slow])
    assert (result.status, [fault.action for fault in result.faults]) == ("ok", ["slow"])
    assert digests(result)[0] == digests(undisturbed)[0]
    assert wait_for_node(result, 2) > wait_for_node(result, 0) + wait_for_node(result, 1)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_killed_node_and_its_fault_are_the_cause(execute: Execute, transport: str) -> None:
    result = execute(**RUN, transport=transport, faults=[{"kill": {"node": 1}, "at": {"epoch": 3}}])
    assert result.status == "failed"
    assert "node 1 (process " in str(result.cause)
    assert "SIGKILL" in str(result.cause)
    assert str(result.cause).endswith("by fault 0 of the spec in epoch 3 after 6 steps")
    assert where(result) == [("kill", 1, 3, 6)]


def test_killed_node_restarts_and_repeats_the_steps_after_the_checkpoint(
    execute: Execute, run_cache: RunCache
) -> None:
    """The fault fires once, and what lasts is in force again."""
    undisturbed = run_cache.get(**RUN, transport="gloo").result
    slow = {"slow": {"node": 1, "factor": 2}, "at": {"step": 2}}
    faults = [{"kill": {"node": 1}, "at": {"step": 12}}, slow]
    result = execute(**RUN, transport="gloo", restarts=1, checkpoint_epochs=2, faults=faults)
    assert (result.status, result.cause, result.restarted) == ("ok", None, 1)
    assert digests(result)[0] == digests(undisturbed)[0]
    assert where(result) == [("kill", 1, 4, 11), ("slow", 1, 1, 1)]
    assert result.repeated_steps == 11 - 2 * 3


@pytest.mark.nightly
def test_run_killed_by_a_fault_resumes_without_it(execute: Execute) -> None:
    fields = {**RUN, "transport": "gloo", "checkpoint_epochs": 2}
    kill = {"kill": {"node": 0}, "at": {"epoch": 5}}
    assert execute(**fields, faults=[kill]).status == "failed"
    result = execute(**fields, faults=[kill])
    assert (result.status, result.cause) == ("ok", None)
    assert where(result) == [("kill", 0, 5, 12)]
    assert result.repeated_steps == 0


@pytest.mark.nightly
def test_node_that_is_paused_at_the_time_limit_leaves_no_process(execute: Execute) -> None:
    """Neither the stopped ranks nor the helper that would continue them."""
    pause = {"pause": {"node": 1, "seconds": 20.0}, "at": {"step": 2}}
    result = execute(**RUN, transport="gloo", timeout_s=20.0, faults=[pause])
    assert result.status == "timeout"
    assert where(result) == [("pause", 1, 1, 1)]
