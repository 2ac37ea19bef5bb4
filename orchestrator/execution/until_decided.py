"""Executes a sweep in stages: more seeds for what may be the choice, until it is decided.

Source:
    Birattari et al. (2002), A racing algorithm for configuring metaheuristics. GECCO. Here, what may be
    the choice is told by its probability.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace

from orchestrator.execution.sweep_runner import Progress, SweepRunner
from orchestrator.results.limits import counted
from orchestrator.results.records import RunResult
from orchestrator.sweeps.load import Sweep
from orchestrator.sweeps.stages import DECIDED, Stages, Standing, configurations, stages

LEAST = 5  # seeds, which a budget does not prevent: with fewer, nothing is chosen
INTERRUPTED = "it was interrupted"


def results_until_decided(
    runner: SweepRunner, sweep: Sweep, progress: Progress, judge: Callable[[], Standing]
) -> Generator[RunResult, None, None]:
    """Execute the runs that are not done yet, in stages; yields one result per run.

    The record of the directory has the runs of the stages so far, and at the end those that were executed.

    Args:
        judge: reads from the results what needs no more seeds.
    """
    all_runs = {runs[0].key: runs for runs in configurations(sweep.runs)}
    done: list[RunResult] = []
    dropped: dict[str, str] = {}
    ended = INTERRUPTED
    try:
        for count in stages(max(map(len, all_runs.values()))):
            finished = {result.key for result in done}
            left = [runs[:count] for first, runs in all_runs.items() if first not in dropped]
            new = {run.key for runs in left for run in runs} - finished
            runner.record(_only(sweep, finished | new), Stages(dropped=dropped))
            for result in runner.results(_only(sweep, new), len(done)):
                done.append(result)
                yield result
                if count > LEAST and sweep.budget_s and sum(each.wall_s for each in done) > sweep.budget_s:
                    ended = "its budget was spent"
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
            executed = _only(sweep, {result.key for result in done})
            runner.record(executed, Stages(ended=ended, dropped=dropped))


def _after(count: int, standing: Standing, dropped: Mapping[str, str]) -> str:
    """The state after a stage, as lines of progress."""
    lines = [f"after {counted(count, 'seed')}: {'; '.join(standing.lines) or DECIDED}"]
    if not standing.decided:
        lines += [f"  no more seeds for {first}: {why}" for first, why in sorted(dropped.items())]
    return "\n".join(lines)


def _only(sweep: Sweep, keys: AbstractSet[str]) -> Sweep:
    """The sweep with these runs, in the order of the file."""
    return replace(sweep, runs=[run for run in sweep.runs if run.key in keys])
