"""One model and one global batch, partitioned in every way: step time on two links, and memory per node.

Each run changes its nodes' link halfway through, so that both links are measured in the same processes.
The order of links and strategies alternates between rounds.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.results.records import RankResult, RunResult
from orchestrator.runtimes.docker.engine import Engine, reach
from tests.bench import link
from tests.bench.runs import runs_on
from tests.bench.two_links import FREE, SHAPED, TwoLinks
from tests.support.containers import containers_missing
from trainer.spec.run_spec import RunSpec

HOLDERS = (2, 4)  # nodes that hold the model or a partition of it
LAYERS, WIDTH = 8, 512  # layers of equal size, so that 2 or 4 stages are equal, too
CPUS, BATCH, STEPS, EPOCHS, ROUNDS = 0.4, 256, 3, 7, 2
ATTEMPTS = 3
HEADERS = 1.1  # upper bound of bytes on the link divided by payload

Row = tuple[str, dict[str, Any]]  # label, strategy
Times = dict[str, list[float]]  # seconds per step: one value per counted epoch, by link


def rows(holders: int) -> list[Row]:
    split_points = [f"fc{1 + part * LAYERS // holders}" for part in range(1, holders)]
    pipelines: list[Row] = []
    for schedule in ("gpipe", "1f1b"):
        for micro_batches in (4, 8):
            strategy = {
                "name": "pipeline",
                "schedule": schedule,
                "micro_batches": micro_batches,
                "split_points": split_points,
            }
            pipelines.append((f"{schedule}, {micro_batches} micro-batches", strategy))
    return [
        ("all_reduce", {"name": "all_reduce"}),
        ("tensor_parallel", {"name": "tensor_parallel"}),
        *pipelines,
        ("rpc_split", {"name": "rpc_split", "split_points": split_points}),
    ]


def spec(strategy: dict[str, Any], nodes: int, hidden: Sequence[int] = (WIDTH,) * LAYERS) -> RunSpec:
    pixels = {"height": 16, "width": WIDTH // 16}
    name = strategy["name"]
    fields = {
        "strategy": strategy,
        "transport": {"serial": "memory", "rpc_split": "rpc"}.get(name, "gloo"),
        "nodes": nodes,
        "cpus": CPUS,
        "batch_size": BATCH,
        "batch_per": "run",
        "epochs": EPOCHS,
        "dataset": {"name": "synthetic", "samples": BATCH * STEPS, "test_samples": 64, **pixels},
        "model": {"name": "mlp", "hidden": list(hidden)},
        "optimizer": "adam",
        "lr": 0.001,
    }
    return RunSpec.model_validate(fields)


@dataclass
class Measured:
    """The measurements of one strategy on one number of nodes, over all rounds."""

    rounds: list[Times] = field(default_factory=list)
    results: list[RunResult] = field(default_factory=list)

    def step_s(self, name: str) -> list[float]:
        return [each for times in self.rounds for each in times[name]]

    @property
    def bytes_per_step(self) -> float:
        """Payload that the busiest rank sends per step."""
        return most_sent(self.results[0])


def main() -> None:
    if reason := containers_missing():
        print(f"model: skipped, {reason}")
        return
    links = [FREE, SHAPED]
    if reason := link.missing():
        print(f"model: {SHAPED} skipped, {reason}")
        links = [FREE]
    try:
        report(Bench(reach(), links))
    except link.LinkError as error:
        sys.exit(str(error))


def report(bench: Bench) -> None:
    if (wanted := (max(HOLDERS) + 1) * CPUS) > bench.engine.cores:
        print(f"model: times are too long, the nodes need {wanted:g} cores and share {bench.engine.cores}")
    print(
        f"mlp of {LAYERS} layers of {WIDTH}, adam, {BATCH} samples per step, {CPUS:g} cores per node\n"
        f"  ms per step: median of epochs of {STEPS} steps in {ROUNDS} runs (lowest … highest)\n"
        "  ÷ all_reduce: medians of two runs of one round, median (lowest … highest round)\n"
        "  MB: payload that the busiest rank sends per step\n"
        "  rpc_split has one more node, its master, which holds no part of the model, and uses\n"
        "  rpc; all others use gloo"
    )
    serial = Measured()
    for _ in range(ROUNDS):
        bench.add(serial, spec({"name": "serial"}, 1), [FREE])
    print(f"\n  {'1 node':22} ms per step\n  {'serial':22} {cells(serial.step_s(FREE))}", flush=True)
    found = {holders: bench.rounds(holders) for holders in HOLDERS}
    memory(serial, found, bench.bare_mb())
    bench.notes()


class Bench:
    """Executes runs and collects measurements of their links."""

    def __init__(self, engine: Engine, links: Sequence[str]) -> None:
        self.engine = engine
        self._links = links
        self._shares: list[float] = []
        self._rates: list[float] = []  # of the busiest ranks on the shaped link, Mbit/s
        self._trouble: str | None = None

    def rounds(self, holders: int) -> dict[str, Measured]:
        """Measure all strategies on `holders` nodes; prints a table for each link."""
        found = {label: Measured() for label, _ in rows(holders)}
        for turn in range(ROUNDS):
            stride = 1 if turn % 2 == 0 else -1
            for label, strategy in rows(holders)[::stride]:
                nodes = holders + (label == "rpc_split")
                self.add(found[label], spec(strategy, nodes), self._links[::stride])
        for name in self._links:
            print(f"\n  {f'{holders} nodes, {name}':22} {'ms per step':23} {'÷ all_reduce':20}     MB")
            for label, measured in found.items():
                ratios = against(measured, found["all_reduce"], name)
                sent = measured.bytes_per_step / 1e6
                print(f"  {label:22} {cells(measured.step_s(name))} {ratios} {sent:6.2f}", flush=True)
        return found

    def add(self, to: Measured, run: RunSpec, links: Sequence[str]) -> None:
        """Execute a run; repeat it if the link changed too late for an epoch to count."""
        for _ in range(ATTEMPTS):
            display = TwoLinks(self.engine, run, links)
            with runs_on("docker", display) as execute:
                result = execute(run)
            self._trouble = self._trouble or display.trouble
            epochs = display.epochs()
            if not all(epochs.get(name) for name in links):
                continue
            times = {name: [display.epoch_s(each) / STEPS for each in epochs[name]] for name in links}
            if SHAPED in links:
                share = display.shaped_share(result)
                if share is None:
                    continue
                self._shares.append(share)
                self._rates += [8e-6 * most_sent(result) / step_s for step_s in times[SHAPED]]
            to.rounds.append(times)
            to.results.append(result)
            return
        sys.exit(f"{run.key}: in {ATTEMPTS} runs no epoch was on one link alone; the machine is too busy")

    def bare_mb(self) -> float:
        """Peak MiB of a process that trains a minimal model on the same samples."""
        with runs_on("docker") as execute:
            return execute(spec({"name": "serial"}, 1, hidden=[1])).ranks[0].peak_memory_mb or 0.0

    def notes(self) -> None:
        """Print notes on link and quota. Ends the benchmark if the link was not shaped as requested."""
        if self._shares:
            print(
                f"\n  {SHAPED} limits what a node sends in total. The highest payload rate of a rank in\n"
                f"  an epoch is {max(self._rates):.0f} Mbit/s. At least {min(self._shares):.2f} times the "
                "payload\n  passed the shapers."
            )
            if min(self._shares) < 1 or max(self._rates) > HEADERS * link.RATE_MBIT:
                sys.exit(f"some bytes bypassed the shapers: the times are not those of {SHAPED}")
        period_ms = 100 if self._trouble else link.PERIOD_US / 1000
        reason = f" ({self._trouble})" if self._trouble else ""
        print(
            f"\n  A node may compute for {CPUS * period_ms:g} ms in every {period_ms:g}{reason},\n"
            "  at a core's full speed. A node that has waited catches up within its quota:\n"
            "  rpc_split in particular appears faster than on slow cores."
        )


def most_sent(result: RunResult) -> float:
    """Payload of the busiest rank per step, in bytes."""
    return max(rank.bytes_sent for rank in result.ranks) / (STEPS * EPOCHS)


def cells(seconds: Sequence[float]) -> str:
    low, middle, high = (1e3 * of(seconds) for of in (min, statistics.median, max))
    return f"{middle:6.0f} ({low:.0f} … {high:.0f})".ljust(23)


def against(mine: Measured, other: Measured, name: str) -> str:
    """The ratio of medians in each round: median, lowest and highest."""
    each = [
        statistics.median(a[name]) / statistics.median(b[name])
        for a, b in zip(mine.rounds, other.rounds, strict=True)
    ]
    return f"{statistics.median(each):5.2f} ({min(each):.2f} … {max(each):.2f})".ljust(20)


def held(rank: RankResult) -> int:
    """Bytes of weights, gradient and optimizer state."""
    return sum((rank.state_bytes or {}).values())


def memory(serial: Measured, found: dict[int, dict[str, Measured]], bare_mb: float) -> None:
    """Print the rank with the most memory: bytes as shares of serial's, and the peak of the process."""
    whole = serial.results[0].ranks[0]
    activations = whole.activation_bytes or 0
    print(
        f"\n  memory: serial holds {held(whole) / 1e6:.1f} MB of weights, gradient and optimizer state,\n"
        f"  and {activations / 1e6:.2f} MB of activations. Its process has {whole.peak_memory_mb:.0f} MiB "
        "at its peak,\n"
        f"  {bare_mb:.0f} MiB with a minimal model. Shares of serial's, for the rank with the most:"
    )
    for holders, strategies in found.items():
        print(f"\n  {f'{holders} nodes':22}  state    1/S  activations  peak MiB     minus bare")
        for label, measured in strategies.items():
            ranks = measured.results[0].ranks
            share = max(map(held, ranks)) / held(whole)
            active = max(rank.activation_bytes or 0 for rank in ranks) / activations
            peak = statistics.median(
                max(r.peak_memory_mb or 0 for r in each.ranks) for each in measured.results
            )
            even = "" if label == "all_reduce" else f"{1 / holders:.3f}"
            print(f"  {label:22} {share:6.3f} {even:>6} {active:12.3f} {peak:9.0f} {peak - bare_mb:14.0f}")
