"""The report's pages: they exist for every sweep, are self-contained, and escape text from files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from orchestrator.report import formats, write_report
from orchestrator.report.figures.chart import Chart, chart_of, layered
from orchestrator.report.figures.lines import lines_over_nodes
from orchestrator.report.figures.maps import LabelMap, label_maps
from orchestrator.report.figures.style import Style
from orchestrator.report.findings.base import QUESTIONS
from orchestrator.report.model.comparison import read_comparison
from orchestrator.report.plots import draw
from orchestrator.report.quantities.data_partition import partition_summary_of
from orchestrator.report.render.chapters import chapters_of
from orchestrator.report.render.columns import GROUPS
from orchestrator.report.render.figure_data import figure_data
from orchestrator.report.render.filters import filters
from orchestrator.report.render.runs import repeat_command, runs
from orchestrator.report.render.summary import STATES, one_line
from orchestrator.report.render.tables import AT_FIRST, table_of_groups
from orchestrator.report.render.terms import TERMS, SectionTerms
from orchestrator.report.topics import asked_by
from orchestrator.report.topics.speed import TIMES
from orchestrator.results.records import (
    RunResult,
)
from orchestrator.results.store import SweepPaths, write_atomic
from orchestrator.sweeps.load import load_sweep
from tests.unit.orchestrator.report.test_report_faults import KILL
from tests.unit.report_support import (
    FAST,
    SERIAL,
    a_comparison,
    a_pipeline,
    a_record,
    a_run,
    cells,
    csv_lines,
    layers,
    points,
    records_of,
    repeated,
    unrendered_figures,
    write_page,
    write_sweep,
)
from trainer.spec.run_spec import RunSpec


class Page(HTMLParser):
    """Tags, ids, links and text of a page, and everything a browser would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.elements.append((tag, dict(attrs)))
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name == "href" and tag == "a":
                self.links.append(value or "")
            elif name in ("src", "href", "xlink:href", "srcset", "data", "action"):
                self.sources.append(value or "")
            elif name.startswith("on"):
                self.handlers.append(name)

    def handle_data(self, data: str) -> None:
        self.text += data


