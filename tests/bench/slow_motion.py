"""Whether more nodes than cores can be measured in slow motion. On request, on a machine without load.

In slow motion every node has the same share of a core, links are slower by the same factor, and times are
divided by it. An engine enforces a quota in periods of 100 ms: a node with 0.4 cores works for 40 ms and
rests for 60. Steps of a few milliseconds then wait for nodes that rest. Shorter periods avoid that, and
cost more switches. Here two nodes train with most of a core each and in slow motion, with several periods.
A whole core each is no reference on two cores: the engine and the orchestrator work, too.

A quota also makes the same work take more CPU time, because a node continues with cold caches. This factor
can be measured, so the error is printed with and without it.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

from orchestrator.results.records import RunResult
from tests.bench.runs import runs_on
from tests.support.containers import containers_missing
from trainer.spec.run_spec import RunSpec

STRATEGIES = ("one_shot", "local_sgd", "all_reduce", "reduce_broadcast", "pipeline")
REFERENCE, SHARES = 0.8, (0.4, 0.2)
PERIODS_MS = (100, 20, 5)
ENGINE_PERIOD_MS = 100
SEEDS = range(3)
GROUPS = Path("/sys/fs/cgroup/cpu/docker")
POLL_S = 0.02
TARGET = 0.03


def main() -> None:
    if reason := containers_missing():
        print(f"skipped: {reason}")
        return
    if not GROUPS.is_dir():
        print(f"skipped: no control groups at {GROUPS}, so the period of a quota cannot be set")
        return
    print(
        f"two nodes in slow motion, beside {REFERENCE:g} cores each; target: median of the absolute error "
        f"{TARGET:.0%}"
    )
    for share in SHARES:
        for period in PERIODS_MS:
            report(share, period, [*pairs(share, period)])


def pairs(share: float, period_ms: int) -> Iterator[tuple[str, RunResult, RunResult]]:
    """Each strategy with most of a core for each node, then in slow motion, for each seed."""
    with (
        tempfile.TemporaryDirectory() as directory,
        period_of_quotas(period_ms),
        runs_on("docker", results=Path(directory)) as execute,
    ):
        execute(run("one_shot", SEEDS[0], REFERENCE))  # with cold caches; it does not count
        execute(run("one_shot", SEEDS[0], share))
        for seed in SEEDS:
            for strategy in STRATEGIES:
                reference = execute(run(strategy, seed, REFERENCE))
                yield strategy, reference, execute(run(strategy, seed, share))


def run(strategy: str, seed: int, cpus: float) -> RunSpec:
    fields = {"dataset": "digits", "model": "lenet", "lr": 0.02, "epochs": 8, "transport": "gloo"}
    return RunSpec.model_validate({**fields, "strategy": strategy, "nodes": 2, "seed": seed, "cpus": cpus})


def report(share: float, period_ms: int, found: Sequence[tuple[str, RunResult, RunResult]]) -> None:
    """Print time and CPU time in slow motion over the reference, and the first ratio over the second."""
    print(f"  {share:g} cores, periods of {period_ms} ms")
    plain, corrected = [], []
    for strategy in STRATEGIES:
        rows = [(one, slow) for name, one, slow in found if name == strategy]
        times = [(slow.train_s or 0.0) * share / ((one.train_s or 1.0) * REFERENCE) for one, slow in rows]
        cpu = [(slow.work_cpu_s or 0.0) / (one.work_cpu_s or 1.0) for one, slow in rows]
        rest = [time / more for time, more in zip(times, cpu, strict=True)]
        print(
            f"    {strategy:18} time {median(times) - 1:+7.1%}  CPU time {median(cpu) - 1:+7.1%}  "
            f"time beyond CPU time {median(rest) - 1:+7.1%}"
        )
        plain += [abs(each - 1) for each in times]
        corrected += [abs(each - 1) for each in rest]
    for name, off in (("time", plain), ("time beyond CPU time", corrected)):
        print(f"    absolute error of {name}: median {median(off):.1%}, worst {max(off):.1%}", flush=True)


@contextmanager
def period_of_quotas(period_ms: int) -> Iterator[None]:
    """Quotas that the engine sets meanwhile have this period."""
    if period_ms == ENGINE_PERIOD_MS:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_shorten, args=(period_ms, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _shorten(period_ms: int, ended: threading.Event) -> None:
    while not ended.wait(POLL_S):
        for quota in GROUPS.glob("*/cpu.cfs_quota_us"):
            with suppress(OSError):  # its container has ended
                period = quota.with_name("cpu.cfs_period_us")
                allowed_us, of_us = int(quota.read_text()), int(period.read_text())
                if of_us == ENGINE_PERIOD_MS * 1000 and 0 < allowed_us < of_us:
                    quota.write_text(str(allowed_us * period_ms // ENGINE_PERIOD_MS))
                    period.write_text(str(period_ms * 1000))


if __name__ == "__main__":
    main()
