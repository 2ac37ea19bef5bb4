"""Mistakes in the pages of a report: text from files that becomes markup, links without targets, runs,
columns and numbers that are lost or written wrongly, sweeps without a report, and intervals of speedups."""

from __future__ import annotations

import csv
import json
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from itertools import pairwise
from math import exp, sqrt
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from orchestrator.report import formats
from orchestrator.report.findings.decide import speedup_intervals
from orchestrator.report.metrics.estimates import BETWEEN_SESSIONS
from orchestrator.report.model.comparison import read_comparison
from orchestrator.report.quantities import QUANTITIES
from orchestrator.report.render import markdown, tree
from orchestrator.report.render.columns import ORDER, columns_of
from orchestrator.report.render.csv_tables import (
    DICTIONARY,
    RESULTS,
    column_lines,
    epoch_lines,
    result_lines,
    summary_lines,
)
from orchestrator.report.render.runs import missing_runs, repeat_command
from orchestrator.report.render.summary import STATES, one_line
from orchestrator.report.render.terms import TERMS
from orchestrator.report.topics import asked_by, find
from orchestrator.results.csv_text import csv_text
from orchestrator.results.store import SweepPaths, write_atomic
from orchestrator.sweeps.lab import BlockRecord, Lab
from orchestrator.sweeps.load import load_sweep
from tests.unit.orchestrator.report.test_report_golden import golden_comparison
from tests.unit.report_support import (
    FAILED,
    FAST,
    ONE_SHOT_ALONE,
    SERIAL,
    a_comparison,
    a_pipeline,
    a_record,
    a_run,
    around,
    cells,
    csv_lines,
    finding_of,
    in_cluster_time,
    page_of,
    plots_of,
    repeated,
    text_of,
    verdicts_of,
    write_page,
    write_sweep,
)
from trainer.spec.run_spec import RunSpec

# The page


