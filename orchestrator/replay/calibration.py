"""What exchanges cost beyond their messages, from runs whose ranks had a core each.

The model has the messages of an exchange. A library also copies and adds buffers, and the kernel wakes up
threads that have slept since the last exchange, with cold caches. A probe that repeats one message shows
little of that, but the traces of runs do. It counts once for each exchange, whatever the number of its
messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from orchestrator.replay.algorithms import TRANSPORTS, Network
from orchestrator.replay.cluster import ANY_COLLECTIVE, Cluster, SoftwareCost
from orchestrator.replay.measured import Exchange, durations
from trainer.core.trace import Kind, Trace

Place = tuple[str, str]  # runtime and transport
FASTEST = 0.1  # quantile of exchanges under load
DIGITS = 3  # of a cost: more are noise
_RECEIVE, _REQUEST = Kind.RECEIVE.name.lower(), Kind.REQUEST.name.lower()


class Calibration:
    """Software costs of each place: those of the run in which an exchange was the fastest.

    Other load on the machine makes exchanges slower, never faster.
    """

    def __init__(self) -> None:
        self._runs: dict[Place, dict[str, dict[tuple[str, int], float]]] = defaultdict(dict)

    def add(
        self, key: str, place: Place, traces: Sequence[Trace], cluster: Cluster, loaded: bool = False
    ) -> None:
        """Take the costs from a run.

        Args:
            cluster: that of the run, without software costs.
            loaded: whether other load disturbed the run. Then the fastest tenth of the exchanges shows
                their cost, otherwise their mean.
        """
        if place[1] not in TRANSPORTS:
            return
        network = Network(cluster, place[1])
        found: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        for exchange, seconds in durations(traces, network.transport.sleeps).items():
            typical_s = float(np.quantile(seconds, FASTEST)) if loaded else fmean(seconds)
            found[exchange.name, exchange.bytes].append(_beyond_messages(network, exchange, typical_s))
        self._runs[place][key] = {what: max(fmean(costs), 0.0) for what, costs in found.items()}

    def costs(self, place: Place, without: str) -> dict[str, list[SoftwareCost]]:
        """The costs by kind of exchange and size. without: the key of a run that does not count.

        A run does not calibrate its own time, so its error is that of a prediction. Kinds of collectives
        that no run shows have those of all collectives.
        """
        by_exchange: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        for key, costs in self._runs.get(place, {}).items():
            if key != without:
                for (name, nbytes), seconds in costs.items():
                    by_exchange[name, nbytes].append(seconds)
                    if name not in (_RECEIVE, _REQUEST):
                        by_exchange[ANY_COLLECTIVE, nbytes].append(seconds)
        found: dict[str, list[SoftwareCost]] = {}
        for name, nbytes in sorted(by_exchange):
            seconds = float(f"{min(by_exchange[name, nbytes]):.{DIGITS}g}")
            found.setdefault(name, []).append(SoftwareCost(bytes=nbytes, seconds=seconds))
        return found


def _beyond_messages(network: Network, exchange: Exchange, seconds: float) -> float:
    """What the model leaves of the seconds of an exchange."""
    if exchange.name == _RECEIVE:
        return seconds - network.message_s(exchange.ranks, exchange.bytes)
    if exchange.name == _REQUEST:
        # Two messages share the bytes.
        return seconds - 2 * network.message_s(exchange.ranks, exchange.bytes / 2)
    costs = network.costs(exchange.name, exchange.ranks, exchange.bytes, exchange.root)
    exits, _ = costs.exits([0.0] * len(exchange.ranks))
    return seconds - fmean(exits)