SWEEPS = {
    "nothing": [],
    "all failed": [a_run("ddp", nodes=2, status="failed", cause="node 0: gone")],
    "only serial": [SERIAL],
    "one run": [FAST],
    "no serial": [FAST, a_run("ddp", nodes=2)],
    "one node count": [SERIAL, FAST, a_run("ddp", nodes=2)],
    "only a fault_injection": [a_run("fault_injection", accuracy=None, train_s=0.0)],
    "no time at all": [a_run(train_s=0.0), a_run("ddp", nodes=2, train_s=0.0, accuracy=0.0)],
    "far apart": [SERIAL, FAST, a_run("all_reduce", nodes=64, train_s=0.01, cores=2)],
    "ranks in nodes": [
        SERIAL,
        *(a_run("ddp", nodes=n, processes_per_node=p, cores=2) for n in (1, 2, 8) for p in (1, 2, 4)),
    ],
    "quotas": [
        a_run(cpus=0.4, runtime="docker", cores=2),
        *(a_run("ddp", nodes=n, cpus=0.4, runtime="docker", cores=2) for n in (2, 4, 6, 8)),
    ],
    "partitioned model": [
        SERIAL,
        *(a_pipeline(split_point) for split_point in ("conv2", "flatten", "fc1")),
        FAST,
    ],
    "two works": [SERIAL, FAST, a_run("ddp", nodes=2, lr=0.01)],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_has_a_report(name: str, tmp_path: Path) -> None:
    results = SWEEPS[name]
    paths = write_page(tmp_path, *results, pending=["ddp-gloo-n4-s0-0"])
    page = Page(paths.html.read_text())
    for key in read_comparison(paths).record.keys:
        assert key in page.ids
        assert key in paths.csv.read_text()
    assert "`ddp-gloo-n4-s0-0`" in paths.markdown.read_text()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> SweepPaths:
    """A sweep with ok, failed and pending runs, and with markup in every string that comes from a file."""
    evil = "<script>alert(1)</script> | `tick` [link](http://example.com)"
    runs = [
        *repeated("serial", [8, 8.1]),
        *repeated("all_reduce", [5, 5.1], nodes=4, cores=2, flags=[f"flag {evil}"]),
        *repeated("one_shot", [3, 3.1], nodes=4, own=[0.5, 0.6, 0.7, 0.8], partitioner="random_sampling"),
        a_run("ddp", nodes=4, status="failed", cause=f"node 1: {evil}"),
    ]
    return write_sweep(
        tmp_path_factory.mktemp("report"),
        *runs,
        pending=["ddp-gloo-n4-s9-<script>"],
        name=f"name {evil}",
        description=f"what {evil}",
        source=f"name: {evil}\n",
        overrides=[f"--set {evil}"],
        environment={f"key {evil}": f"value {evil}", "inner": {"deep": [evil, 1]}, "none": None},
    )


def test_pages_show_ranks_per_node() -> None:
    (line,) = cells(GROUPS, a_comparison(a_run("ddp", nodes=2, processes_per_node=4)).groups)
    assert (line["strategy"], line["nodes"]) == ("ddp · gloo | random_partition", "2 × 4")


@pytest.mark.parametrize(("name", "axis"), [("ranks in nodes", "ranks"), ("one node count", "nodes")])
def test_figures_count_ranks_if_nodes_have_several(name: str, axis: str) -> None:
    chart = time_figure(*SWEEPS[name])
    titles = {
        layer["encoding"]["x"]["axis"]["title"]
        for layer in layers(chart.spec)
        if "axis" in layer["encoding"].get("x", {})
    }
    assert titles == {axis}
    names = [record["name"].replace("\n", " ") for record in points(chart)]
    assert any(f"4{formats.JOIN}ranks per node" in name for name in names) is (axis == "ranks")


def time_figure(*results: RunResult) -> Chart:
    """Wall time over the number of nodes."""
    comparison = a_comparison(*results)
    (workload,) = comparison.workloads
    chart = lines_over_nodes(comparison.view(workload).line_groups, Style(comparison.groups), TIMES)
    assert chart is not None
    return chart


def shaded(chart: Chart) -> bool:
    return "rect" in {layer["mark"]["type"] for layer in layers(chart.spec)}


def test_figure_shades_only_where_all_runs_share_cores() -> None:
    assert shaded(time_figure(*SWEEPS["quotas"]))
    # Eight ranks on two nodes fit and four nodes do not: no rank count separates them.
    docker = {"runtime": "docker", "cores": 2, "threads": 1}
    mixed = [a_run("ddp", nodes=4, **docker), a_run("ddp", nodes=2, processes_per_node=4, **docker)]
    assert not shaded(time_figure(a_run(**docker), *mixed))


def test_staleness_and_servers_are_shown() -> None:
    runs = [
        a_run("async_parameter_server", nodes=nodes, staleness=[(1.5, 7)] * (nodes - 1)) for nodes in (3, 4)
    ]
    comparison = a_comparison(*runs, a_run("all_reduce", nodes=2))
    assert [line["staleness_mean"] for line in cells(GROUPS, comparison.groups)] == ["1.50 | max 7"] * 2 + [
        "–"
    ]
    assert "staleness" in [plot.name for plot in draw(comparison)]
    row = comparison.rows[0]
    summary = partition_summary_of(row)
    assert summary
    chart = label_maps([LabelMap(row.partitioner_label, row.shape, summary)])
    # 0 is the server, which has no samples
    assert {record["node"] for record in records_of(chart)} == {"1", "2"}


def test_synchronous_strategies_have_no_staleness() -> None:
    comparison = a_comparison(SERIAL, FAST)
    assert "staleness" not in [plot.name for plot in draw(comparison)]
    assert "staleness_mean" not in cells(GROUPS, comparison.groups)[0]


@pytest.mark.slow
def test_page_escapes_text_from_files(report: SweepPaths) -> None:
    page = Page(report.html.read_text())
    assert page.tags.count("script") == 4  # ours
    assert page.handlers == []
    assert page.text.count("<script>alert(1)</script>") >= 8


def test_the_page_is_self_contained(report: SweepPaths) -> None:
    text = report.html.read_text()
    page = Page(text)
    assert {"link", "img", "iframe", "object", "base"}.isdisjoint(page.tags)
    assert not [tag for tag, attributes in page.elements if "src" in attributes]
    files = {link for link in page.links if not link.startswith("#")}
    assert {link.partition("/")[0] for link in files} <= {row.key for row in read_comparison(report).rows}
    assert all(source.startswith("#") for source in page.sources)
    assert not re.search(r"@import|url\((?!#)", text.partition("</style>")[0])
    assert "default-src 'none'" in text
    assert page.tags.count("svg") == len(list(report.plots.glob("*.svg"))) == 8


def test_links_have_targets_and_ids_are_unique(report: SweepPaths) -> None:
    page = Page(report.html.read_text())
    assert len(page.ids) == len(set(page.ids))
    assert {unquote(link[1:]) for link in page.links if link.startswith("#")} <= set(page.ids)
    assert {row.key for row in read_comparison(report).rows} <= set(page.ids)
    described = {attributes.get("aria-describedby") for _, attributes in page.elements} - {None}
    assert described <= set(page.ids)
    assert {term.key for term in TERMS} <= set(page.ids)


def test_the_page_answers_before_it_shows(report: SweepPaths) -> None:
    """The order of the sections."""
    ids = Page(report.html.read_text()).ids
    sections = ["verdict", "evidence", "findings", "cautions", "results", "runs", "glossary"]
    assert [name for name in ids if name in sections] == sections
    asked = [name.removeprefix("question-") for name in ids if name.startswith("question-")]
    assert asked == [key for key in QUESTIONS if key in asked]


def test_a_table_shows_six_columns_first_and_sorts_by_values() -> None:
    table = table_of_groups("Results", GROUPS, a_comparison(SERIAL, FAST).groups)
    assert sum(head.first for head in table.heads) == AT_FIRST < len(table.heads)
    speedup = [head.title for head in table.heads].index("Speedup")
    assert [line.cells[speedup].value for line in table.lines] == pytest.approx([1.0, 1.6])
    assert table.lines[1].filters == {
        "series": "all_reduce · mpi",
        "nodes": "2",
        "transport": "mpi",
        "partitioner": "random_partition",
        "status": "ok",
    }


def test_filters_exist_for_what_differs() -> None:
    failed = a_run("ddp", nodes=4, status="failed", cause="node 0: gone")
    found = {
        each.name: each.values for each in filters(a_comparison(SERIAL, FAST, failed, pending=["key"]))
    }
    assert [value for value, _ in found["nodes"]] == ["1", "2", "4"]
    assert [value for value, _ in found["status"]] == ["ok", "failed", "pending"]
    assert "partitioner" not in found
    assert filters(a_comparison(FAST)) == []


def test_terms_are_marked_once_per_section_and_text_is_escaped() -> None:
    terms = SectionTerms()
    marked = terms.mark("CPU-time speedup <b> and speedups; speedup")
    assert re.findall(r'href="#([^"]+)"[^>]*>([^<]+)<', marked) == [
        ("term-cpu-time-speedup", "CPU-time speedup"),
        ("term-speedup", "speedups"),
    ]
    assert "&lt;b&gt;" in marked
    assert "<a" not in terms.mark("Speedup")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {
            "strategy": {"name": "one_shot", "init": "independent"},
            "transport": "mpi",
            "nodes": 3,
            "lr": 1e-05,
        },
        {"strategy": "all_reduce", "nodes": 2, "link": {"bandwidth_mbit": 100, "latency_ms": 1}},
        {"strategy": "ddp", "nodes": 4, "restarts": 1, "checkpoint_epochs": 1, "faults": KILL},
        {"strategy": "ddp", "nodes": 2, "processes_per_node": 2, "partitioner": {"name": "dirichlet"}},
    ],
)
def test_the_command_of_a_run_repeats_it(fields: dict[str, Any], tmp_path: Path) -> None:
    run = RunSpec.model_validate({"strategy": "serial", "seed": 3, **fields})
    command, *file, end = repeat_command(run, "local").splitlines()
    assert command.startswith("python -m orchestrator sweep /dev/stdin --runtime local")
    assert end == "END"
    path = tmp_path / "again.yml"
    path.write_text("\n".join(file))
    (again,) = load_sweep(path).runs
    assert (again.key, again.restarts) == (run.key, run.restarts)


