"""Samples: those that nodes trained on, and whether they are those of the partition."""

from __future__ import annotations

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.kind import FigureKind, Subject
from orchestrator.report.figures.label_maps import LabelMap, label_maps
from orchestrator.report.figures.sentences import Shown
from orchestrator.report.formats import bits, count, percent
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.data_partition import (
    SKEWED_BITS,
    partition_summary_of,
    replica_ranks,
    representatives,
)
from orchestrator.report.topics.runs import of_runs
from orchestrator.report.topics.topic import Findings, Topic

MANY_MAPS = 8  # of more maps, those of the compared number of nodes are drawn


def not_verified(comparison: Comparison) -> Findings:
    """Runs that did not train on the samples of the partition."""
    return of_runs("not_verified", [row for row in comparison.rows if row.verified is False])


def replicas_differ(comparison: Comparison) -> Findings:
    """Runs that ended with different replicas."""
    return of_runs("replicas_differ", [row for row in comparison.rows if row.replicas_equal is False])


def maps(subject: Subject) -> Chart | None:
    """A map for each partition; of many, those at the view's shape. None without certificates."""
    view = subject.view
    found = [
        LabelMap(row.partitioner_label, row.shape, summary, replica_ranks(row), row.seed)
        for row in representatives(view.groups)
        if (summary := partition_summary_of(row))
    ]
    if len(found) > MANY_MAPS:
        found = [each for each in found if each.shape == view.shape] or found
    return label_maps(found) if found else None


def _skew(shown: Shown) -> str:
    """`With shards, 4 nodes together saw 50.0% of the set in epoch 1; …`"""
    coverage, divergence = Q.coverage, Q.js_divergence_mean_bits
    groups = [
        group
        for group in shown.view.candidates
        if coverage.sample(group) and divergence.sample(group) and group.first.run.strategy.rounds is None
    ]
    if not groups:
        return ""
    least, most = min(groups, key=coverage.mean_of), max(groups, key=divergence.mean_of)
    share, skew = coverage.mean_of(least), divergence.mean_of(most)
    nodes, mean = (
        count(shown.view.shape.nodes, "node"),
        f"{bits(skew)} bits in the mean over nodes and seeds",
    )
    seen = (
        f"{nodes} together saw the whole training set in epoch 1"
        if share == 1
        else f"With {least.partitioner_label}, {nodes} together saw {percent(share)} of the set in epoch 1"
    )
    if skew < SKEWED_BITS:
        return f"{seen}; their labels are nearly those of the whole set: they differ by {mean}."
    skewed = "skewed most" if len({group.partitioner_label for group in groups}) > 1 else "skewed"
    return f"{seen}; labels are {skewed} with {most.partitioner_label}, by {mean}."


TOPIC = Topic(
    sweep_rules=(not_verified, replicas_differ),
    figures=(
        FigureKind(
            "labels",
            "data",
            "The samples that nodes trained on, in the run of the lowest seed for each partitioner and "
            "number of nodes; of many maps, those of the number of nodes at which strategies are "
            "compared. Colours compare between maps of equally many nodes; an empty cell is no sample. JS "
            "divergence (bits) and EMD, the earth mover's distance (0 to 2), are between the labels of a "
            "node and of the whole set: mean and maximum over nodes.",
            maps,
            otherwise=_skew,
            links_matter=False,
        ),
    ),
)
