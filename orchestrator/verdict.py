"""What became of a run, and why: from its events and exit codes to a status and a named cause. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from itertools import groupby

from orchestrator.result import Status
from trainer.events import LAST_WORDS, Event


def verdict(
    events: Sequence[Event], exits: Mapping[str, int], nodes: int, timed_out_s: float | None
) -> tuple[Status, str | None]:
    """Status and cause.

    exits: by process name; `node <rank>` where every rank is a process of its own. timed_out_s: the
    limit that was passed, if it was. A rank that ends itself leaves a last word. One that leaves none
    was killed, and it is the cause: what the others complain about afterwards is its absence.
    """
    if damaged := [event for event in events if event.kind == "damaged"]:
        return "failed", f"node {damaged[0].rank}'s events are damaged: {damaged[0].fields['line']!r}"
    last = {event.rank: event for event in events if event.kind in LAST_WORDS}
    done = {event.rank for event in events if event.kind == "done"}
    results = {event.rank for event in events if event.kind == "result"}
    everyone = set(range(nodes))
    if done == everyone and results == everyone:
        return "ok", None
    if timed_out_s is not None:
        return "timeout", f"stopped after {timed_out_s:g} s; {_whereabouts(events, everyone - done)}"

    started = {event.rank: event.fields["pid"] for event in events if event.kind == "start"}
    killed = [event for event in events if event.kind == "died"]
    if killed:
        return "failed", f"{_process(killed[0].rank, started)} was {killed[0].fields['cause']}"
    failures = sorted((e for e in events if e.kind == "failed"), key=lambda e: e.time)
    own = [failure for failure in failures if not failure.fields.get("peer")]
    silent = sorted(rank for rank in started if rank not in last)
    for rank in silent:
        code = exits.get(f"node {rank}", 0)
        if code:
            return "failed", f"{_process(rank, started)} {_ending(code)}"
    if silent and exits.get("nodes"):
        return "failed", f"process {started[silent[0]]} with all {nodes} nodes {_ending(exits['nodes'])}"
    if own:
        return "failed", f"node {own[0].rank}: {own[0].fields['cause']}"
    # These exit codes are from before we stopped anything: somebody else did.
    for rank, event in sorted(last.items()):
        if event.kind == "terminated" and exits.get(f"node {rank}"):
            return "failed", f"{_process(rank, started)} was {event.fields['cause']} from outside"
    if failures and not silent:
        return "failed", f"node {failures[0].rank}: {failures[0].fields['cause']}"
    if silent:
        who = " and ".join(_process(rank, started) for rank in silent)
        return "failed", f"{who} vanished without a word, as after SIGKILL or for want of memory"
    absent = sorted(everyone - set(started))
    codes = ", ".join(f"{name}: exit code {code}" for name, code in exits.items() if code)
    if absent:
        names = ", ".join(str(rank) for rank in absent)
        return "failed", f"node {names} never came up ({codes or 'exit code 0'}); its log says why"
    return "failed", f"ended without all results ({codes or 'exit code 0'}); the logs say why"


def _ending(code: int) -> str:
    """What an exit code says of a process that left no last word; negative: a signal."""
    if code > 0:
        return f"ended with exit code {code}; its log says why"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-code}"


def _process(rank: int, started: Mapping[int, int]) -> str:
    return f"node {rank} (process {started[rank]})" if rank in started else f"node {rank}"


def _whereabouts(events: Sequence[Event], ranks: set[int]) -> str:
    """Where the ranks that did not end were last seen: "nodes 0, 1 last seen in epoch 2 of 3"."""
    seen = dict.fromkeys(sorted(ranks), "before it came up")
    for event in events:
        match event.kind:
            case "start":
                place = "starting"
            case "train_start":
                place = "training"
            case "step":
                place = f"in epoch {event.fields['epoch']}, step {event.fields['step']}"
            case "epoch":
                place = f"after epoch {event.fields['epoch']}"
            case "train_end":
                place = "after training"
            case _:
                continue
        if event.rank in seen:
            seen[event.rank] = place
    places = sorted(seen.items(), key=lambda item: item[1])
    said = []
    for place, group in groupby(places, key=lambda item: item[1]):
        names = [str(rank) for rank, _ in group]
        said.append(f"node{'s' if len(names) > 1 else ''} {', '.join(names)} last seen {place}")
    return "; ".join(said)
