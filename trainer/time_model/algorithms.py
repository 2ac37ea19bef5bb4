"""How each transport communicates: its algorithms by collective and size, and its point-to-point protocol.

gloo: those in its `allreduce.cc` (ring with at least two segments per rank), `allgather.cc` (ring),
`broadcast.cc` (binomial tree), `barrier.cc` (dissemination) and `alltoall.cc` (all messages at once). torch
makes a reduce-scatter of an all-reduce. Over other transports, ours is an all-to-all and a sum.

mpi: the fixed decisions of Open MPI 5, `coll_tuned_decision_fixed.c`, simplified to the algorithms that are
here: a segmented ring counts as a ring, and collectives other than all-reduce have one algorithm. For fewer
elements than ranks, Open MPI's ring is recursive doubling.

rpc: that of `trainer/comm/rpc.py`: every pair exchanges directly, and a sender waits for the answers.

memory: the same as mpi, because ranks of one process have no network of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from trainer.core.registry import suggestion
from trainer.time_model.cluster import ANSWER, ANY_COLLECTIVE, CALL, Choice, Cluster
from trainer.time_model.collectives import ALGORITHMS, Costs, call_name, only_receive
from trainer.time_model.errors import ClusterError


@dataclass(frozen=True)
class Transport:
    """How a library communicates.

    Attributes:
        choices: algorithms by collective and number of ranks: the first row with at least so many ranks.
        eager_bytes: messages up to this size are sent at once; larger ones when the receiver has asked for
            them. A sender of the latter waits for the receiver.
        acknowledged: a send blocks until the receiving process has answered.
        overhead_s: software cost of a message, at the sender and again at the receiver.
        core_s_per_byte: see Cluster. With gloo, threads take 0.6 to 0.8 ns of CPU a byte.
        sleeps: a rank sleeps while it waits, so the CPU time of a collective is that of calling it. A rank
            that polls uses its core as long as it waits, and its CPU time says nothing.
        all_threads: the clock of a rank has all threads of its process, so a call takes CPU time for each
            other rank that it exchanges a message with.
    """

    choices: dict[str, tuple[tuple[int, Sequence[Choice]], ...]]
    eager_bytes: float
    overhead_s: float
    core_s_per_byte: float = 1e-9
    acknowledged: bool = False
    sleeps: bool = False
    all_threads: bool = False


def _always(**algorithms: str) -> dict[str, tuple[tuple[int, Sequence[Choice]], ...]]:
    return {collective: ((2, [Choice(algorithm=name)]),) for collective, name in algorithms.items()}


def _by_size(*rules: tuple[str, int | None]) -> list[Choice]:
    return [Choice(algorithm=name, below_bytes=below) for name, below in rules]


_MPI = Transport(
    choices={
        **_always(
            all_gather="ring",
            reduce_scatter="pairwise",
            all_to_all="pairwise",
            gather="linear",
            broadcast="binomial",
            barrier="dissemination",
            shift="direct",
        ),
        "all_reduce": (
            (4, _by_size(("recursive_doubling", 8192), ("rabenseifner", None))),
            (
                2,
                _by_size(
                    ("recursive_doubling", 4096),
                    ("ring", 8192),
                    ("recursive_doubling", 16384),
                    ("ring", 262144),
                    ("rabenseifner", None),
                ),
            ),
        ),
    },
    eager_bytes=65536,  # btl_tcp_eager_limit
    overhead_s=5e-6,
)

TRANSPORTS: dict[str, Transport] = {
    "gloo": Transport(
        choices=_always(
            all_reduce="segmented_ring",
            all_gather="ring",
            reduce_scatter="all_reduce",
            all_to_all="direct",
            gather="linear",
            broadcast="binomial",
            barrier="dissemination",
            shift="direct",
        ),
        eager_bytes=0,
        overhead_s=10e-6,
        sleeps=True,
    ),
    "mpi": _MPI,
    "memory": replace(_MPI, core_s_per_byte=0.0),
    "rpc": Transport(
        choices=_always(
            all_reduce="direct",
            all_gather="direct",
            reduce_scatter="direct",
            all_to_all="direct",
            gather="linear",
            broadcast="linear",
            barrier="direct",
            shift="direct",
        ),
        eager_bytes=inf,
        overhead_s=100e-6,
        core_s_per_byte=0.0,
        acknowledged=True,
        sleeps=True,
        all_threads=True,
    ),
}


START = "start_"  # begins the name of a collective beside the computation: its software differs


def _sent_as(collective: str) -> str:
    """The blocking collective whose messages a collective beside the computation sends."""
    # A reduce-scatter is an all-to-all and a sum, on every transport: gloo's own is an all-reduce.
    return "all_to_all" if collective == "start_reduce_scatter" else collective.removeprefix(START)


class Network:
    """The links of a cluster as a transport uses them."""

    def __init__(self, cluster: Cluster, transport: str) -> None:
        """Raises ClusterError for an unknown transport or algorithm."""
        if transport not in TRANSPORTS:
            raise ClusterError(
                f"transport {transport} has no table of algorithms; known: {', '.join(TRANSPORTS)}"
            )
        self.cluster, self.transport = cluster, TRANSPORTS[transport]
        own = cluster.overhead_s
        self.overhead_s = self.transport.overhead_s if own is None else own
        per_byte = cluster.core_s_per_byte
        self.core_s_per_byte = self.transport.core_s_per_byte if per_byte is None else per_byte
        self._software: dict[tuple[str, float], float] = {}  # looked up for every message
        for collective, choices in cluster.algorithms.items():
            known = ALGORITHMS[collective]
            for each in choices:
                if each.algorithm not in known:
                    raise ClusterError(
                        f"algorithms.{collective}: unknown algorithm {each.algorithm!r}"
                        f"{suggestion(each.algorithm, known)}; known: {', '.join(known)}"
                    )
            if choices[-1].below_bytes is not None:
                raise ClusterError(
                    f"algorithms.{collective}: the last choice has below_bytes "
                    f"{choices[-1].below_bytes}; it must cover every size (null)"
                )

    def algorithm(self, collective: str, size: int, nbytes: float) -> str:
        """The name of the algorithm of a collective of `size` ranks."""
        choices: Sequence[Choice] = self.cluster.algorithms.get(collective, ())  # type: ignore[call-overload]
        if not choices:
            rows = self.transport.choices[collective]
            choices = next((row for least, row in rows if size >= least), rows[-1][1])
        return next(
            each.algorithm for each in choices if each.below_bytes is None or nbytes < each.below_bytes
        )

    def costs(self, collective: str, ranks: Sequence[int], nbytes: float, root: int) -> Costs:
        """Costs of a collective between `ranks`, with its software. root: or the distance of a shift."""
        size, like = len(ranks), _sent_as(collective)
        algorithm = ALGORITHMS[like][self.algorithm(like, size, nbytes)]
        rounds = algorithm(size, nbytes, root) if size > 1 else []
        software_s = self.software_s(collective, nbytes) if rounds else 0.0
        waiting = only_receive(like, size, root)
        call_s = [0.0 if rank in waiting else software_s for rank in range(size)]
        links, acknowledged = self.cluster.links_of(ranks), self.transport.acknowledged
        answer_s = self.software_s(like + ANSWER, nbytes) if waiting and acknowledged else 0.0
        eager_bytes = self.transport.eager_bytes
        return Costs.of(rounds, links, self.overhead_s, acknowledged, call_s, eager_bytes, answer_s)

    def message_s(self, ranks: Sequence[int], nbytes: float) -> float:
        """Seconds of a message from the first to the second rank, both ready, without `software_s`."""
        link = self.cluster.links_of(ranks).between(0, 1)
        return 2 * self.overhead_s + link.latency_s + nbytes / link.bytes_per_s

    def call_s(self, collective: str, size: int, rank: int, nbytes: float, root: int) -> float:
        """CPU seconds of calling a collective on one of `size` ranks. root: as in `costs`."""
        name = call_name(collective, size, rank, root)
        return self.software_s(name, nbytes) * self.call_factor(collective, size, rank == root)

    def call_factor(self, collective: str, size: int, is_root: bool) -> float:
        """The CPU time of a call as a multiple of that of a call with one message.

        With all threads on the clock, each message takes as much as all else in the call.
        """
        if not self.transport.all_threads:
            return 1.0
        linear = self.algorithm(collective, size, 0) == "linear"
        return (1 + (1 if linear and not is_root else size - 1)) / 2

    def software_s(self, exchange: str, nbytes: float) -> float:
        """Software cost of an exchange beyond its messages; 0 where none is described."""
        key = exchange, nbytes
        if key not in self._software:
            self._software[key] = self._described_s(exchange, nbytes)
        return self._software[key]

    def _described_s(self, exchange: str, nbytes: float) -> float:
        described = self.cluster.software
        others = ANY_COLLECTIVE + CALL if exchange.endswith(CALL) else ANY_COLLECTIVE
        is_collective = exchange.endswith(CALL) or exchange.removeprefix(START) in ALGORITHMS
        costs = described.get(exchange) or (described.get(others) if is_collective else None)
        if costs is None:
            return 0.0
        return float(np.interp(nbytes, [each.bytes for each in costs], [each.seconds for each in costs]))
