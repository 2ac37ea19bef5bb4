"""The run record: the files that the coordinator writes, and the summary of how the run ended."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.core.cgroup import NodeUsage
from trainer.core.event_schema import EXIT_REPORTS
from trainer.core.events import (
    UNREPORTED,
    Event,
    RankEvents,
    damage,
    events_name,
    format_event,
    signal_name,
)
from trainer.core.membership import MembershipTracker
from trainer.core.processes import MPIRUN, Suspended
from trainer.core.record import cut, one_line
from trainer.core.trace import trace_path
from trainer.node.commands import launcher_of
from trainer.node.incoming_trace import IncomingTrace
from trainer.node.incoming_weights import IncomingWeights
from trainer.node.rank_assignment import AgentInfo, AssignmentError, RankAssignment
from trainer.spec.output_limits import OutputLimits
from trainer.torchrun_restarts.attempts import AttemptTracker

WEIGHTS = "weights.npy"  # only rank 0's; an agent sends no other file but its ranks' traces


class RunRecord:
    """Writes events as ranks wrote them, one file per rank, beside the assignment and containers' usage.

    A full disk fails the run and is noted once; the state in memory stays correct.

    Attributes:
        results: fields of each rank's result event.
        failures: the first known cause, by agent.
        unreported: those of them that no event of a rank reports.
        membership: the ranks that are alive in a run that continues when one is lost; else None.
        shutting_down: set before agents are told to exit; their ranks' exits are no failures then.
    """

    def __init__(
        self,
        directory: Path,
        assignment: RankAssignment,
        tell_suspended: Callable[[Suspended], None] = lambda suspended: None,
    ) -> None:
        """Raises AssignmentError if the directory is not writable.

        tell_suspended: called whenever other processes are suspended.
        """
        self._tell_suspended = tell_suspended
        self._directory, self.assignment = directory, assignment
        self.key = assignment.spec.key
        self.timeout_s = assignment.spec.timeout_s
        # Where torchrun restarts ranks, all of these are of the attempt that counts.
        self._attempts = AttemptTracker(assignment.spec.world_size)
        self._attempt = 0
        self._exit_reports: dict[int, Event] = {}  # by rank
        self._starts: dict[int, Event] = {}
        self._resumed: Event | None = None
        self.results: dict[int, Mapping[str, Any]] = {}
        self.failures: dict[str, str] = {}
        self.unreported: dict[str, str] = {}
        self.shutting_down = False
        self.membership = membership_of(assignment)
        self._suspended: Suspended = {}
        self._disk_full = False
        self._limits = OutputLimits.of(assignment.spec)
        ranks = range(assignment.spec.world_size)
        self._ranks = {rank: RankEvents(rank, assignment.spec.restarts) for rank in ranks}
        self._event_bytes = dict.fromkeys(ranks, 0)  # by rank
        self._incoming = IncomingWeights(self._limits.weight_bytes)
        self._traces: dict[int, IncomingTrace] = {}  # by rank
        self._rejected: set[str] = set()  # names of agents
        agents = [{**asdict(agent), "public_keys": {}} for agent in assignment.agents]
        try:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "spec.json").write_text(assignment.spec.model_dump_json(indent=2))
            (directory / "assignment.json").write_text(json.dumps(agents, indent=2))
        except OSError as error:
            raise AssignmentError(
                f"results cannot be written by user {os.getuid()}: {error.strerror}; set SHARDYARD_RESULTS "
                "to a directory that belongs to the owner of the run's spec"
            ) from None

    def receive_events(self, rank: int, lines: bytes) -> None:
        """Check and record whole lines of a rank. Raises ValueError if there are too many."""
        events = [*self._ranks[rank].of(lines)]
        stored = "".join(event.to_line() + "\n" for event in events).encode()
        self._event_bytes[rank] += max(len(lines), len(stored))  # escapes make some longer
        if self._event_bytes[rank] > self._limits.event_bytes:
            raise ValueError(f"events: more than {self._limits.event_bytes} bytes of rank {rank}")
        self._append(events_name(rank), stored)
        for event in events:
            self._note(event)

    def reject(self, agent: AgentInfo, reason: str) -> None:
        """Fail the run because of what an agent has sent; once per agent."""
        if agent.name in self._rejected:
            return
        self._rejected.add(agent.name)
        self.fail(agent, f"sent invalid data: {reason}", reported=bool(agent.ranks))
        for rank in agent.ranks[:1]:  # so that the orchestrator learns of it
            fields = {"line": "", "reason": cut(reason, 500)}
            self.add_event(Event(time.time(), self.key, rank, "", "damaged", fields))

    def add_event(self, event: Event) -> None:
        """Record one event of one rank."""
        self._append(events_name(event.rank), event.to_line().encode() + b"\n")
        self._note(event)

    def _note(self, event: Event) -> None:
        """Follow what a recorded event says of the run."""
        tolerated = self._survives(event)
        if self.membership:
            self.membership.add(event)
        attempt = self._attempts.add(event)
        if self._attempts.effective > self._attempt:  # discard the state of earlier attempts
            self._attempt, self._resumed = self._attempts.effective, None
            for state in (self._exit_reports, self._starts, self.results):
                state.clear()
        if attempt != self._attempt:
            return
        for agent in self.assignment.agents:
            if not self._required(agent):
                for causes in (self.failures, self.unreported):
                    causes.pop(agent.name, None)
        if event.kind in EXIT_REPORTS:
            self._exit_reports[event.rank] = event
        if event.kind == "start":
            self._starts[event.rank] = event
            self._exit_reports.pop(event.rank, None)  # of its earlier incarnation
        if event.kind == "result":
            self.results[event.rank] = event.fields
        if event.kind == "resumed":
            self._resumed = event
        if self.assignment.spec.restarts:
            return  # the run fails only when torchrun gives up, which its agent reports
        if event.kind == "damaged":
            self.fail(self.assignment.agent_of(event.rank), damage(event))
        if tolerated:
            return
        if event.kind in ("failed", "died") or (event.kind == "terminated" and not self.shutting_down):
            self.fail(self.assignment.agent_of(event.rank), f"rank {event.rank} {_ending(event)}")

    def _survives(self, event: Event) -> bool:
        """Whether the run continues although a rank has died."""
        return event.kind == "died" and bool(self.membership and self.membership.survives(event.rank))

    def add_weights(self, data: bytes, last: bool) -> None:
        """Append a part of rank 0's final weights; the file appears once it is complete.

        Raises ValueError if it is not a part of such a file.
        """
        self._incoming.add(data, last)
        self._append(f"{WEIGHTS}.part", data)
        if last and not self._disk_full:
            (self._directory / f"{WEIGHTS}.part").replace(self._directory / WEIGHTS)

    def add_trace(self, rank: int, data: bytes, last: bool) -> None:
        """Like `add_weights`, for a rank's trace."""
        if rank not in self._traces:
            limits = self._limits
            self._traces[rank] = IncomingTrace(self.key, rank, limits.trace_bytes, limits.trace)
        self._traces[rank].add(data, last)
        path = trace_path(self._directory, rank)
        self._append(f"{path.name}.part", data)
        if last and not self._disk_full:
            path.with_name(f"{path.name}.part").replace(path)

    def fail_untraced(self) -> None:
        """Name the agents that have not sent their ranks' traces, of a run that is complete without."""
        if self.failures or not self._all_done:
            return
        for agent in self.assignment.agents:
            for rank in self._untraced & {*agent.ranks}:
                self.fail(agent, f"rank {rank} has sent no trace", reported=False)

    def add_usage(self, agent: AgentInfo, usage: Mapping[str, Any]) -> None:
        """Record the resource usage of the agent's container."""
        line = NodeUsage(name=agent.name, ranks=list(agent.ranks), **usage).model_dump_json()
        self._append("usage.jsonl", line.encode() + b"\n")

    def note_suspended(self, agent: AgentInfo, ranks: Sequence[int], mpirun: int | None = None) -> None:
        """Note which processes of an agent are stopped by a signal.

        mpirun: its PID, if it is one of them.
        """
        own = agent.ranks or (MPIRUN,)
        found: Suspended = {name: pid for name, pid in self._suspended.items() if name not in own}
        found |= {rank: self._starts[rank].fields["pid"] for rank in ranks if rank in self._starts}
        found |= {MPIRUN: mpirun} if mpirun else {}
        if found != self._suspended:
            self._suspended = found
            self._tell_suspended(found)

    def fail_suspended(self) -> None:
        """Name the processes that are stopped by a signal, when the run has exceeded its time limit."""
        for name, pid in self._suspended.items():
            mpirun = name == MPIRUN
            agent = launcher_of(self.assignment) if mpirun else self.assignment.agent_of(int(name))
            noun = "mpirun" if mpirun else f"rank {name}"
            self.fail(agent, f"{noun} (process {pid}) was suspended by a signal")

    def _append(self, name: str, data: bytes) -> None:
        if self._disk_full:
            return
        try:
            with open(self._directory / name, "ab") as file:
                file.write(data)
        except OSError as error:
            self._disk_full = True
            self.failures.setdefault("coordinator", f"results cannot be written: {error.strerror}")

    def record_exit(
        self, agent: AgentInfo, codes: Mapping[int, int], out_of_memory: bool, full: str | None = None
    ) -> None:
        """Record an exit report for each of the agent's ranks that has not written one.

        Args:
            agent: whose processes have ended.
            codes: exit codes by rank, negative for a signal; empty for ranks that mpirun started.
            out_of_memory: whether the kernel killed a process of the container for lack of memory.
            full: the directory that has no space left for events, so that ranks cannot report anything.
        """
        if not out_of_memory and (cause := self._loss_of_parent(agent, codes)):
            self.fail(agent, cause, reported=False)
            return
        for rank in agent.ranks:
            if rank in self._exit_reports:
                continue
            if out_of_memory:
                cause = f"killed: its node needed more than {self.assignment.spec.memory_mb} MiB of memory"
            elif full and codes.get(rank, 1) > 0:
                self._record_end(agent, rank, "failed", f"its directory {full} is full")
                continue
            elif self.shutting_down:
                continue  # it ignored SIGTERM, and its own agent has killed it
            elif codes.get(rank, 0) < 0:
                cause = f"killed by {signal_name(-codes[rank])}"
            elif codes.get(rank) == 0 and not self.assignment.spec.restarts:
                self._record_end(agent, rank, "failed", UNREPORTED)
                continue
            else:
                continue  # it exited by itself and its log says why, or mpirun reports it
            self._record_end(agent, rank, "died", cause)

    def _loss_of_parent(self, agent: AgentInfo, codes: Mapping[int, int]) -> str | None:
        """How the one process of topology single was killed, with all ranks in it; None if it was not.

        The exit code is that process's, so it names no rank.
        """
        spec = self.assignment.spec
        code = min(codes.values(), default=0)
        if spec.topology != "single" or spec.world_size == 1 or code >= 0 or self.shutting_down:
            return None
        kinds = [self._exit_reports[rank].kind for rank in agent.ranks if rank in self._exit_reports]
        if "failed" in kinds or "died" in kinds or kinds.count("done") == spec.world_size:
            return None
        noun = "node" if spec.processes_per_node == 1 else "rank"
        holds = "that started" if spec.strategy.forks else "with"  # processes or threads
        return f"the process {holds} all {spec.world_size} {noun}s was killed by {signal_name(-code)}"

    def record_loss(self, agent: AgentInfo, cause: str, reported: bool = True) -> None:
        """Fail the run because an agent is gone, and its ranks with it.

        reported: see `fail`.
        """
        for rank in agent.ranks:
            if rank not in self._exit_reports:
                self._record_end(agent, rank, "died", cause)
        self.fail(agent, cause, reported)

    def _record_end(self, agent: AgentInfo, rank: int, kind: str, cause: str) -> None:
        """Record an exit report on behalf of a rank, or a cause that no event reports before it started."""
        if rank in self._starts:
            host = self._starts[rank].host
            self.add_event(Event(time.time(), self.key, rank, host, kind, {"cause": cause}))
        else:
            self.fail(agent, f"rank {rank}, before it started: {cause}", reported=False)

    def fail(self, agent: AgentInfo, cause: str, reported: bool = True) -> None:
        """Note why an agent has failed, unless a cause is known or the run can finish without it.

        reported: whether an event of a rank or an exit code says so, too.
        """
        if not self._required(agent):
            return
        text = cut(one_line(cause.strip()) or "for an unknown reason", 200)  # the events have all of it
        self.failures.setdefault(agent.name, text)
        if not reported:
            self.unreported.setdefault(agent.name, text)

    def fail_here(self, cause: str) -> None:
        """Note why the coordinator cannot go on."""
        self.failures.setdefault("coordinator", cause)
        self.unreported.setdefault("coordinator", cause)

    @property
    def finished(self) -> bool:
        """Whether torchrun's ranks have all reported results, so that no loss matters any more."""
        return bool(self.assignment.spec.restarts) and self._attempts.finished is not None

    def _required(self, agent: AgentInfo) -> bool:
        """Whether the run needs the agent. When finished, it needs only rank 0's, for the weights."""
        if self.membership and agent.ranks:
            return not {*agent.ranks} <= self.membership.absent
        return not self.finished or (0 in agent.ranks and not self._has_weights)

    def exit_cause(self, agent: AgentInfo, codes: Mapping[int, int]) -> str | None:
        """Why an agent failed, from its exit codes and exit reports; None if all exit codes are 0."""
        code = next((code for code in codes.values() if code), 0)
        if not code:
            return None
        ending = f"killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        if not self.assignment.spec.restarts:
            return ending
        reports = [self._exit_reports[rank] for rank in agent.ranks if rank in self._exit_reports]
        lost = [f"rank {each.rank} {_ending(each)}" for each in reports if each.kind in ("died", "failed")]
        used = self._attempts.effective
        return f"{'; '.join(lost) or f'torchrun {ending}'}, after {used} restart{'' if used == 1 else 's'}"

    @property
    def complete(self) -> bool:
        """Whether `_all_done`, and final weights and traces are saved, if the spec asks for them."""
        return self._has_weights and not self._untraced and self._all_done

    @property
    def _all_done(self) -> bool:
        """Whether every rank that is not lost has reported its result and exited."""
        done = {rank for rank, event in self._exit_reports.items() if event.kind == "done"}
        everyone = set(range(self.assignment.spec.world_size))
        if self.membership:
            everyone -= self.membership.lost.keys() - done
        ended = self.finished or done == everyone
        return ended and self.results.keys() >= everyone

    @property
    def _untraced(self) -> set[int]:
        """Ranks whose traces have not arrived, if the run has traces."""
        if not self._limits.trace_bytes:
            return set()
        arrived = {rank for rank, trace in self._traces.items() if trace.complete}
        return {*range(self.assignment.spec.world_size)} - arrived

    @property
    def _has_weights(self) -> bool:
        """Whether the final weights are saved, if the spec asks for them."""
        spec = self.assignment.spec
        return not (spec.save_weights and spec.strategy.trains) or (self._directory / WEIGHTS).exists()

    def summary(self) -> list[str]:
        """How the run ended, in lines."""
        spec = self.assignment.spec
        data = f", {spec.name_of('dataset')}, {spec.epochs} epochs" if spec.strategy.trains else ""
        what = f"{spec.name_of('strategy')} over {spec.transport}{data}, seed {spec.seed}"
        size = f"{spec.nodes} node{'s' if spec.nodes > 1 else ''}"
        if spec.processes_per_node > 1:
            size += f" × {spec.processes_per_node} processes"
        if self.failures or not self.complete:
            causes = [f"  {name}: {cause}" for name, cause in self.failures.items()]
            return [f"FAILED: {size}, {what}", *(causes or ["  not all results were received and saved"])]
        used = self._attempts.effective
        lost = [f"  {name} was lost; the others continued without it" for name in self._lost_agents()]
        restarts = [f"  a rank was lost and all ranks were restarted: {used} of {spec.restarts} restarts"]
        figures = [*self._figures(), *lost, *(restarts if used else [])]
        return [f"ok: {size}, world size {spec.world_size}, {what}", *figures]

    def _lost_agents(self) -> list[str]:
        """Names of the agents whose ranks were lost, those that returned included."""
        lost = self.membership.lost if self.membership else {}
        return [agent.name for agent in self.assignment.agents if lost.keys() & {*agent.ranks}]

    def _figures(self) -> list[str]:
        results = [self.results[rank] for rank in sorted(self.results)]
        train_s = max(result["train_s"] for result in results)
        if not self.assignment.spec.strategy.trains or not train_s:
            return [f"  {train_s:.2f} s"]
        samples = sum(result["samples"] for result in results)
        return [
            f"  trained {samples:,} samples in {train_s:.2f} s, {samples / train_s:,.0f} samples/s",
            f"  test accuracy {results[0]['accuracy']:.1%}, {self._weights(results)}",
            *([f"  {format_event(self._resumed)}; its time excludes lost work"] if self._resumed else []),
        ]

    def _weights(self, results: Sequence[Mapping[str, Any]]) -> str:
        """Whether all replicas have the same weights. Of a partitioned model, one rank has all of them."""
        spec = self.assignment.spec
        noun = "replicas" if spec.strategy.partitions_model else "ranks"
        digests = {result["weights_digest"] for result in results if result["weights_digest"]}
        if spec.strategy.partitions_model and spec.num_replicas == 1:
            return f"one model on {spec.size_label}"
        if len(digests) == 1:
            return f"same weights on all {noun}"
        return f"{noun} ended with different weights"


def membership_of(assignment: RankAssignment) -> MembershipTracker | None:
    """Follows which ranks are alive; None for a run that stops when one is lost."""
    spec = assignment.spec
    if spec.on_loss == "stop":
        return None
    addresses = {rank: agent.address for agent in assignment.agents for rank in agent.ranks}
    return MembershipTracker(addresses, range(spec.strategy.servers), spec.return_after)


def _ending(event: Event) -> str:
    cause = event.fields.get("cause")
    return f"was {cause}" if event.kind in ("died", "terminated") else f"failed: {cause}"