class Page(HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = ""
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.tags = [tag for tag, _ in self.elements]
        self.ids = [attributes["id"] for _, attributes in self.elements if attributes.get("id")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


EVIL = '<script>alert(1)</script> | `tick` [link](http://example.com) "quoted'
GONE = a_run("ddp", nodes=2, **FAILED)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> SweepPaths:
    """A sweep with ok, failed and pending runs, and with markup in every string that comes from a file."""
    failed = a_run("ddp", nodes=4, status="failed", cause=f"node 1: {EVIL}")
    directory = tmp_path_factory.mktemp("report")
    write_atomic(SweepPaths(directory).plots / "old.svg", "<svg/>")
    return write_sweep(
        directory,
        *repeated("serial", [8, 8.1]),
        *repeated("all_reduce", [5, 5.1], nodes=4, cores=2, flags=[f"flag {EVIL}"]),
        *repeated("one_shot", [3, 3.1], nodes=4, own=[0.5, 0.6, 0.7, 0.8], partitioner="random_sampling"),
        failed.model_copy(update={"log": 'node "1" ?.log'}),
        pending=["ddp-gloo-n4-s9-<script>"],
        name=f"name {EVIL}",
        description=f"what {EVIL}",
        source=f"name: {EVIL}\n",
        overrides=[f"--set {EVIL}"],
        environment={f"key {EVIL}": f"value {EVIL}", "inner": {"deep": [EVIL, 1]}, "none": None},
    )


@pytest.fixture(scope="module")
def page(report: SweepPaths) -> Page:
    return Page(report.html.read_text())


@pytest.mark.slow
def test_the_page_escapes_text_from_files_and_loads_nothing(report: SweepPaths, page: Page) -> None:
    assert page.tags.count("script") == 4  # ours
    assert page.text.count(EVIL) >= 8
    assert {"link", "img", "iframe", "object", "base"}.isdisjoint(page.tags)
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]
        assert {"src", "srcset", "data", "action"}.isdisjoint(attributes)
        loaded = [] if tag == "a" else [attributes.get(name) or "#" for name in ("href", "xlink:href")]
        assert all(source.startswith("#") for source in loaded)
    text = report.html.read_text()
    assert not re.search(r"@import|url\((?!#)", text.partition("</style>")[0])
    assert "default-src 'none'" in text
    figures = {file.stem for file in report.plots.glob("*.svg")}
    assert page.tags.count("svg") == len(figures) == 8  # those of an earlier report are removed
    comparison = read_comparison(report)
    shown = [replace(plot, note=EVIL) for plot in plots_of(a_comparison(SERIAL, FAST))[:1]]
    elements = Page(page_of(comparison, [], shown)).elements
    (label,) = [attributes["aria-label"] for tag, attributes in elements if tag == "svg"]
    assert (label or "").endswith(EVIL)


def test_links_have_targets_and_ids_are_unique(report: SweepPaths, page: Page) -> None:
    rows = read_comparison(report).rows
    links = [attributes.get("href") or "" for tag, attributes in page.elements if tag == "a"]
    assert len(page.ids) == len({*page.ids})
    described = {attributes.get("aria-describedby") for _, attributes in page.elements} - {None}
    inside = {unquote(link[1:]) for link in links if link.startswith("#")}
    assert inside | described | {row.key for row in rows} | {term.key for term in TERMS} <= {*page.ids}
    files = {unquote(link) for link in links if not link.startswith("#")}
    assert {file.partition("/")[0] for file in files} <= {row.key for row in rows}
    assert f'{rows[-1].key}/node "1" ?.log' in files
    for link in re.findall(r"\]\((plots/[^)]+)\)", report.markdown.read_text()):
        assert (report.directory / link).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "results",
    [
        [],
        [GONE],
        [a_run("fault_injection", accuracy=None, train_s=0.0)],
        [a_run(train_s=0.0), a_run("ddp", nodes=2, train_s=0.0, accuracy=0.0)],
        [SERIAL, *(a_pipeline(point) for point in ("conv2", "flatten", "fc1"))],
    ],
    ids=["nothing", "all failed", "only a fault_injection", "no time at all", "partitioned"],
)
def test_every_sweep_has_a_report(tmp_path: Path, results: Any) -> None:
    paths = write_page(tmp_path, *results, pending=["ddp-gloo-n4-s0-0"])
    keys = read_comparison(paths).record.keys
    assert {*keys} <= {*Page(paths.html.read_text()).ids}
    assert [line["key"] for line in csv_lines(read_comparison(paths))] == [*keys]
    assert "`ddp-gloo-n4-s0-0`" in paths.markdown.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        json.dumps({**SERIAL.model_dump(), "spec": {"strategy": "telepathy"}}),
        SERIAL.model_dump_json().replace('"wall_s":', '"wall_s": NaN, "_":'),
    ],
    ids=["cut off", "unknown strategy", "not a number"],
)
def test_an_unusable_result_is_a_row_with_a_cause(tmp_path: Path, text: str) -> None:
    paths = SweepPaths(tmp_path)
    write_atomic(paths.record, a_record([SERIAL, FAST]).model_dump_json())
    write_atomic(paths.run(SERIAL.key).result, text)
    write_atomic(paths.run(FAST.key).result, FAST.model_dump_json())
    comparison = read_comparison(paths)
    assert [row.key for row in comparison.rows] == [FAST.key]
    (why,) = comparison.unusable.values()
    assert why.startswith(f"{SERIAL.key}/result.json is ")
    (csv,) = [line for line in csv_lines(comparison) if line["key"] == SERIAL.key]
    ((key, shown),) = [item.parts for item in missing_runs(comparison)]
    assert (csv["status"], csv["cause"]) == ("unusable", why)
    assert (key, shown) == (("code", SERIAL.key, ""), f" {STATES['unusable']}: {why}")
    assert STATES["unusable"] in one_line(comparison)


# Tables, filters and runs


