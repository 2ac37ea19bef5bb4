"""The terms of the report: their definitions, and where a text uses them.

A term is marked where a section first uses it: a link to the glossary at the end of the page, which page.js
shows as a tooltip. On paper it has the number of its definition.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from markupsafe import Markup, escape

from orchestrator.report.verdict import RULE


@dataclass(frozen=True)
class Term:
    """An entry of the glossary. words: regular expressions of what a text calls it, if not by its title."""

    title: str
    definition: str
    words: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """For the id of its definition."""
        return "term-" + re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


TERMS = (
    Term("Verdict", RULE, ("verdicts?",)),
    Term(
        "Node, rank",
        (
            "A rank is a process that trains. A node has one rank unless stated otherwise; 2 × 4 means "
            "two nodes with four ranks each. Numbers per node then hold for each rank."
        ),
        ("ranks?",),
    ),
    Term(
        "Configuration",
        "All runs that differ only in their seed.",
        ("configurations?",),
    ),
    Term(
        "Workload",
        (
            "Dataset, model, optimizer, learning rate, batch size (per rank or in all), augmentation, "
            "epochs, target accuracy, threads, node limits, links, runtime and injected faults. Times "
            "and accuracies are compared only between runs of equal workloads."
        ),
        ("workloads?",),
    ),
    Term(
        "Global batch",
        (
            "The samples that all replicas take in a step. “96 in updates of 32”: each update of a "
            "model uses the 32 samples of one replica."
        ),
        ("global batch(?:es)?",),
    ),
    Term(
        "Unequal conditions",
        (
            "Conditions other than the workload that compared configurations do not share. A difference"
            " between configurations may come from them."
        ),
    ),
    Term(
        "Wall time",
        (
            "The time that training took on this machine: from the first step of the slowest rank to "
            "its last exchange, without start-up, evaluation and teardown."
        ),
    ),
    Term(
        "Speedup",
        (
            "Time of the serial run / time of this run, on one clock, for the same workload and seed. "
            "Means of times and ratios over seeds are geometric."
        ),
        ("speedups?",),
    ),
    Term("Efficiency", "Speedup / ranks."),
    Term(
        "CPU-time speedup",
        (
            "Serial CPU time / CPU time, both without communication and waiting: the speedup if every "
            "rank had a core of its own and communication were free. Pipeline stages still have the "
            "bubble of the formula. Use it where nodes share cores."
        ),
    ),
    Term(
        "Cluster time",
        (
            "The time that training takes if every rank has a core of its own, replayed from the trace "
            "of its work and exchanges. It replaces wall time where nodes share or lack cores, and where "
            "links were requested and not enforced."
        ),
        ("cluster times?",),
    ),
    Term(
        "Wall / cluster time",
        (
            "How many times as long the run took on this machine, mostly because ranks shared cores "
            "with each other or with other programs. Where links were requested and not enforced, "
            "cluster time contains them and wall time does not."
        ),
    ),
    Term(
        "CPU time per sample (of serial)",
        (
            "Above 1: what a strategy computes beside a serial step, and what ranks lose to each other "
            "in shared caches and memory. Cluster time contains the former, and is corrected for the "
            "latter where comparable runs had a core for each rank."
        ),
        (r"CPU time per sample(?: \(of serial\))?",),
    ),
    Term(
        "Time to target accuracy",
        (
            "Wall time to the end of the epoch in which test accuracy reached the target. If several "
            "consecutive epochs were required, the first of them counts. Runs that ended after "
            "different numbers of epochs have no speedup."
        ),
    ),
    Term(
        "Phases",
        (
            "“data”: loading batches. “compute”: forward, backward and optimizer. “communicate”: moving"
            " bytes. “wait”: waiting for other ranks. “cpu_contention”: ready to run without a core, "
            "because another process used it or the CPU quota was used up. “checkpoint”: writing "
            "checkpoints. “other”: the rest."
        ),
        (
            "phases?",
            "cpu_contention",
        ),
    ),
    Term(
        "Exchange",
        "Communication and waiting together.",
        (
            "exchange share",
            "exchange per step",
            "exchanges?",
        ),
    ),
    Term(
        "Waiting",
        "The time of a rank in exchanges before the rank that enters last, or before a message arrives.",
        ("waiting", "waited", "wait"),
    ),
    Term(
        "Straggler",
        (
            "The rank that the others wait for. It is reported if it causes more than an even share of the "
            "waiting in all likelihood, and at least 5% of the training time."
        ),
        ("stragglers?",),
    ),
    Term(
        "Payload",
        "The bytes of gradients, weights and activations that are sent, without headers of the network.",
    ),
    Term(
        "Peak memory",
        (
            "Of a rank: the most memory that its process had, with the interpreter, torch and the samples. "
            "Of a container: what counts against its limit, with cached files."
        ),
    ),
    Term(
        "Throttled",
        "The seconds in which the CPU quota stopped a container, summed over cores.",
    ),
    Term(
        "Range over seeds",
        (
            "From the lowest to the highest seed. A range says how far the seeds lie apart, and nothing"
            " about chance."
        ),
    ),
    Term(
        "Interval",
        (
            "Behind a difference or a ratio, in parentheses: it contains the true value with a "
            "probability of at least 95%. It is wider the more comparisons a report makes. A difference is "
            "claimed only if its interval excludes 0 (a ratio: 1) and each side has five seeds. Without a "
            "further word it is shown: at most 5% of reports on equal configurations show any difference. "
            "“Likely”: of these claims, on average at most 5% are false. “Equal within the tolerance”: the "
            "whole interval is of differences that do not matter. Otherwise it is “undecided”. Intervals "
            "are about new seeds, on this test set and this machine, and those of times also about a sweep "
            "that is repeated later."
        ),
        (
            "95% intervals?",
            "intervals?",
            "likely",
            "undecided",
        ),
    ),
    Term(
        "Speedup, 95% interval",
        (
            "Of the geometric mean over seeds, for one configuration. The intervals of findings hold "
            "together and are wider."
        ),
    ),
    Term(
        "Accuracy, 95% interval",
        "For one configuration: with new seeds, and on new samples like those of the test set.",
    ),
    Term(
        "Front of accuracy and time",
        "The configurations that no other one beats in one and equals in the other.",
        (
            "front of accuracy and time",
            "fronts?",
        ),
    ),
    Term(
        "Coverage, overlap",
        "The shares of the training set that were on at least one node, and on at least two nodes.",
        (
            "coverage",
            "overlap",
        ),
    ),
    Term(
        "Certificate",
        (
            "The samples that each node trained on, as its ranks recorded them. Verified: in every "
            "epoch these are the samples that the partition assigns."
        ),
        (
            "certificates?",
            "verified",
        ),
    ),
    Term(
        "JS divergence",
        (
            "The Jensen–Shannon divergence between the labels of a node and those of the whole training"
            " set, in bits: 0 is equal, 1 is disjoint."
        ),
    ),
    Term(
        "Earth mover's distance, EMD",
        (
            "The sum over labels of |p − q|, for the label's share p on the node and q in the whole "
            "set: 0 is equal, 2 is disjoint, 1.8 is one of ten labels per node."
        ),
        (
            "earth mover's distance",
            "EMD",
        ),
    ),
    Term(
        "Bubble",
        (
            "The share of wall time that pipeline stages wait, mean over ranks. The formula assumes "
            "stages of equal length and free communication."
        ),
        ("bubbles?",),
    ),
    Term(
        "Load balance",
        "Mean / maximum busy time of the ranks; 100% if all have equally much to do.",
    ),
    Term(
        "Staleness",
        ("Updates by other workers between a worker’s pull of the weights and its push of a gradient."),
    ),
    Term(
        "Consensus distance",
        "How far the replicas’ weights are from their mean: the root mean square over replicas.",
    ),
)

_BY_WORD = [(word, term) for term in TERMS for word in term.words or (re.escape(term.title),)]
_BY_WORD.sort(key=lambda pair: len(pair[0]), reverse=True)  # the longest name that fits a text
_WORDS = re.compile("|".join(rf"\b({word})(?!\w)" for word, _ in _BY_WORD), re.IGNORECASE)


class SectionTerms:
    """Marks the terms in the texts of one section, each once."""

    def __init__(self) -> None:
        self._marked: set[Term] = set()

    def mark(self, text: str) -> Markup:
        """The text, escaped, with its terms as links to their definitions."""
        parts, end = [], 0
        for found in _WORDS.finditer(text):
            _, term = _BY_WORD[(found.lastindex or 1) - 1]
            if term in self._marked:
                continue
            self._marked.add(term)
            parts += [escape(text[end : found.start()]), _link(term, found.group())]
            end = found.end()
        return Markup("").join([*parts, escape(text[end:])])


def _link(term: Term, text: str) -> Markup:
    number = TERMS.index(term) + 1
    return Markup('<a class="term" href="#{0}" aria-describedby="{0}" data-note="{1}">{2}</a>').format(
        term.key, number, text
    )
