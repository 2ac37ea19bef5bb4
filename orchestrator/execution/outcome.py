"""Status and cause of a run, from its events and exit codes. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from orchestrator.results.records import Status
from orchestrator.runtimes.launch_plan import rank_name, rank_noun
from trainer.core.event_schema import EXIT_REPORTS
from trainer.core.events import Event, damage, signal_name
from trainer.core.position import Position, different_exchanges
from trainer.core.processes import MPIRUN, Suspended
from trainer.torchrun_restarts.attempts import Attempts

# Processes without which no rank can go on, by name.
LEADERS = {
    "coordinator": "the coordinator, which records the results,",
    "mpirun": "mpirun, which starts the ranks,",
    "launcher": "the launcher, which runs mpirun,",
}
# What mpirun writes about the first process that it has lost; it kills the others itself.
MPIRUN_REPORT = re.compile(
    r"noticed that process rank (\d{1,5}) with PID [^(]{1,400}?\bsignal\s(\d{1,2})\b"
)
# What it writes if Open MPI has aborted a process, because the process has lost another one.
PEER_LOST = "peer process has unexpectedly disconnected"
MPIRUN_ABORT = re.compile(r"due to process rank (\d{1,5}) with PID [^(]{1,400}?\bcalling\s\"abort\"")
# What Open MPI writes if a rank has no network to another one, when it starts.
MPI_APART = re.compile(
    r"unable to reach each other.{1,1000}?Process 1 \(\[\[\d{1,9},\d{1,9}\],(\d{1,5})\]\)"
    r".{1,400}?Process 2 \(\[\[\d{1,9},\d{1,9}\],(\d{1,5})\]\)",
    re.DOTALL,
)
MAX_POSITIONS = 8  # in a cause; the events have all


def outcome(
    attempts: Attempts,
    exits: Mapping[str, int],
    timed_out_s: float | None,
    processes_per_node: int = 1,
    runtime_error: str | None = None,
    suspended: Suspended | None = None,
    restarts: int = 0,
    continues: bool = False,
    launcher_log: str = "",
) -> tuple[Status, str | None]:
    """Status and cause of a run.

    A rank that ends by itself writes an exit report. A rank without one was killed, and it is the cause:
    errors that other ranks report afterwards are consequences.

    Args:
        attempts: the events, of which those of the attempt that counts matter.
        exits: exit codes by process name, which is `rank_name` where every rank is a process of its own.
        timed_out_s: the time limit, if the run exceeded it.
        runtime_error: an error that the runtime itself found.
        suspended: PIDs of the ranks that were stopped by a signal when the time was over, by rank, and of
            mpirun.
        restarts: how often torchrun may restart the ranks. The processes are then its agents, one per node,
            and an attempt has succeeded once every rank has a result and one has reported `done`.
        continues: whether the ranks that are left continue when one dies.
        launcher_log: what mpirun has written, if it starts the ranks.
    """
    if restarts:
        return _of_restarted(attempts, exits, timed_out_s, processes_per_node, runtime_error, suspended)
    events, ranks = attempts.events_of(attempts.effective), attempts.ranks
    noun = rank_noun(processes_per_node)
    started = {event.rank: event.fields["pid"] for event in events if event.kind == "start"}

    def name(rank: int) -> str:
        return rank_name(rank, processes_per_node)

    def process(rank: int) -> str:
        return f"{name(rank)} (process {started[rank]})" if rank in started else name(rank)

    if damaged := [event for event in events if event.kind == "damaged"]:
        return "failed", damage(damaged[0], name(damaged[0].rank))
    last = {event.rank: event for event in events if event.kind in EXIT_REPORTS}
    done = {event.rank for event in events if event.kind == "done"}
    results = {event.rank for event in events if event.kind == "result"}
    everyone = set(range(ranks))
    if continues:
        everyone -= {event.rank for event in events if event.kind == "died"} - done
    if done and done == everyone and results >= everyone:
        return "ok", None
    if timed_out_s is not None and suspended:
        pids = sorted((name(key) if isinstance(key, int) else key, pid) for key, pid in suspended.items())
        names = " and ".join(f"{each} (process {pid})" for each, pid in pids)
        verb = "was" if len(suspended) == 1 else "were"
        return "timeout", f"stopped after {timed_out_s:g} s; {names} {verb} suspended by a signal"
    if timed_out_s is not None:
        seen = _last_seen(events, everyone - done, noun) or f"all {noun}s had finished"
        where = "".join(f"; {each}" for each in _positions(events, everyone - done, ranks, noun))
        return "timeout", f"stopped after {timed_out_s:g} s; {seen}{where}"
    if runtime_error:
        return "failed", runtime_error

    killed = [event for event in events if event.kind == "died"]
    if continues:  # the run has outlived the earlier ones, and all of them if an error ended it
        failed = any(event.kind == "failed" and not event.fields.get("peer") for event in events)
        killed = [] if failed else killed[-1:]
    if killed:
        return "failed", f"{process(killed[0].rank)} was {killed[0].fields['cause']}"
    for leader, title in LEADERS.items():
        if exits.get(leader, 0) < 0:
            return "failed", f"{title} {_ending(exits[leader])}"
    failures = sorted((e for e in events if e.kind == "failed"), key=lambda e: e.time)
    own = [failure for failure in failures if not failure.fields.get("peer")]
    silent = sorted(rank for rank in started if rank not in last)
    absent = sorted(everyone - set(started))
    # A signal before an exit code: ranks that exit by themselves may do so because they have lost a peer.
    for rank in sorted([*silent, *absent], key=lambda rank: exits.get(name(rank), 0) >= 0):
        code = exits.get(name(rank), 0)
        if code < 0 and rank in absent:
            return "failed", f"{name(rank)} {_ending(code)} before it started"
        if code and rank in silent:
            return "failed", f"{process(rank)} {_ending(code)}"
    if (report := MPIRUN_REPORT.search(launcher_log)) and int(report[1]) in everyone - last.keys():
        when = " before it started" if int(report[1]) in absent else ""
        return "failed", f"{process(int(report[1]))} {_ending(-int(report[2]))}{when}"
    if (apart := MPI_APART.search(launcher_log)) and {*map(int, apart.groups())} <= everyone:
        first, second = (name(int(each)) for each in apart.groups())
        return "failed", f"Open MPI found no network from {first} to {second}; see the launcher's log"
    if PEER_LOST in launcher_log and (aborted := MPIRUN_ABORT.search(launcher_log)):
        silent = [rank for rank in silent if rank != int(aborted[1])] or silent
    if silent and exits.get("nodes"):
        return "failed", f"process {started[silent[0]]} with all {ranks} {noun}s {_ending(exits['nodes'])}"
    if exits.get("nodes", 0) < 0:  # its ranks have noticed
        return "failed", f"the process that started all {ranks} {noun}s {_ending(exits['nodes'])}"
    if silent and 0 < (number := exits.get("mpirun", 0) - 128) < signal.NSIG:  # it has killed the others
        one = "one of " if len(silent) > 1 else ""
        return "failed", f"{one}{' and '.join(process(rank) for rank in silent)} {_ending(-number)}"
    if own:
        return "failed", f"{name(own[0].rank)}: {own[0].fields['cause']}"
    if not silent and started.keys() == everyone and (stopped := _stopped(events)):
        return "failed", f"{process(stopped.rank)} was {stopped.fields['cause']} from outside"
    # mpirun stops the ranks; after the failure of a rank it ends with the code of that rank.
    stopped_all = {event.kind for event in last.values()} == {"terminated"} and not silent
    if stopped_all and exits.get(MPIRUN) == 1:
        return "failed", f"{LEADERS[MPIRUN]} was stopped by SIGTERM from outside"
    # These exit codes precede our own stop, so another program stopped the rank.
    for rank, event in sorted(last.items()):
        if event.kind == "terminated" and exits.get(name(rank)):
            return "failed", f"{process(rank)} was {event.fields['cause']} from outside"
    if failures and not silent:
        cause = f"{name(failures[0].rank)}: {failures[0].fields['cause']}"
        left = f"; {_named(sorted(done), noun)} had finished" if done else ""
        return "failed", f"{cause}{left}"
    if silent:
        names = " and ".join(process(rank) for rank in silent)
        return "failed", f"{names} exited without a report, as after SIGKILL or when out of memory"
    codes = ", ".join(f"{name}: exit code {code}" for name, code in exits.items() if code)
    if absent:
        numbers = ", ".join(str(rank) for rank in absent)
        return "failed", f"{noun} {numbers} did not start ({codes or 'exit code 0'}); see its log"
    return "failed", f"ended without all results ({codes or 'exit code 0'}); see the logs"


def _of_restarted(
    attempts: Attempts,
    exits: Mapping[str, int],
    timed_out_s: float | None,
    processes_per_node: int,
    runtime_error: str | None,
    suspended: Suspended | None,
) -> tuple[Status, str | None]:
    """Outcome with restarts by torchrun: that of the last attempt, unless one has succeeded."""
    last = attempts.events_of(attempts.effective)
    damaged = any(event.kind == "damaged" for event in last)
    if attempts.finished is not None and not damaged:
        return "ok", None
    # An agent's exit code is not that of a rank: it gave up, unless it was killed itself.
    agents = {name: code for name, code in exits.items() if code < 0 and name.startswith("node ")}
    died = any(event.kind == "died" for event in last)
    if agents and not (timed_out_s or runtime_error or damaged or died):
        name, code = min(agents.items())
        status: Status = "failed"
        cause: str | None = f"all of {name} {_ending(code)}"
    else:
        agents = {f"torchrun of {n}" if n.startswith("node ") else n: code for n, code in exits.items()}
        status, cause = outcome(attempts, agents, timed_out_s, processes_per_node, runtime_error, suspended)
    used = attempts.effective
    return status, f"{cause}, after {used} restart{'s' if used > 1 else ''}" if used else cause


def cause_of_loss(attempts: Attempts, attempt: int, processes_per_node: int = 1) -> str:
    """What ended an attempt, e.g. "node 1 was killed by SIGKILL, last seen in epoch 1, step 37"."""
    events = attempts.events_of(attempt)
    died = {event.rank: event.fields["cause"] for event in events if event.kind == "died"}
    died = died or dict.fromkeys(attempts.without_exit_report(attempt), "lost without an exit report")
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
    return "a rank was lost before it started"


def _stopped(events: Sequence[Event]) -> Event | None:
    """The rank that was stopped before the first error, where all errors are about other ranks.

    Ranks stopped later were stopped because the run had failed.
    """
    failures = [event for event in events if event.kind == "failed"]
    if not failures or any(not failure.fields.get("peer") for failure in failures):
        return None
    first_error = min(failure.time for failure in failures)
    stopped = [event for event in events if event.kind == "terminated" and event.time < first_error]
    return min(stopped, key=lambda event: event.time, default=None)


def _ending(code: int) -> str:
    """How a process without an exit report ended; a negative code is a signal."""
    if code > 0:
        return f"exited with code {code}; see its log"
    return f"was killed by {signal_name(-code)}"


def _last_seen(events: Sequence[Event], ranks: set[int], noun: str) -> str:
    """Where the ranks that did not finish were last seen, e.g. "nodes 0, 1 last seen in epoch 2 of 3"."""
    places = sorted(_places(events, ranks).items(), key=lambda item: item[1])
    groups = []
    for place, group in groupby(places, key=lambda item: item[1]):
        groups.append(f"{_named([rank for rank, _ in group], noun)} last seen {place}")
    return "; ".join(groups)


def _positions(events: Sequence[Event], ranks: set[int], size: int, noun: str) -> Iterator[str]:
    """What the stopped ranks say about where they were, e.g. "node 1 in barrier at mine.py:40 for 9 s"."""
    found = {
        event.rank: Position.model_validate(event.fields["position"])
        for event in events
        if event.kind == "terminated" and event.fields.get("position") and event.rank in ranks
    }
    groups: dict[str, list[int]] = {}
    for rank, position in sorted(found.items()):
        groups.setdefault(position.text, []).append(rank)
    for text, group in [*groups.items()][:MAX_POSITIONS]:
        waited = [each for rank in group if (each := found[rank].waited_s) is not None]
        yield f"{_named(group, noun)} in {text}" + (f" for {min(waited):.0f} s" if waited else "")
    if len(groups) > MAX_POSITIONS:
        yield f"and {len(groups) - MAX_POSITIONS} other positions"
    if different := different_exchanges(found, size):
        yield f"{_named(different, noun)} are in different exchanges"


def _named(ranks: Sequence[int], noun: str) -> str:
    """`nodes 0, 1`."""
    return f"{noun}{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _places(events: Sequence[Event], ranks: set[int]) -> dict[int, str]:
    """The last known position of each of these ranks in the run."""
    seen = dict.fromkeys(sorted(ranks), "before it started")
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
