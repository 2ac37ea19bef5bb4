"""What became of a run, and why: from its events and exit codes to a status and a named cause. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from orchestrator.results.records import Status
from orchestrator.runtimes.launch_plan import rank_name, rank_noun
from trainer.core.events import EXIT_REPORTS, Event, signal_name
from trainer.elastic.attempts import Attempts


def verdict(
    events: Sequence[Event],
    exits: Mapping[str, int],
    ranks: int,
    timed_out_s: float | None,
    processes_per_node: int = 1,
    trouble: str | None = None,
    restarts: int = 0,
) -> tuple[Status, str | None]:
    """Status and cause.

    exits: by process name; that of `rank_name` where every rank is a process of its own. timed_out_s:
    the limit that was passed, if it was. trouble: what the runtime itself found to be wrong. A rank that
    ends itself leaves a last word. One that leaves none was killed, and it is the cause: what the others
    complain about afterwards is its absence.

    restarts: how often torchrun may start the ranks again. Then the processes are its agents, one per node;
    the attempt that counts has succeeded when every rank has given its result and one has said `done`,
    which none says before.
    """
    if restarts:
        return _of_attempts(events, exits, ranks, timed_out_s, processes_per_node, trouble)
    noun = rank_noun(processes_per_node)
    started = {event.rank: event.fields["pid"] for event in events if event.kind == "start"}

    def name(rank: int) -> str:
        return rank_name(rank, processes_per_node)

    def process(rank: int) -> str:
        return f"{name(rank)} (process {started[rank]})" if rank in started else name(rank)

    if damaged := [event for event in events if event.kind == "damaged"]:
        return "failed", f"{name(damaged[0].rank)}'s events are damaged: {damaged[0].fields['line']!r}"
    last = {event.rank: event for event in events if event.kind in EXIT_REPORTS}
    done = {event.rank for event in events if event.kind == "done"}
    results = {event.rank for event in events if event.kind == "result"}
    everyone = set(range(ranks))
    if done == everyone and results == everyone:
        return "ok", None
    if timed_out_s is not None:
        return "timeout", f"stopped after {timed_out_s:g} s; {_whereabouts(events, everyone - done, noun)}"

    if trouble:
        return "failed", trouble

    killed = [event for event in events if event.kind == "died"]
    if killed:
        return "failed", f"{process(killed[0].rank)} was {killed[0].fields['cause']}"
    if exits.get("coordinator", 0) < 0:  # the ranks' last words went to it
        return "failed", f"the coordinator, which keeps the results, {_ending(exits['coordinator'])}"
    failures = sorted((e for e in events if e.kind == "failed"), key=lambda e: e.time)
    own = [failure for failure in failures if not failure.fields.get("peer")]
    silent = sorted(rank for rank in started if rank not in last)
    for rank in silent:
        code = exits.get(name(rank), 0)
        if code:
            return "failed", f"{process(rank)} {_ending(code)}"
    if silent and exits.get("nodes"):
        return "failed", f"process {started[silent[0]]} with all {ranks} {noun}s {_ending(exits['nodes'])}"
    if own:
        return "failed", f"{name(own[0].rank)}: {own[0].fields['cause']}"
    if not silent and started.keys() == everyone and (stopped := _stopped(events)):
        return "failed", f"{process(stopped.rank)} was {stopped.fields['cause']} from outside"
    # These exit codes are from before we stopped anything: somebody else did.
    for rank, event in sorted(last.items()):
        if event.kind == "terminated" and exits.get(name(rank)):
            return "failed", f"{process(rank)} was {event.fields['cause']} from outside"
    if failures and not silent:
        return "failed", f"{name(failures[0].rank)}: {failures[0].fields['cause']}"
    if silent:
        who = " and ".join(process(rank) for rank in silent)
        return "failed", f"{who} vanished without a word, as after SIGKILL or for want of memory"
    absent = sorted(everyone - set(started))
    codes = ", ".join(f"{name}: exit code {code}" for name, code in exits.items() if code)
    if absent:
        numbers = ", ".join(str(rank) for rank in absent)
        return "failed", f"{noun} {numbers} never came up ({codes or 'exit code 0'}); its log says why"
    return "failed", f"ended without all results ({codes or 'exit code 0'}); the logs say why"


def _of_attempts(
    events: Sequence[Event],
    exits: Mapping[str, int],
    ranks: int,
    timed_out_s: float | None,
    processes_per_node: int,
    trouble: str | None,
) -> tuple[Status, str | None]:
    """Of a run whose ranks torchrun starts again: the last attempt's, if none has succeeded."""
    attempts = Attempts(ranks, events)
    last = attempts.events_of(attempts.effective)
    damaged = any(event.kind == "damaged" for event in last)
    if attempts.finished is not None and not damaged:
        return "ok", None
    # An agent's exit code is not that of a rank: it gave up, unless it was killed itself.
    agents = {name: code for name, code in exits.items() if code < 0 and name.startswith("node ")}
    died = any(event.kind == "died" for event in last)
    if agents and not (timed_out_s or trouble or damaged or died):
        name, code = min(agents.items())
        status: Status = "failed"
        cause: str | None = f"{name} as a whole {_ending(code)}"
    else:
        told = {f"torchrun of {n}" if n.startswith("node ") else n: code for n, code in exits.items()}
        status, cause = verdict(last, told, ranks, timed_out_s, processes_per_node, trouble)
    used = attempts.effective
    return status, f"{cause}, after {used} restart{'s' if used > 1 else ''}" if used else cause