def test_a_section_per_run_has_its_numbers(tmp_path: Path) -> None:
    many = a_run("all_reduce", nodes=12)
    failed = a_run("ddp", nodes=2, status="failed", cause="node 1: gone").model_copy(
        update={"log": "node-1.log"}
    )
    found = [line.run for line in runs(a_comparison(SERIAL, FAST, many, failed, pending=["later"])).lines]
    assert [run.ok for run in found] == [True, True, True, False, False]
    assert [line[0] for line in found[1].epochs] == ["1", "2"]
    assert [len(line) for line in found[1].epochs] == [5, 5]
    assert [len(run.ranks) for run in found[:3]] == [1, 2, 3]
    assert found[1].certificate.startswith("Verified")
    assert found[3].cause == "node 1: gone"
    assert ("Log", f"{failed.key}/node-1.log") in found[3].files
    assert (found[4].key, found[4].command) == ("later", "")


def test_the_data_of_a_figure_is_a_table() -> None:
    records = [{"series": f"s{number}", "nodes": number, "time": number / 3} for number in range(70)]
    spec = {
        "datasets": {"data": records, "other": [{"nodes": 1}]},
        "data": {"name": "data"},
        "encoding": {"x": {"field": "nodes", "type": "quantitative", "title": "Nodes"}},
        "layer": [
            {"mark": "line"},
            {
                "mark": "point",
                "encoding": {
                    "tooltip": [
                        {"field": "series", "title": "Strategy"},
                        {"field": "time", "title": "Time, s", "format": ".2f"},
                    ]
                },
            },
            {"mark": "rule", "data": {"name": "other"}},
        ],
    }
    (data,) = figure_data(spec)
    assert data.heads == ["Strategy", "Time, s"]
    assert data.lines[:2] == [["s0", "0.00"], ["s1", "0.33"]]
    assert (len(data.lines), data.more) == (60, 10)
    assert figure_data({"mark": "point"}) == []


