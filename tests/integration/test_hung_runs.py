"""Mistakes in what is said of a strategy whose ranks wait for each other forever, also with `debug`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import shardyard
from orchestrator.results.store import SweepPaths
from shardyard import Results
from tests.support.nightly import nightly
from tests.support.processes import starts
from tests.support.runs import events_of, write_sweep
from trainer.core.position import Position

STUCK = '''
import time

from trainer.core.strategy import Strategy


class Stuck(Strategy):
    """Averages gradients, until rank 0 does something else."""

    transports = ("gloo", "mpi", "rpc", "memory")
    min_nodes = 2
    by: str = "barrier"
    at: int = 3

    def train(self, session):
        replica, comm, steps = session.replica(), session.comm, 0
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, "join"):
                replica.backward(batch)
                steps += 1
                if steps == self.at and session.rank == 0:
                    if self.by == "return":
                        return
                    if self.by == "barrier":
                        comm.barrier()  # barrier
                    if self.by == "recv":
                        comm.recv(replica.gradient(), 1)  # recv
                    while self.by == "nothing":
                        time.sleep(1)  # nothing
                gradient = replica.gradient()
                comm.all_reduce(gradient, "mean")  # all_reduce
                replica.set_gradient(gradient)
                replica.step()
'''
BASE: dict[str, Any] = {
    "nodes": 2,
    "dataset": {"name": "synthetic", "samples": 240, "test_samples": 64},
    "model": {"name": "mlp", "hidden": [8]},
    "epochs": 1,
}


def swept(folder: Path, runs: list[dict[str, Any]], **fields: Any) -> Results:
    (folder / "mine.py").write_text(STUCK)
    path = write_sweep(folder / "stuck.yml", BASE | fields, *runs)
    return shardyard.sweep(path, out=folder / "out", runtime="local", progress=False)


def strategy(by: str, at: int = 3) -> dict[str, Any]:
    return {"name": "./mine.py:Stuck", "by": by, "at": at}


def place(mark: str) -> str:
    """`mine.py:23`: the line of STUCK with this mark."""
    return f"mine.py:{1 + STUCK[: STUCK.index(f'# {mark}')].count(chr(10))}"


def positions(results: Results, key: str) -> dict[int, Position]:
    """What the stopped ranks of a run say about where they were."""
    events = events_of(SweepPaths(results.directory).run(key).directory)
    return {
        event.rank: Position.model_validate(event.fields["position"])
        for event in events
        if event.kind == "terminated"
    }


@pytest.mark.parametrize(
    ("transport", "by"),
    [("gloo", "barrier"), *nightly(("mpi", "barrier"), ("rpc", "nothing"), ("memory", "recv"))],
)
def test_a_timeout_names_line_and_exchange_of_each_rank(tmp_path: Path, transport: str, by: str) -> None:
    results = swept(tmp_path, [{"strategy": strategy(by)}], transport=transport, timeout_s=starts(4))
    (line,) = results.runs
    assert line["status"] == "timeout"
    found = positions(results, str(line["key"]))
    places = {rank: f"{each.file}:{each.line}" for rank, each in found.items()}
    assert places == {0: place(by), 1: place("all_reduce")}
    kinds = [each.kind if (each := found[rank].exchange) else "nothing" for rank in range(2)]
    assert kinds == [by, "all_reduce"]
    cause = str(line["cause"])
    assert all(each.text in cause for each in found.values())
    assert ("nodes 0, 1 are in different exchanges" in cause) == (by != "nothing")
    logs = SweepPaths(results.directory).run(str(line["key"])).directory.glob("node-*.log")
    stacks = "".join(log.read_text() for log in logs)
    assert all(f'mine.py", line {each.line}, in train' in stacks for each in found.values())


@pytest.mark.parametrize("transport", ["gloo", *nightly("mpi", "rpc", "memory")])
def test_debug_finds_a_mismatch_at_once(tmp_path: Path, transport: str) -> None:
    runs: list[dict[str, Any]] = [{"strategy": strategy(by)} for by in ("barrier", "return")]
    results = swept(tmp_path, runs, transport=transport, debug=True, timeout_s=300)
    assert len(results.runs) == 2
    for line in results.runs:
        assert line["status"] == "failed"
        said = re.search(
            r"rank 0 calls (\w+)\b.* while rank 1 calls all_reduce.* at (\S+)$", str(line["cause"])
        )
        assert said
        assert said[2] == place("all_reduce")
        outside = "outside of the strategy while" in said[0]
        assert outside == (said[1] != "barrier")
        assert outside or f"rank 0 calls barrier at {place('barrier')}" in said[0]
    assert len({line["cause"] for line in results.runs}) == 2
