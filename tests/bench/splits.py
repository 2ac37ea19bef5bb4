"""Every way to split a small GPT beside one node: losses, weights, bytes. On request: it takes minutes.

An epoch is one step on the whole training set. So all splits see the same samples in each step, however
they divide them, and all compare with `serial`. The parts of ranks and micro-batches have unequal sizes.
Gradients are clipped in some steps, and embedding and head are tied where a split allows that.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import ValidationError

from orchestrator.report import formats
from orchestrator.report.model.labels import strategy_label
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from tests.bench.runs import runs_on
from tests.support.step_bytes import mean_step_bytes
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec

RANKS = (2, 3, 4)
STEPS = 10
LOSS_ATOL, WEIGHTS_RTOL = 5e-6, 1e-5
GPT = {"name": "gpt", "layers": 6, "width": 32, "heads": 4}  # interleaved on 4 ranks needs 8 stages
EXPERTS = {"experts": 5, "top_k": 2, "capacity_factor": None, "balance": 0.0}  # as one node computes them
RUN: dict[str, Any] = {
    "dataset": {"name": "induction", "length": 23, "tokens": 30, "samples": 35, "test_samples": 16},
    "batch_size": 36,  # divides by all numbers of replicas
    "batch_per": "run",
    "epochs": STEPS,
    "optimizer": "momentum",  # adam would hide a wrong scale of the gradient
    "lr": 0.1,
    "threads": 1,
    "save_weights": True,
}
CLIP_NORM = 0.4  # less than the norm in some steps and more in others
ACCUMULATE, MICRO_BATCHES = 2, 12
# Parameters of strategies that have several ways to split.
VARIANTS: dict[str, Sequence[dict[str, Any]]] = {
    "fsdp": ({}, {"reshard": False}),
    "tensor_parallel": ({}, {"sequence_parallel": True}),
    "context_parallel": ({"attention": "ring"}, {"attention": "ulysses"}),
    "pipeline": [{"schedule": each} for each in ("gpipe", "1f1b", "interleaved", "zero_bubble")],
    "pipeline_torch": [{"schedule": each} for each in ("gpipe", "1f1b")],
    "hybrid": [
        {"mesh": {"data": 2, "pipeline": 2}},
        {"mesh": {"data": 2, "pipeline": 2}, "schedule": "zero_bubble"},
        {"mesh": {"data": 2, "tensor": 2}},
        {"mesh": {"pipeline": 2, "tensor": 2}},
    ],
}
COLUMNS = (
    "| split | tied | ranks | loss off | weights off | sent a step | by the formula "
    "| weights | gradient | optimizer | activations |\n|" + " --- |" * 11
)


@dataclass(frozen=True)
class Row:
    """A split beside one node.

    Attributes:
        loss: the largest absolute difference of any step, whose loss is the mean over its samples.
        weights: the largest difference of a final weight, relative to their root mean square.
    """

    result: RunResult
    serial: RunResult
    loss: float
    weights: float

    @property
    def exceeds(self) -> bool:
        return not (self.loss <= LOSS_ATOL and self.weights <= WEIGHTS_RTOL)


def main() -> None:
    with tempfile.TemporaryDirectory() as name, runs_on("local", results=Path(name)) as execute:
        print(
            f"{STEPS} steps of gpt beside serial; allowed: loss {LOSS_ATOL:g}, weights {WEIGHTS_RTOL:g}\n"
        )
        print(COLUMNS)
        rows: list[Row] = []
        known: dict[str, RunResult] = {}
        for runs in splits():
            found = []
            for run in runs:
                serial = on_one_node(run)
                if serial.key not in known:
                    known[serial.key] = execute(serial)
                found.append(compared(execute(run), known[serial.key], SweepPaths(Path(name))))
            print(line(found), flush=True)
            rows += found
            if different := differing(found):
                sys.exit(f"the transports send different bytes: {', '.join(different)}")
    loss, weights = max(row.loss for row in rows), max(row.weights for row in rows)
    print(f"\n{len(rows)} runs; largest deviation: loss {loss:.1e}, weights {weights:.1e}")
    if wrong := [row.result.key for row in rows if row.exceeds]:
        sys.exit(f"not equal to serial: {', '.join(wrong)}")


def splits() -> Iterator[list[RunSpec]]:
    """The runs of each split that claims the mathematics of another, and of `all_reduce` and `ddp`.

    On all numbers of ranks that it allows, in ascending order, over gloo and then over mpi, or over rpc.
    """
    for name in STRATEGIES.entries:
        strategy = STRATEGIES.load(name)
        if strategy.equals is None and name not in ("all_reduce", "ddp"):
            continue
        transports = ("rpc",) if strategy.transports == ("rpc",) else ("gloo", "mpi")
        for parameters in VARIANTS.get(name, ({},)):
            runs = [
                allowed({"name": name, **parameters}, ranks, transport)
                for transport in transports
                for ranks in RANKS
            ]
            found = [run for run in runs if run]
            if not found:
                sys.exit(f"{name} {parameters}: no number of ranks allows it")
            yield found


def allowed(strategy: dict[str, Any], ranks: int, transport: str) -> RunSpec | None:
    """The run with tied weights, or without them, or None."""
    fields: dict[str, Any] = {**RUN, "nodes": ranks, "transport": transport, "model": GPT}
    if strategy["name"] == "expert_parallel":
        fields["model"] = {**GPT, **EXPERTS}
    if strategy["name"] != "rpc_split":
        fields["clip_norm"] = CLIP_NORM
    if "micro_batches" in STRATEGIES.load(strategy["name"]).model_fields:
        strategy = {**strategy, "micro_batches": MICRO_BATCHES}
    elif strategy["name"] != "rpc_split":
        fields["accumulate"] = ACCUMULATE
    for tied in (True, False):
        with suppress(ValidationError):
            model = {**fields["model"], "tied": tied}
            return RunSpec.model_validate({**fields, "strategy": strategy, "model": model})
    return None


def on_one_node(run: RunSpec) -> RunSpec:
    """The same training, neither split nor in micro-batches."""
    own = {"strategy", "nodes", "transport", "accumulate"}
    fields = run.model_dump(mode="json", exclude_defaults=True, exclude=own)
    return RunSpec.model_validate({**fields, "strategy": "serial"})


def compared(result: RunResult, serial: RunResult, paths: SweepPaths) -> Row:
    """A split beside the same training on one node."""
    losses = np.abs(np.array(losses_of(result)) - losses_of(serial))
    mine, expected = (np.load(paths.run(each.key).weights).astype(float) for each in (result, serial))
    off = np.abs(mine - expected).max() / np.sqrt(np.square(expected).mean())
    return Row(result, serial, float(losses.max()), float(off))


def losses_of(result: RunResult) -> list[float]:
    """The loss of each step, over all samples. Ranks of one replica have the same loss, or none."""
    strategy, size = result.run.strategy, len(result.ranks)
    samples: dict[int, int] = defaultdict(int)
    for rank in result.ranks:
        samples[strategy.replica_of(rank.rank, size)] += rank.samples
    losses: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in result.epochs:
        if point.loss is not None:
            losses[point.epoch][strategy.replica_of(point.rank, size)].append(point.loss)
    return [
        sum(fmean(each) * samples[replica] for replica, each in of_step.items()) / sum(samples.values())
        for _, of_step in sorted(losses.items())
    ]


def differing(rows: Sequence[Row]) -> list[str]:
    """Keys of runs of which another one sends other bytes, over another transport on as many ranks."""
    sent = [(each.result.key, each.result.run.nodes, each.result.bytes_sent_per_rank) for each in rows]
    first = {nodes: each for _, nodes, each in reversed(sent)}
    return [key for key, nodes, each in sent if each is None or each != first[nodes]]


def line(rows: Sequence[Row]) -> str:
    """A row of the table, in Markdown: of one split. State and activations are those on most ranks.

    Bytes are those over the first transport.
    """
    ranks: dict[str, list[str]] = defaultdict(list)
    for each in rows:
        ranks[str(each.result.run.transport)].append(str(each.result.run.nodes))
    first = [each for each in rows if each.result.run.transport == rows[0].result.run.transport]
    largest = max(rows, key=lambda row: row.result.run.nodes).result
    most = max(largest.ranks, key=lambda rank: rank.held_bytes or 0)
    state = most.state_bytes or {}
    label = strategy_label(largest.run).removesuffix(f" accumulate={ACCUMULATE}")
    cells = [
        label.removesuffix(f" micro_batches={MICRO_BATCHES}"),
        "yes" if largest.run.model.tied else "no",
        "; ".join(f"{transport} {', '.join(numbers)}" for transport, numbers in ranks.items()),
        f"{max(each.loss for each in rows):.1e}",
        f"{max(each.weights for each in rows):.1e}{' exceeds' * any(each.exceeds for each in rows)}",
        ", ".join(formats.size((each.result.bytes_sent_per_rank or 0.0) / STEPS) for each in first),
        ", ".join(formats.size(by_formula(each)) for each in first),
        *(formats.size(state[what]) for what in ("weights", "gradient", "optimizer")),
        formats.size(most.activation_bytes),
    ]
    return f"| {' | '.join(cells)} |"


def by_formula(row: Row) -> float | None:
    """The bytes that a rank sends in a step, the mean over ranks."""
    run, parameters = row.result.run, [rank.parameters for rank in row.result.ranks]
    return mean_step_bytes(run, run.dataset.samples, parameters, row.serial.ranks[0].parameters)