def test_records_that_several_layers_draw_are_stored_once() -> None:
    layers = [chart_of([{"nodes": nodes}]).mark_line() for nodes in (1, 1, 2)]
    spec = Chart.of(layered(*layers)).spec
    assert [each["data"]["name"] for each in spec["layer"]] == ["data-0", "data-0", "data-1"]
    assert spec["datasets"] == {"data-0": [{"nodes": 1}], "data-1": [{"nodes": 2}]}


def test_the_page_shows_causes_flags_and_specs(report: SweepPaths) -> None:
    text = Page(report.html.read_text()).text
    for row in read_comparison(report).rows:
        assert row.cause is None or row.cause in text
        assert all(flag in text for flag in row.result.flags)
        assert row.seed == 0 or f"seed: {row.seed}" in text


def test_the_summary_counts_runs_by_status(report: SweepPaths) -> None:
    summary = one_line(read_comparison(report))
    assert re.findall(r"\d+(?=.runs|.ok|.failed|.pending)", summary) == ["8", "6", "1", "1"]


def test_markdown_escapes_text_from_files(report: SweepPaths) -> None:
    text = report.markdown.read_text()
    assert "<script" not in re.sub(r"`[^`]*`", "", text)
    assert "[link](" not in text.replace("\\[link](", "")
    for link in re.findall(r"\]\((plots/[^)]+)\)", text):
        assert (report.directory / link).exists()