def loss(attempts: Attempts, attempt: int, processes_per_node: int = 1) -> str:
    """What ended an attempt: "node 1 was killed by SIGKILL, last seen in epoch 1, step 37"."""
    events = attempts.events_of(attempt)
    died = {event.rank: event.fields["cause"] for event in events if event.kind == "died"}
    died = died or dict.fromkeys(attempts.without_exit_report(attempt), "gone without a word")
    if died:
        places = _places(events, set(died))
        names = [(rank_name(rank, processes_per_node), rank) for rank in sorted(died)]
        return "; ".join(f"{name} was {died[rank]}, last seen {places[rank]}" for name, rank in names)
    if not attempts.not_started(attempt) and (stopped := _stopped(events)):
        place = _places(events, {stopped.rank})[stopped.rank]
        name = rank_name(stopped.rank, processes_per_node)
        return f"{name} was {stopped.fields['cause']} from outside, last seen {place}"
    failures = [event for event in events if event.kind == "failed"]
    failures.sort(key=lambda event: (bool(event.fields.get("peer")), event.time))
    if failures:
        return f"{rank_name(failures[0].rank, processes_per_node)}: {failures[0].fields['cause']}"
    return "a rank was lost before it came up"


def _stopped(events: Sequence[Event]) -> Event | None:
    """The rank that was stopped before all complaints, which are of nothing but others: of its absence.

    Who is stopped later was so because the run had failed already.
    """
    failures = [event for event in events if event.kind == "failed"]
    if not failures or any(not failure.fields.get("peer") for failure in failures):
        return None
    complained = min(failure.time for failure in failures)
    stopped = [event for event in events if event.kind == "terminated" and event.time < complained]
    return min(stopped, key=lambda event: event.time, default=None)


def _ending(code: int) -> str:
    """What an exit code says of a process that left no last word; negative: a signal."""
    if code > 0:
        return f"ended with exit code {code}; its log says why"
    return f"was killed by {signal_name(-code)}"


def _whereabouts(events: Sequence[Event], ranks: set[int], noun: str) -> str:
    """Where the ranks that did not end were last seen: "nodes 0, 1 last seen in epoch 2 of 3"."""
    places = sorted(_places(events, ranks).items(), key=lambda item: item[1])
    said = []
    for place, group in groupby(places, key=lambda item: item[1]):
        names = [str(rank) for rank, _ in group]
        said.append(f"{noun}{'s' if len(names) > 1 else ''} {', '.join(names)} last seen {place}")
    return "; ".join(said)


def _places(events: Sequence[Event], ranks: set[int]) -> dict[int, str]:
    """Where each of these ranks was last seen."""
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
    return seen
