"""How many epochs a configuration needs to reach a target accuracy on so many nodes: from virtual nodes.

More nodes are another training. Virtual nodes really train, so their runs show the epochs to a target on
any number of nodes. A prediction adds what these epochs take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import InputError
from orchestrator.prediction.evidence import FREE, same_but
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, UnusableFile, read_record, read_result
from trainer.spec.run_spec import RunSpec

# Fields in which the virtual run of a configuration may differ from its measured runs. Transports add in
# another order, so their weights differ by rounding.
LEARNED_FREE = FREE | {"epochs", "target_accuracy", "patience", "threads", "transport"}


@dataclass(frozen=True)
class Learned:
    """Runs of one configuration on so many virtual nodes, with one target.

    Attributes:
        accuracy: the target.
        epochs: of the runs that have reached it, ascending.
        runs: their number, with those that have not reached it.
    """

    accuracy: float
    epochs: Sequence[int]
    runs: int


def learned_by(results: Sequence[RunResult], run: RunSpec, nodes: int) -> Learned | None:
    """What virtual nodes have learned with the configuration of a run; None if none has trained so.

    Args:
        results: of runs on virtual nodes.
    """
    # The rates of a schedule depend on the epochs of the run.
    free = LEARNED_FREE - (set() if run.name_of("lr_schedule") == "constant" else {"epochs"})
    alike = [each for each in results if each.run.nodes == nodes]
    alike = [each for each in alike if same_but(each.run, free) == same_but(run, free)]
    targets = [each.run.target_accuracy for each in alike if each.run.target_accuracy is not None]
    if not targets:
        return None
    highest = max(targets)  # of several, the one that says most
    own = [each for each in alike if each.run.target_accuracy == highest]
    reached = [each.last_epoch or 0 for each in own if any(point.target_reached for point in each.epochs)]
    return Learned(highest, sorted(reached), len(own))


def read_learned(paths: SweepPaths) -> list[RunResult]:
    """The finished runs of a results directory whose virtual nodes have trained to a target.

    Raises InputError if it has no sweep or no such run.
    """
    found = []
    for key in read_record(paths).keys:
        try:
            result = read_result(paths.run(key).result)
        except UnusableFile:  # the report of that directory names it
            continue
        if result is not None and _has_learned(result):
            found.append(result)
    if not found:
        raise InputError(f"{paths.directory}: no finished run of virtual nodes has a target_accuracy")
    return found


def _has_learned(result: RunResult) -> bool:
    info = result.runtime_info
    has_target = result.run.target_accuracy is not None
    return result.status == "ok" and info.simulates_time and info.trains and has_target
