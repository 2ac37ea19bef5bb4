"""Predictions that a results directory has beside its runs, for its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from orchestrator.results.store import SweepPaths, read_stored, write_atomic
from trainer.core.json_files import JsonLimits, read_json_below
from trainer.core.record import Amount, Count, Record, Share, Text

VERSION: Literal[1] = 1
LIMITS = JsonLimits(bytes=2**26, values=2**21)  # of the file
LEAST_GAIN = 0.05  # of time, for which more nodes pay
Nodes = Annotated[int, Field(ge=1, le=2**16)]
Positive = Annotated[float, Field(gt=0, le=1e15)]


class Asked(Record):
    """What was asked.

    Attributes:
        link: bandwidth and latency as in `--link`; None: as in the measured runs.
        node_speed: of all nodes, relative to those of the measured runs.
        price_per_h: of a node; None: no cost.
    """

    nodes: list[Nodes]
    link: Text | None
    node_speed: Positive
    price_per_h: Positive | None


class ToTarget(Record):
    """The time to a target accuracy, whose epochs come from virtual nodes that have trained.

    Attributes:
        epochs: of each run of the virtual nodes that has reached it, ascending. seeds: all such runs.
        seconds, low_s, high_s: of the median, the fewest and the most epochs; the bounds are those of the
            intervals.
    """

    accuracy: Share
    epochs: list[Count]
    seeds: Count
    seconds: Positive
    low_s: Positive
    high_s: Positive


class Prediction(Record):
    """A configuration on so many nodes. Bounds hold 90 % of such runs.

    Attributes:
        configuration: its name. runs: the keys of the runs that it was measured in.
        seconds: of training, for the epochs of these runs.
        communication: the share of the time in which ranks communicate or wait, the mean over ranks.
        speedup: the time of the serial run over this one; None without a serial run.
        bytes_sent: of a rank, the mean over ranks. state_bytes: of the rank that holds most.
        spec: of a run that would measure it.
    """

    configuration: Text
    runs: list[Text]
    nodes: Nodes
    measured_nodes: Nodes
    seconds: Positive
    low_s: Positive
    high_s: Positive
    communication: Share
    speedup: Positive | None
    efficiency: Positive | None
    bytes_sent: Amount
    state_bytes: Count | None
    cost: Amount | None
    low_cost: Amount | None
    high_cost: Amount | None
    to_target: ToTarget | None
    spec: dict[str, Any]


class RefusedPrediction(Record):
    """A configuration on so many nodes that has no prediction, and why, as a clause."""

    configuration: Text
    runs: list[Text]
    nodes: Nodes
    reason: Text


class UnusedRun(Record):
    """A run that predictions do not use, and why, as a clause."""

    run: Text
    reason: Text


class Predictions(Record):
    """Predictions from the runs of a results directory.

    Attributes:
        made_from: when each finished run started, by key: other runs make the predictions outdated.
    """

    version: Literal[1] = VERSION
    asked: Asked
    made_from: dict[Text, Amount]
    forecasts: list[Prediction]
    refused: list[RefusedPrediction]
    unused: list[UnusedRun]

    def outdated(self, started: Mapping[str, float]) -> bool:
        """Whether the finished runs, with the times at which they started, are others."""
        return self.made_from != started


def write_predictions(paths: SweepPaths, predictions: Predictions) -> None:
    """Store predictions beside the runs. Raises OSError."""
    write_atomic(paths.predictions, predictions.model_dump_json(indent=1))


def read_predictions(paths: SweepPaths) -> Predictions | None:
    """The predictions of a results directory; None if it has none. Raises UnusableFile."""
    return read_stored(
        Predictions, paths.predictions, lambda path: read_json_below(path.parent, path.name, LIMITS)
    )


def stops_paying(found: Sequence[Prediction]) -> int | None:
    """The nodes beyond which no number of nodes is faster by LEAST_GAIN; None if the largest number is.

    Args:
        found: predictions of one configuration, on several numbers of nodes.
    """
    ordered = sorted(found, key=lambda each: each.nodes)
    for at, each in enumerate(ordered[:-1]):
        if min(more.seconds for more in ordered[at + 1 :]) > (1 - LEAST_GAIN) * each.seconds:
            return each.nodes
    return None
