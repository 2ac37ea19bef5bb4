"""The registry of quantities: every number of a run is described here once.

The CSV files and the tables are made from these entries, and findings compare them. A new quantity is an
entry in one of these classes, a line of render/columns.csv, for results.csv, and a word of the ORDER of
render/columns.py, for tables.
"""

from __future__ import annotations

from orchestrator.report.quantities.accuracy import Accuracies
from orchestrator.report.quantities.communication import Communication
from orchestrator.report.quantities.containers import ContainerUsage
from orchestrator.report.quantities.data_partition import DataPartitions
from orchestrator.report.quantities.faults import FaultCosts
from orchestrator.report.quantities.learning import Learning
from orchestrator.report.quantities.links import Links
from orchestrator.report.quantities.model_partition import ModelPartitions
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.quantities.stragglers import Stragglers
from orchestrator.report.quantities.times import Times


class Q(
    Times,
    Accuracies,
    Learning,
    Communication,
    Links,
    Stragglers,
    DataPartitions,
    ModelPartitions,
    ContainerUsage,
    FaultCosts,
):
    """All quantities. `Q.accuracy` is the one whose column is `accuracy`."""


QUANTITIES: dict[str, Quantity] = {
    name: entry
    for entries in Q.__bases__
    for name, entry in vars(entries).items()
    if isinstance(entry, Quantity)
}