KILL = [{"kill": {"node": 2}, "at": {"epoch": 2}}]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"strategy": ONE_SHOT_ALONE, "nodes": 3, "transport": "mpi", "lr": 1e-05},
        {"strategy": "all_reduce", "nodes": 2, "link": {"bandwidth_mbit": 100, "latency_ms": 1}},
        {"strategy": "ddp", "nodes": 4, "restarts": 1, "checkpoint_epochs": 1, "faults": KILL},
    ],
    ids=["serial", "parameters", "links", "faults"],
)
def test_the_command_of_a_run_repeats_it(fields: dict[str, Any], tmp_path: Path) -> None:
    run = RunSpec.model_validate({"strategy": "serial", "seed": 3, **fields})
    command, *file, end = repeat_command(run, "local").splitlines()
    assert command.startswith("python -m orchestrator sweep /dev/stdin --runtime local")
    assert (command.split()[-1], end) == ("<<'END'", "END")  # quoted, so that the shell expands nothing
    path = tmp_path / "again.yml"
    path.write_text("\n".join(file))
    assert load_sweep(path).runs == [run]


def test_the_first_line_says_when_the_last_run_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        for times, shown in (  # start after 22:13:20, and duration
            ([(30.0, 600.0), (60.0, 1.0)], "2023-11-14 22:13 to 22:23 UTC"),
            ([(0.0, 7200.0)], "2023-11-14 22:13 to 2023-11-15 00:13 UTC"),
        ):
            late = [{"started_at": FAST.started_at + start, "wall_s": wall_s} for start, wall_s in times]
            assert shown in one_line(a_comparison(*(FAST.model_copy(update=each) for each in late)))
    finally:
        monkeypatch.undo()
        time.tzset()


# report.md

RENDERER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
ODD = (
    "# one\n- two <script>x</script> ![three](http://four) [five](six) | seven `eight` *nine* $ten$ "
    "~~eleven~~ &amp;"
)


def headings(text: str, level: str = "h2") -> list[str]:
    tokens = pairwise(RENDERER.parse(text))
    return [after.content for token, after in tokens if (token.type, token.tag) == ("heading_open", level)]


def test_text_from_files_is_no_markup() -> None:
    def rendered(cause: str, pending: str, **texts: str) -> str:
        failed = a_run("ddp", nodes=2, status="failed", cause=cause)
        comparison = a_comparison(SERIAL, FAST, failed, pending=[pending], **texts)
        return text_of(comparison, find(comparison))

    text, expected = rendered(ODD, "a-`key`", name=ODD, description=ODD), rendered("a b", "a-key")
    assert headings(text) == headings(expected)
    assert len(headings(text, "h1")) == 1
    page, known = RENDERER.render(text), RENDERER.render(expected)
    for markup in ("<script", "<img", "<a ", "<em", "<li", "<s>", "<code", "<td", "<b>"):
        assert page.count(markup) == known.count(markup), markup
    assert page.count("&amp;amp;") == 4  # as it was written
    assert "- `a-key` pending" in text
    assert re.search(r"\$", re.sub(r"\\\$", "", text)) is None  # a formula, to some renderers
    for start in ("#", "-", "+", "1.", "2)", "===", ":"):  # which would begin a block
        tokens = RENDERER.parse(text_of(a_comparison(SERIAL, description=f"{start} text"), []))
        inline = [at for at, each in enumerate(tokens) if each.content.endswith("text")]
        assert [tokens[at - 1].type for at in inline] == ["paragraph_open"]
        assert "".join(child.content for child in tokens[inline[0]].children or []) == f"{start} text"


def test_a_bar_in_a_name_ends_no_cell_of_a_table() -> None:
    name = "a | b"
    lab = Lab(title=name, source=name, hardware=name, differs=[])
    entry = {"runs": {"nodes": 1}, "accuracy": 0.9}
    block = BlockRecord.model_validate({"name": name, "keys": [SERIAL.key], "published": [entry]})
    tokens = RENDERER.parse(text_of(a_comparison(SERIAL, FAST, lab=lab, blocks=[block]), []))
    cells = [text.content for cell, text in pairwise(tokens) if cell.type == "td_open"]
    assert cells.count(name) == 1
    assert not {"a", "b"} & {*cells}