@pytest.mark.slow
def test_figures_are_reproducible_and_stale_ones_are_removed(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    write_atomic(paths.plots / "old.svg", "<svg/>")
    write_sweep(tmp_path, SERIAL, FAST)
    assert not (paths.plots / "old.svg").exists()
    first = {file.name: file.read_text() for file in paths.plots.glob("*.svg")}
    assert set(first) >= {
        "time.svg",
        "speedup.svg",
        "cpu_time_speedup.svg",
        "accuracy.svg",
        "phases.svg",
        "labels.svg",
    }
    assert all(text.startswith("<svg") for text in first.values())
    write_report(paths)
    assert first == {file.name: file.read_text() for file in paths.plots.glob("*.svg")}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        json.dumps({**SERIAL.model_dump(), "spec": {"strategy": "telepathy"}}),
        SERIAL.model_dump_json().replace('"wall_s":', '"wall_s": NaN, "_":'),
    ],
)
def test_an_unusable_result_is_a_row_with_a_cause(tmp_path: Path, text: str) -> None:
    paths = SweepPaths(tmp_path)
    write_atomic(paths.record, a_record([SERIAL, FAST]).model_dump_json())
    write_atomic(paths.run(SERIAL.key).result, text)
    write_atomic(paths.run(FAST.key).result, FAST.model_dump_json())
    with unrendered_figures():
        write_report(paths)
    comparison = read_comparison(paths)
    assert [row.key for row in comparison.rows] == [FAST.key]
    (why,) = comparison.unusable.values()
    assert why.startswith(f"{SERIAL.key}/result.json is ")
    lines = {line["key"]: line for line in csv_lines(comparison)}
    assert (lines[SERIAL.key]["status"], lines[SERIAL.key]["cause"]) == ("unusable", why)
    for page in (paths.html, paths.markdown):
        assert f"{SERIAL.key}/result.json" in page.read_text()
    assert STATES["unusable"] in one_line(comparison)


def test_failed_runs_name_their_log(tmp_path: Path) -> None:
    failed = FAST.model_copy(update={"status": "failed", "cause": "node 1: it broke", "log": "node-1.log"})
    paths = write_page(tmp_path, SERIAL, failed)
    name = f"{FAST.key}/node-1.log"
    assert [line["log"] for line in csv_lines(read_comparison(paths))] == ["", name]
    for page in (paths.html, paths.markdown):
        assert name in page.read_text()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (formats.seconds(1.2), "1.20 s"),
        (formats.seconds(1234.5), "1,230 s"),
        (formats.seconds(0.0123), "0.0123 s"),
        (formats.seconds(0.00123), "1.23 ms"),
        (formats.seconds(9.999), "10.0 s"),
        (formats.seconds(0), "0 s"),
        (formats.seconds(None), "–"),
        (formats.percent(0.98765), "98.8%"),
        (formats.points(-0.0968), "−9.7 points"),
        (formats.points(0.0001), "±0.0 points"),
        (formats.size(999), "999 B"),
        (formats.size(999.6), "1.00 kB"),
        (formats.size(4_322_160), "4.32 MB"),
        (formats.ratio(0.5), "0.500"),
        (formats.memory(348.6), "349 MiB"),
        (formats.count(1, "run"), "1 run"),
        (formats.listed(["a", "b", "c"]), "a, b and c"),
    ],
)
def test_number_formats(written: str, expected: str) -> None:
    assert written.replace(formats.JOIN, " ") == expected


@pytest.mark.slow
def test_importing_the_report_is_fast() -> None:
    heavy = "sorted({'torch', 'mpi4py', 'altair', 'jinja2'} & set(sys.modules))"
    command = f"import sys, orchestrator.report; print({heavy})"
    assert subprocess.run([sys.executable, "-c", command], capture_output=True, text=True).stdout == "[]\n"
    render = "orchestrator.report.render"
    command = f"import sys, {render}.html, {render}.markdown; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", command], capture_output=True, text=True).stdout == "False\n"
    )


def test_workloads_of_one_configuration_share_a_table() -> None:
    comparison = a_comparison(*(a_run(lr=lr, seed=seed) for lr in (0.1, 0.2, 0.4) for seed in range(2)))
    (chapter,) = chapters_of(comparison, asked_by(comparison).decided())
    assert [head.title for head in chapter.results.heads][:2] == ["Workload", "Strategy"]
    assert len({line.cells[0].text for line in chapter.results.lines}) == 3
    assert chapter.certified is not None
    assert len(chapter.certified.lines) == 3
