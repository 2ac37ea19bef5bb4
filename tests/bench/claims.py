"""Claims: what reports on simulated sweeps claim and choose, whose true times and accuracies are known.

Each simulation draws the runs of serial and four strategies on two nodes, and passes them through the whole
pipeline of a report. Times differ between sessions, spreads over seeds differ between configurations, and
accuracies are those on 360 images. The noise is that of the quickstart with 5 epochs, as it was, and with
10 epochs, and what makes inference hard: spreads that differ tenfold, drift, outliers, and configurations
that a sweep dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median

import numpy as np

from orchestrator.report.findings.decide import Claims, Compared
from orchestrator.report.metrics.estimates import BETWEEN_SESSIONS
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.quantities import Q
from orchestrator.report.statistics.chances import Tolerance
from orchestrator.report.statistics.contrasts import MIN_SEEDS
from orchestrator.report.topics import asked_by
from orchestrator.report.verdict import verdicts
from orchestrator.report.verdict.candidates import candidates
from orchestrator.report.verdict.standing import standing
from orchestrator.results.records import RunResult
from orchestrator.sweeps.stages import DECIDED, Stages, stages
from tests.unit.report_support import a_comparison, a_run, on_360_images, only_view, with_ranks

REPORTS = 300  # of each share
IMAGES = 360
TOLERANCE = Tolerance()
STRATEGIES = ("serial", "all_reduce", "local_sgd", "gossip", "one_shot")
OUTLIERS_DOF = 3  # of Student's t

Effects = Mapping[str, tuple[float, float]]  # by strategy: the factor of its time, what its accuracy gains


@dataclass(frozen=True)
class Cell:
    """How the runs of simulated sweeps vary.

    Attributes:
        seeds: of each configuration; of a staged sweep, at most.
        accuracy, time: standard deviations over seeds: of accuracies, and of logarithms of times.
        differs: the differences of accuracy and time that a report should find.
        unequal: the largest of these deviations / the smallest; None: drawn, with 30 % around the median.
        of_seed: the standard deviation of what a seed adds to all accuracies.
        drift: how much longer the last run takes than the first, as a share.
        outliers: whether values have those of Student's t.
        staged: whether seeds are added until the choice is decided.
        dropped: how many strategies get no more seeds after the first five: those measured least accurate.
    """

    name: str
    seeds: int
    accuracy: float = 0.008
    time: float = 0.04
    differs: tuple[float, float] = (-0.02, 0.9)
    unequal: float | None = None
    of_seed: float = 0.0
    drift: float = 0.0
    outliers: bool = False
    staged: bool = False
    dropped: int = 0


CELLS = (
    Cell("5 epochs", 5, 0.03, 0.05, (-0.05, 0.8)),
    Cell("10 epochs", 5),
    Cell("10 epochs", 8),
    Cell("10 epochs", 20),
    Cell("tenfold spreads", 5, unequal=10),
    Cell("tenfold spreads", 8, unequal=10),
    Cell("outliers", 5, outliers=True),
    Cell("drift of 20%", 5, drift=0.2),
    Cell("staged", 12, of_seed=0.008, staged=True),
    Cell("staged, drift of 20%", 12, of_seed=0.008, drift=0.2, staged=True),
    Cell("staged, tenfold", 12, of_seed=0.008, unequal=10, staged=True),
    Cell("two dropped", 12, dropped=2),
    Cell("two dropped, seeds", 12, of_seed=0.008, dropped=2),
    Cell("two dropped, tenfold", 12, of_seed=0.008, unequal=10, dropped=2),
)
TRADE = Cell("four equal rivals", 8, 0.008, 0.02)
LESS_ACCURATE = (-0.009, -0.011)


def main() -> None:
    print(
        f"shares of {REPORTS} reports; of choices those that are wrong; {TOLERANCE.accuracy:.0%} tolerated"
    )
    print(f"{'':27}false claims     found against serial")
    print(f"{'':27}shown  likely    time  accuracy   choose  wrong   probably  wrong")
    for cell in CELLS:
        shown, likely = false_claims(cell)
        time, accuracy = power(cell)
        chosen = "   ".join(f"{share:6.0%} {wrong:6.1%}" for share, wrong in choices(cell))
        claimed = f"{shown:6.1%} {likely:6.1%}  {time:6.0%} {accuracy:6.0%}"
        print(f"{cell.name:20} {cell.seeds:3}  {claimed}      {chosen}", flush=True)
    print("a choice that is 20% faster, and less accurate by")
    for lost in LESS_ACCURATE:
        print(f"  {-lost * 100:.1f} points: {trade(lost)}", flush=True)


def false_claims(cell: Cell) -> tuple[float, float]:
    """The shares of reports on equals that have a claim called shown, and one called likely."""
    shown, likely = [], []
    for comparison in sweeps(cell, 1):
        claims = asked_by(comparison).decided()
        levels = {each.level for each in claims.all if each.decided}
        ranked = any(each for both in claims.extremes.values() for each in both)
        shown.append(bool("shown" in levels or ranked))
        likely.append("likely" in levels)
    return fmean(shown), fmean(likely)


def power(cell: Cell) -> tuple[float, float]:
    """The shares of reports that claim a difference of time from serial, and one of accuracy."""
    gain, factor = cell.differs
    time, accuracy = [], []
    for comparison in sweeps(cell, 2, {"all_reduce": (factor, 0.0), "one_shot": (1.0, gain)}):
        claims = asked_by(comparison).decided().all
        time.append(any(is_found(each, "all_reduce", "train_s") for each in claims))
        accuracy.append(any(is_found(each, "one_shot", Q.accuracy.name) for each in claims))
    return fmean(time), fmean(accuracy)


def is_found(each: Compared, strategy: str, quantity: str) -> bool:
    """Whether this is the comparison with serial, and the difference is claimed."""
    sides = {each.left.strategy, each.right.strategy}
    return each.quantity.name == quantity and sides == {strategy, "serial"} and each.verdict == "less"


def choices(cell: Cell) -> list[tuple[float, float]]:
    """What is chosen among random times and accuracies: the shares of what is stated and of what is called
    probable, each with the share of it that is wrong.
    """
    rng, right = np.random.default_rng(3), {"Choose": list[bool](), "Probably": list[bool]()}
    for _ in range(REPORTS):
        effects = {name: (np.exp(rng.normal(0, 0.15)), rng.normal(0, 0.015)) for name in STRATEGIES}
        kind, chosen = choice(a_sweep(rng, cell, effects))
        if kind in right:
            right[kind].append(is_right(chosen, effects))
    return [(len(each) / REPORTS, each.count(False) / max(1, len(each))) for each in right.values()]


def choice(comparison: Comparison) -> tuple[str, str]:
    """How the verdict begins, and the strategy that is most probably right."""
    (verdict,) = verdicts(comparison, Claims())
    kind = verdict.headline.split()[0].replace("Stay", "Choose")
    return kind, candidates(only_view(comparison))[0].group.strategy


def is_right(name: str, effects: Effects) -> bool:
    """Whether a choice is within the tolerance of the best."""
    best = max(gain for _, gain in effects.values())
    accurate = {each: time for each, (time, gain) in effects.items() if best - gain <= TOLERANCE.accuracy}
    return name in accurate and accurate[name] <= min(accurate.values()) * (1 + TOLERANCE.time)


def trade(lost: float) -> str:
    """What is said of a choice that is less accurate than its equal rivals, and faster."""
    effects = dict.fromkeys(STRATEGIES, (1.0, 0.0)) | {"all_reduce": (0.8, lost)}
    chances, said = [], Counter[str]()
    for comparison in sweeps(TRADE, 4, effects):
        chances += [
            each.speed.probability
            for each in candidates(only_view(comparison))
            if each.group.strategy == "all_reduce"
        ]
        kind, chosen = choice(comparison)
        said[f"{kind.lower()} {'right' if is_right(chosen, effects) else 'wrong'}"] += 1
    kinds = ("choose right", "choose wrong", "probably right", "probably wrong")
    shares = ", ".join(f"{kind} {said[kind] / REPORTS:.0%}" for kind in kinds)
    return f"chance {median(chances):.2f} in the median; {shares}"


def sweeps(cell: Cell, seed: int, effects: Effects | None = None) -> Iterator[Comparison]:
    rng = np.random.default_rng(seed)
    for _ in range(REPORTS):
        yield a_sweep(rng, cell, effects or {})


def a_sweep(rng: np.random.Generator, cell: Cell, effects: Effects) -> Comparison:
    """The runs of a sweep; of a staged one, those that it executes until its choice is decided."""
    runs = drawn(rng, cell, effects)
    if cell.dropped:
        early = {
            name: fmean(run.ranks[0].accuracy or 0.0 for run in runs[name][:MIN_SEEDS]) for name in runs
        }
        for name in sorted(STRATEGIES[1:], key=early.__getitem__)[: cell.dropped]:
            runs[name] = runs[name][:MIN_SEEDS]
    if not cell.staged:
        return a_comparison(*(run for name in STRATEGIES for run in runs[name]))
    executed, dropped = dict.fromkeys(STRATEGIES, 0), set[str]()
    for count in stages(cell.seeds):
        executed |= dict.fromkeys({*STRATEGIES} - dropped, count)
        results = [run for name, number in executed.items() for run in runs[name][:number]]
        comparison = a_comparison(*results, stages=Stages(ended=DECIDED))
        stands = standing(comparison)
        if stands.decided:
            break
        dropped = {name for name in STRATEGIES if runs[name][0].key in stands.hopeless}
    return comparison


def drawn(rng: np.random.Generator, cell: Cell, effects: Effects) -> dict[str, list[RunResult]]:
    """The runs of each strategy, by seed, with these differences from 4 s and 93 %."""
    number = len(STRATEGIES)
    if cell.unequal:
        spreads = rng.permutation(np.geomspace(cell.unequal**-0.5, cell.unequal**0.5, number))
    else:
        spreads = np.exp(rng.normal(0, 0.3, number))
    factors, gains = np.transpose([effects.get(name, (1.0, 0.0)) for name in STRATEGIES])
    shape = cell.seeds, number
    accuracies = gains + cell.accuracy * spreads * noise(rng, cell, shape)
    accuracies += 0.93 + cell.of_seed * rng.standard_normal((cell.seeds, 1))
    # The runs of a seed are executed in a random order, one seed after the other.
    at = (np.arange(cell.seeds)[:, None] + rng.permuted(np.indices(shape)[1], axis=1) / number) / cell.seeds
    logs = np.log(4 * factors) + BETWEEN_SESSIONS * rng.standard_normal(number)
    logs = logs + cell.time * spreads * noise(rng, cell, shape) + np.log1p(cell.drift) * at
    return {
        name: [
            a_timed_run(name, seed, accuracies[seed, each], logs[seed, each], at[seed, each])
            for seed in range(cell.seeds)
        ]
        for each, name in enumerate(STRATEGIES)
    }


def noise(rng: np.random.Generator, cell: Cell, shape: tuple[int, int]) -> np.ndarray:
    """Draws of variance 1."""
    if cell.outliers:
        return rng.standard_t(OUTLIERS_DOF, shape) * (1 - 2 / OUTLIERS_DOF) ** 0.5
    return rng.standard_normal(shape)


def a_timed_run(strategy: str, seed: int, accuracy: float, log_time: float, at: float) -> RunResult:
    """A run on 360 images. at: when it starts, as a share of the sweep."""
    run, took = a_run_of(strategy, seed), float(np.exp(log_time))
    reached = round(IMAGES * float(np.clip(accuracy, 0, 1))) / IMAGES
    started_at = run.started_at + 1000 * float(at)
    return with_ranks(run, train_s=took, work_cpu_s=took, accuracy=reached).model_copy(
        update={"started_at": started_at}
    )


@cache
def a_run_of(strategy: str, seed: int) -> RunResult:
    """A run as `a_timed_run` changes it. To validate its spec takes longer than that."""
    run = on_360_images(a_run(strategy, nodes=1 if strategy == "serial" else 2, seed=seed))
    assert run.run.seed == seed
    return run