def test_small_print_stands_in_one_pair_of_parentheses() -> None:
    details = {"": "1", "a": "1 (a)", "(a to b)": "1 (a to b)", "a (b to c)": "1 (a (b to c))"}
    lines = [tree.Line([tree.Cell("1", detail)]) for detail in details]
    table = tree.Table("", [tree.Head("Head")], lines)
    text = markdown.render(tree.Page("Product", "Title", [tree.Section("id", "Heading", [table])]))
    assert re.findall(r"(?m)^\| (1.*) \|$", text) == [*details.values()]


# Numbers

UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}


def number_and_unit(written: str) -> tuple[float, str]:
    number, _, unit = written.replace(",", "").partition(formats.JOIN)
    return float(number), unit


NEAR_POWERS = st.builds(
    lambda power, part: 10.0**power * part, st.integers(-8, 13), st.floats(0.999, 1.001)
)


@settings(deadline=None)
@given(st.floats(1e-9, 1e14) | NEAR_POWERS)
def test_a_written_number_times_its_unit_is_the_value(value: float) -> None:
    shown = float(f"{value:.2e}")
    written = formats.significant(value)
    assert float(written.replace(",", "")) == shown
    digits = re.sub(r"\D", "", written).lstrip("0")
    assert len(digits) == 3 or (shown >= 1000 and digits.endswith("0"))
    number, unit = number_and_unit(formats.seconds(value))
    assert number * UNITS[unit] == pytest.approx(shown, rel=1e-9)
    assert number >= 1 or unit == "µs" or (unit == "s" and value >= 0.01)
    number, unit = number_and_unit(formats.size(value))
    assert number * UNITS[unit] == pytest.approx(shown if value >= 999.5 else round(value), rel=1e-9)
    assert number < 1000
    assert number_and_unit(formats.mbit(value)) == (float(f"{value * 8e-6:.2e}"), "Mbit/s")


def test_number_formats() -> None:
    written = {
        "0.0100 s": formats.seconds(0.01),
        "1.00 ms": formats.seconds(0.001),
        "0 s": formats.seconds(0),
        "–": formats.seconds(None),
        "98.8%": formats.percent(0.98765),
        "−9.7 points": formats.points(-0.0968),
        "±0.0 points": formats.points(0.0001),
        "−0.01": formats.points_bound(-0.0001),
        "+0.02": formats.points_bound(0.0002),
        "+1.0": formats.points_bound(0.01),
        "349 MiB": formats.memory(348.6),
        "over 99%": formats.probability(0.991),
        "99%": formats.probability(0.99),
        "1 run": formats.count(1, "run"),
        "a, b and c": formats.listed(["a", "b", "c"]),
        "a, b and 2 more": formats.first_few(["a", "b", "c", "d"], 2),
        "a, b and c ": f"{formats.first_few(['a', 'b', 'c'], 2)} ",
    }
    assert [text.replace(formats.JOIN, " ") for text in written.values()] == [*written]


# CSV files


FILES = {"summary.csv": summary_lines, "results.csv": result_lines, "epochs.csv": epoch_lines}
UNITS_IN_NAMES = {"_s": "s", "_mib": "MiB", "_bits": "bits", "_epochs": "epochs"}


