"""Where the wall time of runs went, and times as text."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.results.records import RunResult

PURPOSES = (
    "training and evaluating",
    "starting",
    "stopping",
    "waiting for the engine",
    "runs without training",
)


def duration(seconds: float) -> str:
    """`40 s`, `1 min 15 s`, `1 h 2 min`: a time with its units."""
    whole = round(seconds)
    if whole >= 3600:
        hours, minutes = divmod(round(seconds / 60), 60)
        parts = [(hours, "h"), (minutes, "min")]
    else:
        parts = [(whole // 60, "min"), (whole % 60, "s")]
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or "0 s"


def time_shares(results: Iterable[RunResult]) -> dict[str, float]:
    """Seconds of the runs by purpose, which add up to their wall time; purposes below 0.05 s are left out.

    Starting lasts until the first step, stopping from the last step to the row. Time in which the engine
    starts and stops containers is neither. Between first and last step a rank may train while others
    evaluate, so these have one share.
    """
    shares = dict.fromkeys(PURPOSES, 0.0)
    for result in results:
        start, stop = result.startup_s, result.teardown_s
        if result.status != "ok" or start is None or result.train_s is None or stop is None:
            shares["runs without training"] += result.wall_s
            continue
        engine_start, engine_stop = min(result.engine_start_s, start), min(result.engine_stop_s, stop)
        shares["training and evaluating"] += result.wall_s - start - stop
        shares["starting"] += start - engine_start
        shares["stopping"] += stop - engine_stop
        shares["waiting for the engine"] += engine_start + engine_stop
    return {purpose: seconds for purpose, seconds in shares.items() if abs(seconds) >= 0.05}


def time_line(results: Iterable[RunResult]) -> str:
    """The shares in one line: `Time of all runs: training 62.0 s, starting 9.1 s`."""
    shares = time_shares(results).items()
    return "Time of all runs: " + ", ".join(f"{purpose} {seconds:.1f} s" for purpose, seconds in shares)
