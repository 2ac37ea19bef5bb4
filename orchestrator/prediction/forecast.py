"""Forecasts: time, speedup, bytes, memory and cost of each configuration on other numbers of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median_low

from orchestrator.prediction.error_model import PRIOR, ErrorModel, Interval, Observation
from orchestrator.prediction.errors import NoPrediction
from orchestrator.prediction.evidence import Configuration, Evidence
from orchestrator.prediction.measured_cluster import MeasuredCluster, on_link
from orchestrator.prediction.simulated import Simulations
from orchestrator.prediction.target import Learned, learned_by
from orchestrator.results.records import RunResult
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Cluster, Link

PRIOR_COUNTS = 10.0  # as so many configurations, beside those of the directory
QUOTA_DRIFT = 0.2  # of nodes with less than a core: 90 % of 104 times are in their intervals then
MOST_WIDTH = 4.0  # an interval whose upper bound is more than this times the lower one says too little


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        nodes: their numbers.
        link: between two nodes; None: as in the measured runs.
        speed: of each node's cores, relative to those of the measured runs.
        price_per_h: of a node; None: no cost.
        measured: what messages and exchanges cost on the cluster; None: as in the measured runs.
        learned: runs on virtual nodes that show how many epochs a target accuracy takes.
    """

    nodes: Sequence[int]
    link: Link | None = None
    speed: float = 1.0
    price_per_h: float | None = None
    measured: MeasuredCluster | None = None
    learned: Sequence[RunResult] = ()


@dataclass(frozen=True)
class TimeToTarget:
    """The time to a target accuracy: that of the median epochs, with bounds for the fewest and the most."""

    learned: Learned
    seconds: float
    low_s: float
    high_s: float


@dataclass(frozen=True)
class Forecast:
    """A configuration on so many nodes. Times in seconds; bounds hold 90 %.

    Attributes:
        run: the spec of its simulation, with these nodes.
        communication: the share of the time in which ranks communicate or wait, 0 … 1.
        speedup: the time of the serial run over this one; None without a serial run.
        bytes_sent: of a rank, in the whole run.
        state_bytes: weights, gradient, optimizer state and activations of the rank that holds most.
        cost, low_cost, high_cost: of all nodes; None without a price.
        to_target: None if no virtual nodes show it.
    """

    configuration: Configuration
    run: RunSpec
    seconds: float
    low_s: float
    high_s: float
    communication: float
    speedup: float | None
    bytes_sent: float
    state_bytes: int | None
    cost: float | None
    low_cost: float | None
    high_cost: float | None
    to_target: TimeToTarget | None

    @property
    def measured_nodes(self) -> int:
        return self.configuration.most_nodes

    @property
    def efficiency(self) -> float | None:
        return None if self.speedup is None else self.speedup / self.run.nodes


@dataclass(frozen=True)
class Refused:
    """A configuration on so many nodes without a forecast, and the reason as a clause."""

    configuration: Configuration
    nodes: int
    reason: str


def forecasts(
    evidence: Evidence, question: Question, simulations: Simulations, model: ErrorModel = PRIOR
) -> Iterator[Forecast | Refused]:
    """A forecast of each configuration but the serial one, on each number of nodes.

    model: the prior of the error model, before the runs of all configurations here are known.
    """
    serial = {_workload(each.run): each for each in evidence.configurations if _is_serial(each)}
    asked = [each for each in evidence.configurations if not _is_serial(each)]
    known = [_observations(each, simulations) for each in asked]
    own = [each for each in known if not isinstance(each, NoPrediction)]
    model = model.fitted(own, PRIOR_COUNTS)
    for each, observed in zip(asked, known, strict=True):
        if isinstance(observed, NoPrediction):
            yield from (Refused(each, nodes, str(observed)) for nodes in question.nodes)
            continue
        reference = serial.get(_workload(each.run))
        for nodes in question.nodes:
            try:
                yield _forecast(each, nodes, question, simulations, model, observed, reference)
            except NoPrediction as error:
                yield Refused(each, nodes, str(error))


