"""The ledger: what the head keeps of a run, in files, and what it says about it at the end."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.cluster.rank_assignment import Agent, AssignmentError, RankAssignment
from trainer.core.cgroup import NodeUsage
from trainer.core.events import EXIT_REPORTS, Event, format_event, signal_name
from trainer.elastic.attempts import Tally

WEIGHTS = "weights.npy"  # the one file that a member sends, and only rank 0's


class RunRecord:
    """Keeps events as the ranks wrote them, one file per rank, beside the roster and the members' usage.

    A disk that is full is noted as a failure, once, and ends the run; what is known is known all the same.
    """

    def __init__(self, directory: Path, assignment: RankAssignment) -> None:
        """Raises RollError if nothing can be written there."""
        self._directory, self._roster = directory, assignment
        self.key = assignment.spec.key
        self.timeout_s = assignment.spec.timeout_s
        # Of the attempt that counts, where torchrun starts ranks again.
        self._attempts = Tally(assignment.spec.world_size)
        self._attempt = 0
        self._last: dict[int, Event] = {}  # by rank: its last word
        self._starts: dict[int, Event] = {}
        self._resumed: Event | None = None
        self.results: dict[int, Mapping[str, Any]] = {}  # by rank
        self.failures: dict[str, str] = {}  # by member: why, the first reason that was known
        self.leaving = False  # who is sent away and says so has not failed
        self._full = False
        # What members said of themselves is their keys, which are no business of the host's.
        members = [{**asdict(member), "hello": {}} for member in assignment.members]
        try:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "spec.json").write_text(assignment.spec.model_dump_json(indent=2))
            (directory / "roster.json").write_text(json.dumps(members, indent=2))
        except OSError as error:
            raise AssignmentError(
                f"results cannot be written by user {os.getuid()}: {error.strerror}; let SHARDYARD_RESULTS "
                "be a directory that belongs to the owner of the run's spec"
            ) from None

    def keep(self, event: Event) -> None:
        """One event of one rank."""
        self._append(f"rank-{event.rank}.jsonl", event.to_line().encode() + b"\n")
        attempt = self._attempts.add(event)
        if self._attempts.counts > self._attempt:  # what an earlier one came to is nothing any more
            self._attempt, self._resumed = self._attempts.counts, None
            for known in (self._last, self._starts, self.results):
                known.clear()
        if attempt != self._attempt:
            return
        for member in self._roster.members:
            if not self._missed(member):
                self.failures.pop(member.name, None)
        if event.kind in EXIT_REPORTS:
            self._last[event.rank] = event
        if event.kind == "start":
            self._starts[event.rank] = event
        if event.kind == "result":
            self.results[event.rank] = event.fields
        if event.kind == "resumed":
            self._resumed = event
        if self._roster.spec.restarts:
            return  # the run has failed when torchrun gives up, which its member will say
        if event.kind in ("failed", "died") or (event.kind == "terminated" and not self.leaving):
            self.fail(self._roster.holder(event.rank), f"rank {event.rank} {_said(event)}")

    def keep_weights(self, piece: str, last: bool) -> None:
        """A piece of rank 0's final weights, base64, in order; the file appears whole or not at all."""
        self._append(f"{WEIGHTS}.part", base64.b64decode(piece))
        if last and not self._full:
            (self._directory / f"{WEIGHTS}.part").replace(self._directory / WEIGHTS)

    def keep_usage(self, member: Agent, usage: Mapping[str, Any]) -> None:
        """What the member's container has used."""
        line = NodeUsage(name=member.name, ranks=list(member.ranks), **usage).model_dump_json()
        self._append("usage.jsonl", line.encode() + b"\n")

    def _append(self, name: str, data: bytes) -> None:
        if self._full:
            return
        try:
            with open(self._directory / name, "ab") as file:
                file.write(data)
        except OSError as error:
            self._full = True
            self.failures.setdefault("coordinator", f"results cannot be written: {error.strerror}")

    def record_exit(self, member: Agent, codes: Mapping[int, int] | None, out_of_memory: bool) -> None:
        """Say for ranks that ended without a last word what became of them, as far as it is known.

        codes: exit codes by rank, negative for a signal; of ranks that mpirun started there is none. None:
        the member is gone, and its ranks with it.
        """
        for rank in member.ranks:
            if rank in self._last:
                continue
            if out_of_memory:
                cause = f"killed: its node needed more than {self._roster.spec.memory_mb} MiB of memory"
            elif codes is None:
                cause = "killed together with its container, or cut off from the head"
            elif self.leaving:
                continue  # it was deaf when it was sent away, and its own member has killed it
            elif codes.get(rank, 0) < 0:
                cause = f"killed by {signal_name(-codes[rank])}"
            else:
                continue  # it ended by itself, and its log says why; or mpirun knows
            if rank in self._starts:
                host = self._starts[rank].host
                self.keep(Event(time.time(), self._roster.spec.key, rank, host, "died", {"cause": cause}))
            else:
                self.fail(member, f"rank {rank}, before it came up: {cause}")

    def fail(self, member: Agent, cause: str) -> None:
        """Note why a member has failed, unless it is known already or the run can do without it."""
        if not self._missed(member):
            return
        lines = cause.strip().splitlines() or ["for no known reason"]
        self.failures.setdefault(member.name, lines[0][:200])  # all of it is in the events

    @property
    def finished(self) -> bool:
        """Whether torchrun need not start ranks again any more, whatever becomes of them."""
        return bool(self._roster.spec.restarts) and self._attempts.finished is not None

    def _missed(self, member: Agent) -> bool:
        """Whether the run cannot do without it: when finished, it needs but rank 0's, for its weights."""
        return not self.finished or (0 in member.ranks and not self._has_weights)

    def why(self, member: Agent, codes: Mapping[int, int]) -> str | None:
        """What exit codes say of why a member has failed, for want of a last word; None if it has not."""
        code = next((code for code in codes.values() if code), 0)
        if not code:
            return None
        said = f"killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        if not self._roster.spec.restarts:
            return said
        last = [self._last[rank] for rank in member.ranks if rank in self._last]
        lost = [f"rank {event.rank} {_said(event)}" for event in last if event.kind in ("died", "failed")]
        used = self._attempts.counts
        return f"{'; '.join(lost) or f'torchrun {said}'}, after {used} restart{'' if used == 1 else 's'}"

    @property
    def complete(self) -> bool:
        """Whether every rank has given its result and said that it is done, and all is kept."""
        spec = self._roster.spec
        done = {rank for rank, event in self._last.items() if event.kind == "done"}
        everyone = set(range(spec.world_size))
        ended = self.finished or done == everyone
        return self._has_weights and ended and self.results.keys() == everyone

    @property
    def _has_weights(self) -> bool:
        """Whether the final weights are kept, if they are to be."""
        spec = self._roster.spec
        return not (spec.save_weights and spec.strategy.trains) or (self._directory / WEIGHTS).exists()

    def summary(self) -> list[str]:
        """How it ended, in lines."""
        spec = self._roster.spec
        data = f", {spec.name_of('dataset')}, {spec.epochs} epochs" if spec.strategy.trains else ""
        what = f"{spec.name_of('strategy')} over {spec.transport}{data}, seed {spec.seed}"
        size = f"{spec.nodes} node{'s' if spec.nodes > 1 else ''}"
        if spec.processes_per_node > 1:
            size += f" × {spec.processes_per_node} processes"
        if self.failures or not self.complete:
            causes = [f"  {name}: {cause}" for name, cause in self.failures.items()]
            return [f"FAILED: {size}, {what}", *(causes or ["  not every result was given and kept"])]
        again = self._attempts.counts
        restarts = [f"  a rank was lost, all were started again: {again} of {spec.restarts} restarts"]
        figures = [*self._figures(), *(restarts if again else [])]
        return [f"ok: {size}, world size {spec.world_size}, {what}", *figures]

    def _figures(self) -> list[str]:
        results = [self.results[rank] for rank in sorted(self.results)]
        train_s = max(result["train_s"] for result in results)
        if not self._roster.spec.strategy.trains or not train_s:
            return [f"  {train_s:.2f} s"]
        samples = sum(result["samples"] for result in results)
        return [
            f"  trained {samples:,} samples in {train_s:.2f} s, {samples / train_s:,.0f} samples/s",
            f"  test accuracy {results[0]['accuracy']:.1%}, {self._weights(results)}",
            *(
                [f"  {format_event(self._resumed)}; what was lost is not in its time"]
                if self._resumed
                else []
            ),
        ]

    def _weights(self, results: Sequence[Mapping[str, Any]]) -> str:
        """What became of the copies of the model: of one that is cut, one rank knows the whole."""
        spec = self._roster.spec
        whose = "copies" if spec.strategy.partitions_model else "ranks"
        digests = {result["weights_digest"] for result in results if result["weights_digest"]}
        if spec.strategy.partitions_model and spec.num_replicas == 1:
            return f"one model on {spec.size_label}"
        if len(digests) == 1:
            return f"same weights on all {whose}"
        return f"{whose} ended with different weights"


def _said(event: Event) -> str:
    cause = event.fields.get("cause")
    return f"was {cause}" if event.kind in ("died", "terminated") else f"failed: {cause}"
