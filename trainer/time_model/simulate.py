"""Replay of traces on a described cluster: the programs of the simulation are recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heappush

from trainer.core.trace import WORK_PHASES, Kind, Trace
from trainer.time_model.cluster import Cluster
from trainer.time_model.engine import Simulation
from trainer.time_model.errors import ReplayError
from trainer.time_model.outcome import RankReplay, Replay
from trainer.time_model.program import BESIDE, Channel, Entry, join_groups
from trainer.time_model.service import Section, ServedRequest, sections_of


def simulate(
    traces: Sequence[Trace], cluster: Cluster, max_staleness: int | None = None, intervals: bool = False
) -> Replay:
    """Replay the traces of all ranks of a run, in rank order.

    Args:
        max_staleness: that of `async_parameter_server`: a worker pulls only when it is at most so many
            steps ahead of the slowest; None: unbounded.
        intervals: also collect the intervals of a timeline.

    Raises:
        ReplayError: the traces do not fit together.
        ClusterError: the cluster has an unknown algorithm, or no algorithms for the transport are known.
    """
    return _OfTraces(traces, cluster, max_staleness, intervals).run()


class _OfTraces(Simulation):
    def __init__(
        self, traces: Sequence[Trace], cluster: Cluster, max_staleness: int | None, intervals: bool
    ) -> None:
        size = len(traces)
        for rank, trace in enumerate(traces):
            if (trace.header.rank, trace.header.size) != (rank, size):
                header = trace.header
                raise ReplayError(f"rank {rank}: its trace is of rank {header.rank} of {header.size}")
        if cluster.size != size:
            raise ReplayError(f"the cluster has {cluster.size} ranks, the run {size}")
        super().__init__(cluster, traces[0].header.transport, intervals)
        self._programs = [trace.records.tolist() for trace in traces]
        self._groups = join_groups(traces)
        self._max_staleness = max_staleness
        self._sections: list[dict[int, Section]] = [
            sections_of(rank, program, [group.ranks for group in self._groups[rank]])
            for rank, program in enumerate(self._programs)
        ]

    def run(self) -> Replay:
        self._play()
        self._check_all_taken()
        return Replay(self._ranks, sum(map(len, self._programs)))

    def _continue(self, rank: int, now: float) -> bool:
        """A trace has all that its rank did."""
        return False

    def _check_all_taken(self) -> None:
        """Raise ReplayError for a message that no rank received, or a collective that never started."""
        for rank, groups in enumerate(self._groups):
            for group in groups:
                for started in group.started:
                    missing = group.ranks[started.parts.index(None)]
                    kind, _, nbytes = started.call
                    raise ReplayError(
                        f"rank {rank}: {BESIDE[kind]} of {nbytes} bytes waits for rank {missing}, which "
                        "never starts it"
                    )
        if all(channel.sends == channel.receives for channel in self._channels.values()):
            return
        for rank, program in enumerate(self._programs):
            sends: Counter[Channel] = Counter()
            for at, record in enumerate(program):
                if record[0] == Kind.SEND:
                    channel = self._channel_to(rank, record)
                    sends[channel] += 1
                    if sends[channel] > channel.receives:
                        raise ReplayError(f"{self._name(rank, at)} is never received")

    def _serve(self, server: int, entered: float, record: Entry) -> float | None:
        """Take the next request. entered: when the server was free."""
        section = self._sections[server][self._at[server]]
        request = section.next_request(self._inbox[server])
        if request is None:
            self._block(server, entered)
            return None
        taken = max(entered, request.arrived) + self._network.overhead_s
        self._book(server, entered, taken, request.started, request.rank, record)
        clock = section.begin(request, self._max_staleness)
        return self._run_section(server, section, taken, clock)

    def _run_section(
        self, server: int, section: Section, now: float, answers: list[tuple[ServedRequest, int, bool]]
    ) -> float | None:
        """Do the work of a request, send the answers, and stay in the section until it is complete."""
        replay, speed = self._ranks[server], self._speed[server]
        for request, cause, deferred in answers:
            service = section.service(request)
            now = self._work(server, service.before, now, replay, speed)
            self._respond(server, request, service.response_bytes, now, cause if deferred else server)
        now = self._work(server, section.rest(), now, replay, speed)
        if section.complete:
            self._at[server] = section.end - 1
            return now
        heappush(self._events, (now, server))
        return None

    def _work(
        self, rank: int, work: Sequence[tuple[int, float]], now: float, replay: RankReplay, speed: float
    ) -> float:
        for phase, cpu_s in work:
            seconds = cpu_s / speed
            replay.work_s[phase] += seconds
            if self._wanted:
                self._show(rank, WORK_PHASES[phase], now, now + seconds)
            now += seconds
        return now

    def _answer(self, server: int, now: float, record: Entry) -> float:
        raise ReplayError(f"{self._name(server)} answers a request that was not taken")
