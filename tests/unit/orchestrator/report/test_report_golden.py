"""Mistakes in the prose and the numbers of a report: what is lost, reworded or that of something else.

The golden files hold each kind of line once, and numbers, of one comparison with all findings and figures.
`make golden` renews them. Review their diff: it shows the change that readers of reports see.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from html import unescape
from io import StringIO
from typing import Any

import pytest

from orchestrator.replay.run import ClusterTime
from orchestrator.report import formats
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.kind import FigureKind, Subject
from orchestrator.report.findings.base import KINDS, Finding
from orchestrator.report.findings.sentences import sentence
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.plots import Plot
from orchestrator.report.render.appendix import environments
from orchestrator.report.render.csv_tables import epoch_lines, result_lines, summary_lines
from orchestrator.report.render.tools import chips, filters
from orchestrator.report.topics import FIGURES, find
from orchestrator.results.csv_text import csv_text
from orchestrator.results.predictions import Asked, Predictions
from orchestrator.results.records import RankResult, RunResult
from orchestrator.sweeps.lab import BlockRecord, Lab
from tests.unit.golden import assert_reviewed
from tests.unit.orchestrator.report.test_report_partitions import with_labels
from tests.unit.orchestrator.report.test_report_predicted import prediction
from tests.unit.orchestrator.report.test_report_times import learned
from tests.unit.orchestrator.report.test_report_topics import (
    KILL,
    NEWER,
    WAITS_FOR_LAST,
    a_node,
    contained,
    disturbed,
    trained,
    waiting,
)
from tests.unit.report_support import (
    ONE_SHOT_ALONE,
    a_comparison,
    a_pipeline,
    a_run,
    around,
    in_cluster_time,
    in_parts,
    on_360_images,
    page_of,
    plots_of,
    repeated,
    text_of,
    verdicts_of,
    windowed,
    with_epochs,
    with_measured_link,
    with_ranks,
)
from trainer.spec.registries import REGISTRIES


def data_parallel() -> list[RunResult]:
    """Strategies, transports and partitioners on three nodes that share two cores."""
    fields: dict[str, Any] = {"nodes": 3, "cores": 2, "steps": 30}
    mpi = {**fields, "transport": "mpi"}
    runs = [
        *in_turn(repeated("serial", around(8.1, 0.02), cores=2, steps=90, bytes_sent=0.0)),
        *repeated("all_reduce", around(5.05, 0.1), accuracy=0.88, communicate_s=1.0, **mpi),
        *repeated(
            "all_reduce", around(9.1, 0.02), accuracy=0.88, communicate_s=4.0, **fields, transport="gloo"
        ),
        *repeated("ddp", around(9.85, 0.1), accuracy=0.88, communicate_s=3.0, **fields),
        *repeated("all_gather", around(6.05, 0.1), accuracy=0.88, communicate_s=1.5, **mpi),
        *repeated("all_reduce", around(4.05, 0.1), accuracy=0.89, nodes=2, cores=2, transport="mpi"),
        *repeated("one_shot", around(0.71, 0.02), "accuracy", own=[0.5, 0.6, 0.7], **mpi),
        *repeated(
            ONE_SHOT_ALONE, around(0.21, 0.02), "accuracy", own=[0.5, 0.6, 0.7], bytes_sent=5e5, **mpi
        ),
        *repeated("one_shot", around(0.41, 0.02), "accuracy", partitioner="contiguous", **mpi),
        *repeated("all_reduce", around(0.81, 0.02), "accuracy", partitioner="contiguous", **mpi),
        *repeated("local_sgd", around(0.8, 0.02, 3), "accuracy", partitioner="contiguous", **mpi),
        a_run("async_parameter_server", staleness=[(0.5, 2), (1.5, 7)], **fields),
        a_run("all_reduce", lr_scaling="linear", accuracy=0.87, **mpi),
        a_run("local_sgd", lr_scaling="linear", accuracy=0.86, **mpi),
    ]
    sampled = {"coverage": 0.7, "overlap": 0.2, "partitioner": "random_sampling"}
    runs.append(a_run("one_shot", accuracy=0.71, seed=0, **sampled, **mpi))
    runs += [
        a_run("one_shot", accuracy=0.712, partitioner=name, **mpi) for name in ("stratified", "quantity")
    ]
    gossip = with_epochs(a_run("gossip", **mpi), consensus_distance=0.25, lr=0.1)
    return [*runs, gossip, with_labels(a_run("local_sgd", **mpi), [[9, 1], [1, 9], [5, 5]])]


def uneven(run: RunResult) -> RunResult:
    """The run, with amounts that differ by rank and seed, so that each mean and maximum is another one."""

    def of(rank: RankResult) -> dict[str, Any]:
        part = 1 + rank.rank / 50 + (5 * run.run.seed % 7) / 100
        seconds = {
            name: (each + 0.01) * part**at for at, (name, each) in enumerate(rank.seconds.items(), 1)
        }
        return {"peak_memory_mb": 300 * part, "test_loss": 0.3 * part, "seconds": seconds}

    changed = with_ranks(run, *map(of, run.ranks))
    return with_epochs(changed, lambda at: {"accuracy": at.accuracy * (1 - at.rank / 50)})


def in_turn(runs: list[RunResult]) -> list[RunResult]:
    """The runs, one minute after another."""
    return [
        on_360_images(run).model_copy(update={"started_at": run.started_at + 60 * number})
        for number, run in enumerate(runs)
    ]


# A loss of a user, whose file is not needed.
TOP_TWO = {
    "name": "mine.py:top_two",
    "imported": {
        "code": "0123456789abcdef",
        "folder": "0123456789abcdef",
        "module": "mine.py",
        "attribute": "top_two",
        "accuracy_is": "the share of samples whose class is among the two most probable",
    },
}


def model_partitioned() -> list[RunResult]:
    """Pipelines with several split points, and the unpartitioned model; one seed without a serial run."""
    whole = in_parts(a_run(lr=0.1, loss=TOP_TWO), [1000], activations=[7000])
    copies = in_parts(
        a_run("all_reduce", nodes=2, train_s=1.8, lr=0.1, loss=TOP_TWO), [1000] * 2, activations=[3000] * 2
    )
    steps = {"relu1": 0.03, "conv2": 0.02, "fc2": 0.05}
    pipelines = [a_pipeline(name, step_s=step_s, lr=0.1, loss=TOP_TWO) for name, step_s in steps.items()]
    default = a_pipeline("flatten", requested=False, step_s=0.04, lr=0.1, loss=TOP_TWO)
    more = a_pipeline(more={"micro_batches": 8}, lr=0.1, loss=TOP_TWO, seed=5)
    return [whole, copies, *pipelines, default, more]


def with_target() -> list[RunResult]:
    return [
        learned("serial", [0.6, 0.7, 0.95]),
        learned("all_reduce", [0.5, 0.95], nodes=2, transport="gloo"),
        learned("ddp", [0.5, 0.95], nodes=3),
        learned("gossip", [0.5, 0.6, 0.7, 0.8], nodes=2, transport="gloo"),
        learned("gossip", [0.5, 0.6, 0.7, 0.8], nodes=3, transport="gloo"),
        learned("gossip", [0.5, 0.95], nodes=3, transport="gloo", seed=1),
    ]


def with_a_slow_node() -> list[RunResult]:
    slow = [waiting(WAITS_FOR_LAST, seed=seed, cpus=0.5, node_speed={-1: 0.5}) for seed in range(5)]
    return [a_run("all_reduce", nodes=3, train_s=5.0, cpus=0.5), *slow]


def in_containers() -> list[RunResult]:
    killed = [a_node("node-1", [0]), a_node("node-2", [1], out_of_memory=2, throttled_s=2.5)]
    return [
        contained("ddp", *killed, nodes=2),
        contained("ddp", nodes=2, seed=1, environment=NEWER),
        contained("hogwild", a_node("node-1", [0, 1]), nodes=2),
    ]


def with_defects() -> list[RunResult]:
    fields: dict[str, Any] = {"nodes": 2, "lr": 0.3}
    run = a_run("all_reduce", seed=7, **fields)
    random = on_360_images(a_run("gossip", accuracy=0.11, **fields))
    return [
        random,
        a_run("ddp", verified=False, flags=["a flag"], **fields),
        a_run("all_reduce", digests=["one", "other"], **fields),
        a_run("all_reduce", transport="memory", **fields),
        run.model_copy(update={"runtime_info": dataclasses.replace(run.runtime_info, one_clock=False)}),
        a_run("ddp", seed=1, status="failed", cause="node 1: gone", **fields),
        a_run("ddp", seed=2, status="timeout", cause="stopped after 9 s", **fields),
    ]


def textbook() -> list[RunResult]:
    return [
        trained("adam", 0.5, 0.25, train_s=4.0),
        trained("textbook_adam", 0.5, 0.250001, train_s=6.0),
        trained("momentum", 0.5, 0.25),
        trained("textbook_momentum", 0.5, 0.26),
    ]


def with_faults() -> list[RunResult]:
    """Five seeds with and without a kill, two seeds with a pause, and a run without counterpart."""
    pause = [{"pause": {"node": 1, "seconds": 2}, "at": {"random": {"steps": [5, 5]}}}]
    found = [
        disturbed(elapsed_s + extra_s, seed=seed, lr=0.4, accuracy=0.9 - extra_s / 100, **fields)
        for extra_s, seeds, fields in (
            (0.0, 5, {}),
            (2.0, 5, {"faults": KILL, "restarts": 1, "checkpoint_epochs": 1, "repeated_steps": 7}),
            (1.0, 2, {"faults": pause, "samples_lost": 4}),
        )
        for seed, elapsed_s in enumerate((8.0, 8.5, 9.0, 8.2, 8.8)[:seeds])
    ]
    return [*found, disturbed(lr=0.4, strategy="ddp", faults=KILL)]


def larger_model() -> list[RunResult]:
    """And a model of experts, on tokens."""
    fields: dict[str, Any] = {"nodes": 3, "cores": 2}
    run = a_run("all_reduce", transport="mpi", communicate_s=2.0, model="mlp", **fields)
    experts = {"dataset": "copy", "model": {"name": "gpt", "experts": 4}, "transport": "mpi", **fields}
    return [
        with_ranks(run, parameters=9000),
        a_run("fsdp", transport="gloo", model="mlp", **fields),
        with_ranks(a_run("all_reduce", **experts), expert_choices=1000, dropped_choices=125),
    ]


def in_two_times() -> tuple[list[RunResult], list[ClusterTime]]:
    """Runs compared in cluster time, with a known and with an unknown error; hogwild has none."""
    results, clusters = [], []
    for lr in (0.6, 0.7):
        fields: dict[str, Any] = {"cores": 2, "lr": lr}
        groups = [
            (repeated("serial", around(8.0), **fields), 8.0),
            (repeated("all_reduce", around(6.0), nodes=4, **fields), 2.2),
        ]
        if lr == 0.6:
            groups.append((repeated("all_reduce", around(4.4), nodes=2, **fields), 4.2))
            results.append(a_run("hogwild", nodes=4, **fields))
        for runs, cluster_s in groups:
            results += runs
            inflation = 1.12 if runs[0].run.nodes > 2 else None
            clusters += [
                in_cluster_time(run, cluster_s, communicate_s=0.1, wait_s=0.1, inflation=inflation)
                for run in runs
            ]
    return results, clusters


def over_links() -> tuple[list[RunResult], list[ClusterTime]]:
    """Two strategies over two links that local processes do not make."""
    results = repeated("serial", around(4.0), lr=0.8)
    clusters = [in_cluster_time(run, value) for run, value in zip(results, around(5.0, 0.1), strict=True)]
    times = {(100, "all_reduce"): 3.0, (100, "gossip"): 2.0, (10, "all_reduce"): 9.0, (10, "gossip"): 9.1}
    for (mbit, strategy), cluster_s in times.items():
        link = {"bandwidth_mbit": mbit, "latency_ms": 1}
        runs = in_turn(repeated(strategy, around(4.0), nodes=2, lr=0.8, link=link, transport="gloo"))
        results += [with_measured_link(run, latency_s=2e-4, bytes_per_s=1e9) for run in runs]
        clusters += [
            in_cluster_time(run, value) for run, value in zip(runs, around(cluster_s, 0.1), strict=True)
        ]
    return results, clusters


def on_many_nodes() -> list[RunResult]:
    fields: dict[str, Any] = {"lr": 0.9, "cores": 64, "noise_scale": True}
    few = repeated("all_reduce", around(8.2, 0.1), nodes=2, transport="gloo", **fields)
    many = repeated("all_reduce", around(1.3, 0.1), nodes=32, transport="gloo", accuracy=0.7, **fields)
    measured = [with_epochs(run, gradient_noise=9.0 + run.run.seed, gradient_signal=0.1) for run in many]
    return [*repeated("serial", around(16.0, 0.1), **fields), *few, *measured]


def predictions() -> Predictions:
    """What runs on few nodes let expect. A sweep has them, or a reason why they are not shown."""
    few = on_many_nodes()[5]
    target = {"accuracy": 0.9, "epochs": [3, 5], "seeds": 3, "seconds": 3.0, "low_s": 2.0, "high_s": 5.0}
    costs = {"cost": 0.5, "low_cost": 0.4, "high_cost": 0.6, "to_target": target}
    return Predictions(
        asked=Asked(nodes=[64, 256], link=None, node_speed=1, price_per_h=2.5),
        made_from={},
        forecasts=[prediction(few, 64, 0.8, **costs), prediction(few, 256, 0.78)],
        refused=[],
        unused=[],
    )


@cache
def golden_comparison() -> Comparison:
    """Every kind of finding, every column of every table, and every figure."""
    one = a_run(train_s=8.0, accuracy=0.9, cores=2, lr=0.2)
    theirs = [
        a_run(ONE_SHOT_ALONE, nodes=nodes, accuracy=accuracy, train_s=train_s, cores=2, lr=0.2, steps=200)
        for nodes, accuracy, train_s in ((1, 0.9, 8.0), (2, 0.3, 4.0), (4, 0.1, 4.0))
    ]
    fixed = a_run("one_shot", nodes=2, accuracy=0.7, train_s=4.0, cores=2, lr=0.2)
    replayed, clusters = in_two_times()
    linked, clusters_of_linked = over_links()
    results = [
        *(*data_parallel(), *replayed, *linked, *larger_model(), *model_partitioned(), *with_target()),
        *(*with_a_slow_node(), *textbook(), *with_faults(), one, *theirs, fixed, *in_containers()),
        *(*with_defects(), *on_many_nodes()),
    ]
    published = [
        {"runs": {"nodes": 1}, "time_s": 80.0, "accuracy": 0.91, "steps_per_epoch": 469, "coverage": 1.0},
        {"runs": {"nodes": 2}, "time_s": 50.0, "accuracy": 0.35, "accuracy_change": -0.56},
        {"runs": {"nodes": 4}, "time_s": 20.0, "accuracy": 0.10},
    ]
    steps = [
        {"block": "theirs"},
        {"block": "fixed", "fixes": "{nodes} different initial weights"},
        {"block": "one", "runs": {"nodes": 1}, "fixes": "averaging"},
    ]
    lab = {
        "title": "About averaging",
        "source": "a lab sheet",
        "hardware": "an old laptop",
        "differs": ["the published times include evaluation"],
        "ablations": [
            {"measure": "accuracy", "nodes": [2], "steps": steps},
            {"measure": "time_to_target_s", "nodes": [2], "steps": steps},
        ],
    }
    blocks: list[dict[str, Any]] = [
        {"name": "one", "keys": [one.key]},
        {"name": "theirs", "keys": [run.key for run in theirs], "published": published},
        {"name": "fixed", "keys": [fixed.key]},
    ]
    four = {"lr": 0.2, "nodes": 4}
    record: dict[str, Any] = {
        "pending": ["ddp-gloo-n4-s0-0"],
        "name": "golden",
        "description": "Every finding, table and figure.",
        "lab": Lab.model_validate(lab),
        "blocks": [BlockRecord.model_validate(block) for block in blocks],
        "questions": [
            {"measure": "accuracy", "compare": four, "against": {"lr": 0.2, "strategy": "serial"}},
            {"measure": "train_s", "compare": four, "against": {"lr": 9.0}},
        ],
    }
    compared = a_comparison(*map(uneven, results), clusters=[*clusters, *clusters_of_linked], **record)
    return windowed(
        dataclasses.replace(
            compared,
            predictions=predictions(),
            predictions_unusable="they were made from other runs",
            real_unusable="../real has no finished runs on real nodes",
        )
    )


@dataclass(frozen=True)
class Golden:
    """The golden comparison, with its findings and its pages. plots: one of each kind."""

    comparison: Comparison
    findings: list[Finding]
    plots: list[Plot]
    markdown: str
    page: str


@cache
def golden() -> Golden:
    """Drawn once for all tests."""
    comparison = golden_comparison()
    findings, plots = find(comparison), one_of_each_kind(comparison)
    text, page = text_of(comparison, findings, plots), page_of(comparison, findings, plots)
    return Golden(comparison, findings, plots, text, page)


def one_of_each_kind(comparison: Comparison) -> list[Plot]:
    """The first figure of each kind: one for each workload takes seconds, and has the same text."""
    drawn: set[str] = set()

    def once(kind: FigureKind) -> FigureKind:
        def draw_first(subject: Subject) -> Chart | None:
            chart = None if kind.name in drawn else kind.draw(subject)
            drawn.update([kind.name] if chart else [])
            return chart

        return dataclasses.replace(kind, draw=draw_first)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "orchestrator.report.plots.FIGURES", {name: once(kind) for name, kind in FIGURES.items()}
        )
        return plots_of(comparison)


# Findings are as in report.md, values as in numbers.txt, and runs and strategies are in no golden file.
LEFT_OUT = (
    r'<dl class="findings">.*?</dl>|<details class="(?:run|of-runs)".*?</details>'
    r"|<(svg|style|script|pre|ul|tbody|title)\b.*?</\1>"
)
BLOCKS = r"<(?:h1|h2|h3|p|li|dt|dd|th|td|caption|figure|figcaption|summary|a)\b"


def lines_of_page(page: str) -> Iterator[str]:
    """The text of a page by block."""
    for block in re.split(BLOCKS, re.sub(LEFT_OUT, "", page, flags=re.S)):
        yield " ".join(unescape(re.sub(r"<[^>]*>", "", f"<{block}")).split())


COMPONENTS = "|".join(name for kind in ("strategy", "partitioner") for name in REGISTRIES[kind].entries)
# A configuration, and several of them; numbers, and ranges of them; run keys.
CONFIGURATION = (
    rf"\b(?:{COMPONENTS})\b(?: \w+=\S+)*(?: (?:over|·) \w+)?(?: with (?:{COMPONENTS}))?(?: on \d+ nodes?)?"
)
SHAPES = (
    (r"`[^`]*`(?:, `[^`]*`)*", "KEYS"),
    (CONFIGURATION, "NAME"),
    (r"[+−±]?\d[\d,.]*(?:e-\d+)?(?: (?:µs|ms|s|B|kB|MB)\b)?", "0"),
    (r"0%?(?:–| to )0%?", "0"),
    (r"NAME(?: \([^()]*\))?(?:(?:, | and )NAME(?: \([^()]*\))?)+", "NAME"),
)


def each_kind_once(lines: Iterable[str]) -> Iterator[str]:
    """The lines of which a sentence or a cell differs from all above in more than numbers and names."""
    seen: set[str] = set()
    heads: list[str] = []
    for line in lines:
        cells = line.strip("| ").split(" | ") if line.startswith("|") else []
        heads = heads or cells if cells else []
        parts = cells if heads is cells and cells else re.split(r"(?<=\.) |; |: ", line)
        if cells and heads is not cells:
            parts = [f"{head}: {cell}" for head, cell in zip(heads, cells, strict=True)]
        shapes = set(map(shape_of, parts)) - {""}
        if shapes - seen and not set(line) <= set("|-: "):
            yield line
        seen |= shapes


def shape_of(text: str) -> str:
    for pattern, kind in SHAPES:
        text = re.sub(pattern, kind, text)
    return text.strip()


def numbers(found: Golden) -> Iterator[str]:
    """Those of the first finding of each kind, of verdicts, and of each column of CSV files."""
    for finding in {finding.kind: finding for finding in reversed(found.findings)}.values():
        yield f"{finding.kind}: {written(finding.data)} {len(finding.rows)} runs"
    compared, no_lab = found.comparison, {"lab": None}
    unpublished = dataclasses.replace(compared, record=compared.record.model_copy(update=no_lab))
    for verdict in (*verdicts_of(compared)[:1], *verdicts_of(unpublished)[:3]):
        yield f"verdict: {written({**dataclasses.asdict(verdict), 'workload': ''})}"
    for lines in (summary_lines(compared), result_lines(compared), epoch_lines(compared)):
        for name, *values in zip(*csv.reader(StringIO(csv_text(*lines))), strict=True):
            yield written({name: [*dict.fromkeys(map(rounded, values))][:VALUES]})
    yield from map(str, (*filters(compared), *chips(compared.groups), *environments(compared)))


VALUES = 12  # of a column


def rounded(value: str) -> str:
    return f"{float(value):.5g}" if re.fullmatch(r"-?\d+\.\d+(e-\d+)?", value) else value


def written(each: Any) -> str:
    """As JSON, with five digits of numbers, the first of compared runs, and the first two comparisons."""
    return json.dumps(shortened(each), ensure_ascii=False)


def shortened(each: Any) -> Any:
    match each:
        case float():
            return float(f"{each:.5g}") if abs(each) > 1e-9 else 0
        case {"left": [first, _, *_]}:
            return shortened({**each, "left": [first], "right": each["right"] and each["right"][:1]})
        case dict():
            return {str(name): shortened(value) for name, value in each.items()}
        case list() | tuple():
            return [*map(shortened, each[:2] if each and isinstance(each[0], dict) else each)]
    return each


def lines_of_markdown(found: Golden) -> list[str]:
    before, _, _ = found.markdown.partition("## Strategies\n")  # from the docstrings of strategies
    return [*cleaned(before.splitlines())]


def only_on_the_page(found: Golden) -> Iterator[str]:
    """The lines of the page of which Markdown has no line of the same kind."""
    text = lines_of_markdown(found)
    both = each_kind_once([*text, *cleaned(lines_of_page(found.page))])
    yield from [*both][len([*each_kind_once(text)]) :]


FILES: dict[str, Callable[[Golden], Iterator[str]]] = {
    "report.md": lambda found: each_kind_once(lines_of_markdown(found)),
    "report.txt": only_on_the_page,
    "numbers.txt": lambda found: cleaned(numbers(found)),
}


def cleaned(lines: Iterable[str]) -> Iterator[str]:
    """Lines with plain spaces and without the hashes of run keys, which depend on defaults."""
    return (re.sub(r"-[0-9a-f]{8}\b", "", line.replace(formats.JOIN, " ")) for line in lines)


@pytest.mark.parametrize("name", FILES)
def test_the_golden_comparison_has_every_finding_and_figure_with_its_text_and_numbers(name: str) -> None:
    # A disturbed sweep has most of its runs beside other load.
    assert {finding.kind for finding in golden().findings} == set(KINDS) - {"disturbed"}
    assert {plot.kind.name for plot in golden().plots} == set(FIGURES)
    assert_reviewed(name, "\n".join([*FILES[name](golden()), ""]))


def test_a_sentence_follows_from_the_data_in_findings_json() -> None:
    """A number that is only in the text, or an object that JSON changes."""
    for finding in golden().findings:
        data = json.loads(json.dumps(finding.data, allow_nan=False))
        assert sentence(finding.kind, data) == finding.text