def observations(configuration: Configuration, simulations: Simulations) -> list[Observation]:
    """How far the simulation is off on the measured runs. Raises NoPrediction."""
    found = []
    for each in configuration.runs:
        time = simulations.time(configuration, each.epochs, each.cluster)
        found.append(Observation(each.run.nodes, time.communication, each.seconds / time.seconds))
    return found


def _observations(
    configuration: Configuration, simulations: Simulations
) -> list[Observation] | NoPrediction:
    try:
        return observations(configuration, simulations)
    except NoPrediction as error:
        return error


def _forecast(
    configuration: Configuration,
    nodes: int,
    question: Question,
    simulations: Simulations,
    model: ErrorModel,
    observed: Sequence[Observation],
    serial: Configuration | None,
) -> Forecast:
    epochs = max(each.epochs for each in configuration.runs)
    cluster = cluster_of(configuration, nodes, question)
    time = simulations.time(configuration, epochs, cluster)
    drift = QUOTA_DRIFT if configuration.has_quotas else 0.0
    factor = model.interval(observed, nodes, time.communication, drift)
    if factor.width > MOST_WIDTH:
        raise NoPrediction(
            f"the interval would reach from {time.seconds * factor.low:.3g} to "
            f"{time.seconds * factor.high:.3g} s, more than {MOST_WIDTH:g} times as far; runs on more than "
            f"{configuration.most_nodes} nodes would narrow it"
        )
    seconds, low_s, high_s = (time.seconds * each for each in factor)
    result = simulations.played(configuration, nodes, epochs).result
    price = None if question.price_per_h is None else question.price_per_h * nodes / 3600
    serial_s = None if serial is None else fmean(each.seconds for each in serial.runs) / question.speed
    return Forecast(
        configuration=configuration,
        run=result.run,
        seconds=seconds,
        low_s=low_s,
        high_s=high_s,
        communication=time.communication,
        speedup=None if serial_s is None else serial_s / seconds,
        bytes_sent=result.bytes_sent_per_rank or 0.0,
        state_bytes=result.held_bytes,
        cost=None if price is None else price * seconds,
        low_cost=None if price is None else price * low_s,
        high_cost=None if price is None else price * high_s,
        to_target=_time_to_target(configuration, cluster, question, simulations, factor),
    )


def _time_to_target(
    configuration: Configuration,
    cluster: Cluster,
    question: Question,
    simulations: Simulations,
    factor: Interval,
) -> TimeToTarget | None:
    """factor: of the simulated time on this cluster, which is the same for any number of epochs."""
    learned = learned_by(question.learned, configuration.run, len(cluster.node_speed))
    if learned is None or not learned.epochs:
        return None
    fewest, usual, most = (
        simulations.time(configuration, epochs, cluster).seconds
        for epochs in (learned.epochs[0], median_low(learned.epochs), learned.epochs[-1])
    )
    return TimeToTarget(learned, usual * factor.middle, fewest * factor.low, most * factor.high)


def cluster_of(configuration: Configuration, nodes: int, question: Question) -> Cluster:
    """The cluster that is asked about, with the costs of messages and exchanges that were measured.

    Raises NoPrediction if the question has a measured cluster without the transport.
    """
    run = max(configuration.runs, key=lambda each: each.run.nodes)
    known, own_bytes_per_s = run.cluster, run.own_bytes_per_s
    if question.measured is not None:
        known = question.measured.costs_on(known, configuration.run.transport)
        own_bytes_per_s = known.link.bytes_per_s
    link = on_link(known, question.link, own_bytes_per_s).link
    return Cluster(
        node_speed=[question.speed * max(known.node_speed)] * nodes,
        processes_per_node=known.processes_per_node,
        link=link,
        intra_node=known.intra_node,
        overhead_s=known.overhead_s,
        software=known.software,
        algorithms=known.algorithms,
    )


def _is_serial(configuration: Configuration) -> bool:
    return configuration.run.name_of("strategy") == "serial"


def _workload(run: RunSpec) -> tuple[object, ...]:
    """What a run computes, which its serial run computes, too."""
    names = ("dataset", "model", "loss", "optimizer", "augmentation")
    return (
        *(getattr(run, name).model_dump_json() for name in names),
        run.batch_size,
        run.epochs,
        run.threads,
    )
