"""Executes a sweep in stages: more seeds for what may be the choice, until it is decided.

Source:
    Birattari et al. (2002), A racing algorithm for configuring metaheuristics. GECCO. Here, what may be
    the choice is told by its probability.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from statistics import fmean

from orchestrator.execution.sweep_runner import Progress, SweepRunner
from orchestrator.results.limits import counted
from orchestrator.results.records import RunResult
from orchestrator.results.times import duration
from orchestrator.sweeps.load import Sweep
from orchestrator.sweeps.stages import DECIDED, Stages, Standing, configurations, stages
from trainer.spec.run_spec import RunSpec

INTERRUPTED = "it was interrupted"


def results_until_decided(
    runner: SweepRunner,
    sweep: Sweep,
    progress: Progress,
    judge: Callable[[], Standing],
    time_left: Callable[[], float] = lambda: inf,
) -> Generator[RunResult, None, None]:
    """Execute the runs that are not done yet, in stages; yields one result per run.

    The record of the directory has the runs of the stages so far, and at the end those that were executed.
    If it is interrupted or its budget is spent, the record also has runs that an earlier sweep finished.

    Args:
        judge: reads from the results what needs no more seeds.
        time_left: seconds of the budget that are left.
    """
    all_runs = {runs[0].key: runs for runs in configurations(sweep.runs)}
    budget = _Budget(time_left, {run.key: first for first, runs in all_runs.items() for run in runs})
    done: list[RunResult] = []
    dropped: dict[str, str] = {}
    ended = INTERRUPTED
    try:
        for count in stages(max(map(len, all_runs.values()))):
            finished = {result.key for result in done}
            left = [runs[:count] for first, runs in all_runs.items() if first not in dropped]
            new = {run.key for runs in left for run in runs} - finished
            runner.record(_only(sweep, finished | new), Stages(dropped=dropped))
            for result in runner.results(_only(sweep, new), len(done), budget.may_start):
                done.append(result)
                budget.ended(result)
                yield result
            if budget.spent:
                ended = f"its budget of {duration(sweep.budget_s or 0)} left no time for another run"
                progress.note(f"no further run starts: {ended}")
                return
            standing = judge()
            # What was left out and may be the choice after all gets the seeds that it lacks.
            dropped = {
                first: standing.hopeless[first] for first in all_runs.keys() & standing.hopeless.keys()
            }
            progress.note(_after(count, standing, dropped))
            if standing.decided:
                ended = DECIDED
                return
        ended = f"every configuration left has {counted(count, 'seed')}"
    finally:
        with suppress(OSError):  # on a full disk, which has interrupted it
            kept = {result.key for result in done}
            if ended == INTERRUPTED or budget.spent:
                kept |= {run.key for run in sweep.runs if runner.is_done(run)}
            runner.record(
                _only(sweep, kept), Stages(ended=ended, out_of_budget=budget.spent, dropped=dropped)
            )


@dataclass
class _Budget:
    """Which runs start before the budget is spent: the first of each configuration, and others that fit.

    A run fits if its configuration took at most the time that is left, in the mean over its runs. After the
    first one that does not, no other run starts: what fits would favour fast configurations.

    Attributes:
        time_left: seconds that are left.
        configuration: the configuration of each run, by key.
        spent: whether a run did not fit.
    """

    time_left: Callable[[], float]
    configuration: Mapping[str, str]
    spent: bool = False
    _took: dict[str, list[float]] = field(default_factory=dict)

    def ended(self, result: RunResult) -> None:
        self._took.setdefault(self.configuration[result.key], []).append(result.wall_s)

    def may_start(self, run: RunSpec) -> bool:
        took = self._took.get(self.configuration[run.key])
        if took is None:
            return True
        self.spent = self.spent or fmean(took) > self.time_left()
        return not self.spent


def _after(count: int, standing: Standing, dropped: Mapping[str, str]) -> str:
    """The state after a stage, as lines of progress."""
    lines = [f"after {counted(count, 'seed')}: {'; '.join(standing.lines) or DECIDED}"]
    if not standing.decided:
        named = sorted((standing.names[first], why) for first, why in dropped.items())
        lines += [f"  no more seeds for {name}: {why}" for name, why in named]
    return "\n".join(lines)


def _only(sweep: Sweep, keys: AbstractSet[str]) -> Sweep:
    """The sweep with these runs, in the order of the file."""
    return replace(sweep, runs=[run for run in sweep.runs if run.key in keys])