def lines(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


@pytest.mark.parametrize("file", DICTIONARY)
def test_every_column_is_explained_and_filled_unless_it_says_when_it_is_empty(file: str) -> None:
    text = csv_text(*FILES[file](golden_comparison()))
    header = next(csv.reader(StringIO(text)))
    assert header == [
        entry["column"] for entry in lines(csv_text(*column_lines())) if entry["file"] == file
    ]
    assert len(set(header)) == len(header)
    for column in DICTIONARY[file]:
        assert column.meaning
        assert "|" not in column.meaning
        for ending, unit in UNITS_IN_NAMES.items():
            if column.column.endswith(ending) and not column.column.endswith(("per_s", "warm_up_epochs")):
                assert column.unit == unit
    always = [
        each.column
        for each in DICTIONARY[file]
        if not each.empty and not each.column.startswith("cluster_")
    ]
    for line in lines(text):
        if line.get("status", line.get("state", "ok")) == "ok":
            assert not [name for name in always if line[name] == ""]


def test_a_table_or_a_file_has_every_quantity() -> None:
    somewhere = {*RESULTS, *(name for names in ORDER.values() for name in names.split())}
    assert [name for name in QUANTITIES if name not in somewhere] == ["averaging_gain"]  # in findings


def test_summary_has_a_line_per_configuration() -> None:
    serial = repeated("serial", around(8.0, 0.1), cores=1)
    fast = repeated("all_reduce", around(9.0, 0.1), nodes=2, processes_per_node=2, cores=1)
    lost = [a_run(name, nodes=2, seed=1, **FAILED) for name in ("ddp", "gossip")]
    others = [lost[0], a_run("gossip", nodes=2), lost[1]]
    clusters = [in_cluster_time(run, run.train_s) for run in serial]
    clusters += [in_cluster_time(run, run.train_s - 5) for run in fast]
    found = lines(csv_text(*summary_lines(a_comparison(*serial, *fast, *others, clusters=clusters))))
    assert [(line["state"], line["seeds"], line["nodes"], line["ranks"]) for line in found] == [
        ("ok", "5", "1", "1"),
        ("ok", "5", "2", "4"),
        ("failed", "0", "2", "2"),
        ("partly", "1", "2", "2"),
    ]
    assert [line["clock"] for line in found[:2]] == ["cluster"] * 2
    assert (float(found[1]["time_s"]), float(found[1]["speedup"])) == pytest.approx((4.0, 2.0), rel=1e-3)
    for name in ("time_s", "speedup"):
        assert float(found[1][f"{name}_low"]) < float(found[1][name]) < float(found[1][f"{name}_high"])
    assert not any(found[2][name] for name in found[2] if name.startswith(("time", "speed", "accuracy")))


@pytest.mark.parametrize(("nodes", "time"), [(2, 5.0), (4, 4.0)])
def test_a_speedup_has_one_interval(nodes: int, time: float) -> None:
    """That of the comparison with serial: in the findings, the verdict, the table and summary.csv."""
    comparison = a_comparison(
        *repeated("serial", around(8.0, 0.4)),
        *repeated("all_reduce", around(5.0, 0.2), nodes=2),
        *repeated("all_reduce", around(4.0, 0.2), nodes=4),
        *repeated("ddp", around(4.5, 0.2), nodes=4),
        *repeated("serial", around(50.0, 0.4), checkpoint_epochs=1),  # which takes longer
        *repeated("gossip", [4.0, 4.1], nodes=4),  # few seeds
    )
    claims = asked_by(comparison).decided()
    group = comparison.groups[nodes // 2]
    assert (group.strategy, group.shape.nodes) == ("all_reduce", nodes)
    summary = lines(csv_text(*summary_lines(comparison, claims)))
    assert not any(summary[-1][name] for name in summary[-1] if name.endswith(("_low", "_high")))
    low, high = (float(summary[nodes // 2][f"speedup_{end}"]) for end in ("low", "high"))
    assert low < 8.0 / time < high
    # No narrower than what sessions alone make of it.
    assert high / low > exp(2 * 1.96 * sqrt(2) * BETWEEN_SESSIONS)
    if nodes == 4:  # the only number of nodes at which findings compare with serial
        interval = finding_of(comparison, "fastest").data["speedup_interval"]
        assert interval == pytest.approx((low, high))
    shown = cells(columns_of("results", speedup_intervals(comparison, claims)), [group])
    assert shown[0]["speedup_interval"] == f"{low:.2f}–{high:.2f}"
    options = {(each.name, each.shape[0]): each.speedup for each in verdicts_of(comparison)[0].options}
    assert f"({low:.2f}–{high:.2f})" in options["all_reduce over mpi", str(nodes)]
