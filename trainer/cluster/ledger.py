"""The ledger: what the head keeps of a run, in files, and what it says about it at the end."""

from __future__ import annotations

import base64
import json
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.cluster.roll import Member, Roster
from trainer.events import LAST_WORDS, Event

FILES = ("weights.npy",)  # that a member may send; a name is no path


class Ledger:
    """Keeps events as the ranks wrote them, one file per rank, beside the roster and the members' usage."""

    def __init__(self, directory: Path, roster: Roster) -> None:
        self._directory, self._roster = directory, roster
        self._last: dict[int, Event] = {}  # by rank: its last word
        self._starts: dict[int, Event] = {}
        self.results: dict[int, Mapping[str, Any]] = {}  # by rank
        self.failures: dict[str, str] = {}  # by member: why, the first reason that was known
        self.leaving = False  # who is sent away and says so has not failed
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "spec.json").write_text(roster.spec.model_dump_json(indent=2))
        # What members said of themselves is their keys, which are no business of the host's.
        members = [{**asdict(member), "hello": {}} for member in roster.members]
        (directory / "roster.json").write_text(json.dumps(members, indent=2))

    def keep(self, event: Event) -> None:
        """One event of one rank. Raises ValueError for a rank that there is not."""
        self._roster.holder(event.rank)
        if event.kind in LAST_WORDS:
            self._last[event.rank] = event
        if event.kind == "start":
            self._starts[event.rank] = event
        if event.kind == "result":
            self.results[event.rank] = event.fields
        if event.kind in ("failed", "died") or (event.kind == "terminated" and not self.leaving):
            self.fail(self._roster.holder(event.rank), f"rank {event.rank} {_said(event)}")
        with open(self._directory / f"rank-{event.rank}.jsonl", "a", encoding="utf-8") as file:
            file.write(event.to_line() + "\n")

    def keep_file(self, name: str, piece: str) -> None:
        """A piece of a file, base64; pieces come in order."""
        if name not in FILES:
            raise ValueError(f"no file that a member may send: {name!r}")
        with open(self._directory / name, "ab") as file:
            file.write(base64.b64decode(piece))

    def keep_usage(self, member: Member, usage: Mapping[str, Any]) -> None:
        """What the member's container has used."""
        line = json.dumps({"member": member.name, "ranks": member.ranks, **usage})
        with open(self._directory / "usage.jsonl", "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def bury(self, member: Member, codes: Mapping[int, int] | None, out_of_memory: bool) -> None:
        """Say for ranks that ended without a last word what became of them, as far as it is known.

        codes: exit codes by rank, negative for a signal; of ranks that mpirun started there is none. None:
        the member is gone, and its ranks with it.
        """
        for rank in member.ranks:
            if rank in self._last:
                continue
            if out_of_memory:
                cause = f"killed: its node needed more than {self._roster.spec.memory_mb} MiB of memory"
            elif self.leaving:
                continue  # it was deaf when it was sent away, and its own member has killed it
            elif codes is None:
                cause = "killed together with its container, or cut off from the head"
            elif codes.get(rank, 0) < 0:
                cause = f"killed by {signal_name(-codes[rank])}"
            else:
                continue  # it ended by itself, and its log says why; or mpirun knows
            if rank in self._starts:
                host = self._starts[rank].host
                self.keep(Event(time.time(), self._roster.spec.key, rank, host, "died", {"cause": cause}))
            else:
                self.fail(member, f"rank {rank}, before it came up: {cause}")

    def fail(self, member: Member, cause: str) -> None:
        """Note why a member has failed, unless it is known already."""
        self.failures.setdefault(member.name, cause)

    @property
    def complete(self) -> bool:
        """Whether every rank has given its result and said that it is done."""
        done = {rank for rank, event in self._last.items() if event.kind == "done"}
        return done == set(range(self._roster.spec.world_size)) == self.results.keys()

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
            return [f"FAILED: {size}, {what}", *(causes or ["  not every rank gave a result"])]
        return [f"ok: {size}, world size {spec.world_size}, {what}", *self._figures()]

    def _figures(self) -> list[str]:
        results = [self.results[rank] for rank in sorted(self.results)]
        train_s = max(result["train_s"] for result in results)
        if not self._roster.spec.strategy.trains or not train_s:
            return [f"  {train_s:.2f} s"]
        samples = sum(result["samples"] for result in results)
        digests = {result["weights_digest"] for result in results}
        return [
            f"  trained {samples:,} samples in {train_s:.2f} s, {samples / train_s:,.0f} samples/s",
            f"  test accuracy {results[0]['accuracy']:.1%}, "
            + ("same weights on all ranks" if len(digests) == 1 else "ranks ended with different weights"),
        ]


def _said(event: Event) -> str:
    cause = event.fields.get("cause")
    return f"was {cause}" if event.kind in ("died", "terminated") else f"failed: {cause}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"
