"""What exchanges cost beyond their messages, from runs whose ranks had a core each.

The model has the messages of an exchange. A library also copies and adds buffers, and the kernel wakes up
threads that have slept since the last exchange, with cold caches. A probe that repeats one message shows
little of that, but the traces of runs do. It counts once for each exchange, whatever the number of its
messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

import numpy as np

from orchestrator.replay.measured import RECEIVE, REQUEST, SEND, Exchange, durations
from trainer.core.trace import Trace
from trainer.time_model.algorithms import TRANSPORTS, Network
from trainer.time_model.cluster import ANSWER, ANY_COLLECTIVE, CALL, RECEIVE_CALL, Cluster, SoftwareCost
from trainer.time_model.errors import ReplayError
from trainer.time_model.program import join_groups

Place = tuple[str, str]  # runtime and transport
Sized = tuple[str, int]  # kind of exchange and bytes
MOST_S = 3600.0  # of an exchange; no trace that is true has more
DIGITS = 3  # of a cost: more are noise
# Of the exchanges of a run beside other load: the fastest ones had to wait for no core. Of several
# quantiles this one predicted best what the same exchanges cost without the load.
UNDISTURBED_SHARE = 0.25


class Calibration:
    """Software costs of each place: those of the run in which an exchange was the fastest.

    Other load on the machine makes exchanges slower, never faster. What a rank does between exchanges also
    matters, so runs of the same strategy come first.
    """

    def __init__(self) -> None:
        self._runs: dict[Place, list[_Run]] = defaultdict(list)

    def add(
        self,
        key: str,
        strategy: str,
        place: Place,
        traces: Sequence[Trace],
        cluster: Cluster,
        loaded: bool = False,
    ) -> None:
        """Take the costs from a run. Traces that do not fit together show none.

        Args:
            cluster: the cluster of the run, without software costs.
            loaded: whether other load took cores from the ranks. Then the lower quartile of the exchanges
                shows their cost, otherwise their mean.
        """
        if place[1] not in TRANSPORTS:
            return
        try:
            join_groups(traces)  # a node may have written anything
        except ReplayError:
            return
        network = Network(cluster, place[1])
        found: defaultdict[Sized, list[float]] = defaultdict(list)
        for exchange, seconds in durations(traces, network.transport.sleeps).items():
            typical_s = float(np.quantile(seconds, UNDISTURBED_SHARE)) if loaded else fmean(seconds)
            typical_s = max(typical_s, 0.0)
            found[exchange.name, exchange.bytes].append(_beyond_messages(network, exchange, typical_s))
        means = {what: fmean(seconds) for what, seconds in found.items()}
        costs = {
            (name, nbytes): max(seconds, 0.0) if name in (SEND, RECEIVE, REQUEST) else seconds
            for (name, nbytes), seconds in means.items()
            if abs(seconds) < MOST_S
        }
        self._runs[place].append(_Run(key, strategy, loaded, costs))

    def count(self, place: Place) -> int:
        """The number of runs that show costs of a place."""
        return len(self._runs.get(place, ()))

    def costs(self, place: Place, strategy: str, without: str) -> dict[str, list[SoftwareCost]]:
        """The costs by kind of exchange and size, for a run of a strategy.

        A run does not calibrate its own time, so its error is that of a prediction. For each kind of
        exchange, runs of the strategy come first, then undisturbed runs. Collectives that no run shows have
        the costs of all collectives.

        Args:
            without: the key of a run that does not count.
        """
        others = [run for run in self._runs.get(place, ()) if run.key != without]
        others.sort(key=lambda run: (run.strategy == strategy, not run.loaded))  # the best last
        found: dict[Sized, float] = {}
        for _, equally_good in groupby(others, key=lambda run: (run.strategy == strategy, run.loaded)):
            better = _fastest([*equally_good])
            names = {name for name, _ in better}
            found = {what: seconds for what, seconds in found.items() if what[0] not in names} | better
        for (name, nbytes), seconds in [*found.items()]:
            if name not in (SEND, RECEIVE, REQUEST) and not name.endswith(ANSWER):
                stand_in = ANY_COLLECTIVE + (CALL if name.endswith(CALL) else "")
                found[stand_in, nbytes] = min(found.get((stand_in, nbytes), seconds), seconds)
        for name, nbytes in found:
            if name.endswith(ANSWER):  # follows the message, which has a cost of its own
                found[name, nbytes] -= found.get((name.removesuffix(ANSWER), nbytes), 0.0)
        by_name: dict[str, list[SoftwareCost]] = {}
        for (name, nbytes), seconds in sorted(found.items()):
            cost = SoftwareCost(bytes=nbytes, seconds=float(f"{seconds:.{DIGITS}g}"))
            by_name.setdefault(name, []).append(cost)
        return by_name


@dataclass(frozen=True)
class _Run:
    key: str
    strategy: str
    loaded: bool
    costs: dict[Sized, float]


def _fastest(runs: Sequence[_Run]) -> dict[Sized, float]:
    """The lowest cost of each exchange."""
    found: dict[Sized, float] = {}
    for run in runs:
        for what, seconds in run.costs.items():
            found[what] = min(found.get(what, seconds), seconds)
    return found


def _beyond_messages(network: Network, exchange: Exchange, seconds: float) -> float:
    """What the model leaves of the seconds of an exchange."""
    if exchange.name == SEND:
        # A sender waits for nothing but an answer.
        answered_s = network.message_s(exchange.ranks, exchange.bytes)
        return seconds - (answered_s if network.transport.acknowledged else network.overhead_s)
    if exchange.name == RECEIVE:
        return seconds - network.message_s(exchange.ranks, exchange.bytes)
    if exchange.name == REQUEST:
        # Two messages share the bytes.
        return seconds - 2 * network.message_s(exchange.ranks, exchange.bytes / 2)
    if exchange.name.endswith(CALL):
        receives = exchange.name.endswith(RECEIVE_CALL)
        collective = exchange.name.removesuffix(RECEIVE_CALL if receives else CALL)
        is_root = receives == (collective == "gather")
        return seconds / network.call_factor(collective, len(exchange.ranks), is_root)
    collective = exchange.name.removesuffix(ANSWER)
    costs = network.costs(collective, exchange.ranks, exchange.bytes, exchange.root)
    exits, _ = costs.exits([0.0] * len(exchange.ranks))
    leaving = exchange.receivers
    if collective != exchange.name:
        leaving = [*{*range(len(exits))} - {*leaving}]
    return seconds - max(exits[at] for at in leaving)
