"""The report's pages: they hold for every sweep, need nothing else, and escape what they show."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from orchestrator.errors import InputError
from orchestrator.report import formats, write_report
from orchestrator.report.figures.maps import Map, label_maps
from orchestrator.report.metrics.data_partition import survey_of
from orchestrator.report.model.comparison import read_comparison
from orchestrator.results.records import (
    RunResult,
)
from orchestrator.results.store import SweepPaths, write_atomic
from tests.unit.report_support import FAST, SERIAL, a_pipeline, a_record, a_run, repeated


def write_sweep(
    directory: Path, *results: RunResult, pending: Sequence[str] = (), **fields: Any
) -> SweepPaths:
    """The files that a runner leaves, and the report on them."""
    paths = SweepPaths(directory)
    write_atomic(paths.record, a_record(results, pending, **fields).model_dump_json())
    for result in results:
        write_atomic(paths.run(result.key).result, result.model_dump_json())
    write_report(paths)
    return paths


class Page(HTMLParser):
    """What a browser would load, where links go, and the text that a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
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
    "a model in parts": [SERIAL, *(a_pipeline(cut) for cut in ("conv2", "flatten", "fc1")), FAST],
    "two works": [SERIAL, FAST, a_run("ddp", nodes=2, lr=0.01)],
}


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_has_a_report(name: str, tmp_path: Path) -> None:
    results = SWEEPS[name]
    paths = write_sweep(tmp_path, *results, pending=["ddp-gloo-n4-s0-0"])
    page = Page(paths.html.read_text())
    for key in read_comparison(paths).record.keys:
        assert key in page.ids
        assert key in paths.csv.read_text()
    alone = ("serial", "fault_injection")
    trained = any(result.status == "ok" and not result.key.startswith(alone) for result in results)
    assert ("There is nothing to compare" in page.text) == (not trained)
    assert "not done yet" in paths.markdown.read_text()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> SweepPaths:
    """A sweep with something of everything, and strings from files that would like to be markup."""
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


def test_pages_show_ranks_per_node(tmp_path: Path) -> None:
    paths = write_sweep(tmp_path, *SWEEPS["ranks in nodes"])
    page = Page(paths.html.read_text()).text
    assert "2 × 4" in page
    assert "| ddp · gloo (random_partition) | 2 × 4 |" in paths.markdown.read_text()
    time = (paths.plots / "time.svg").read_text().replace(formats.JOIN, " ")
    assert "ddp · gloo · 4 ranks per node" in time
    assert ">ranks<" in time
    write_sweep(tmp_path, SERIAL, FAST)
    time = (paths.plots / "time.svg").read_text()
    assert ">nodes<" in time
    assert "per node" not in time


def test_a_figure_shades_only_where_all_share_cores(tmp_path: Path) -> None:
    paths = write_sweep(tmp_path, *SWEEPS["quotas"])
    assert "nodes share 2 cores" in (paths.plots / "time.svg").read_text()
    # Eight ranks in two nodes fit, four nodes do not: no number of ranks parts the ones from the others.
    docker = {"runtime": "docker", "cores": 2, "threads": 1}
    mixed = [a_run("ddp", nodes=4, **docker), a_run("ddp", nodes=2, processes_per_node=4, **docker)]
    write_sweep(tmp_path, a_run(**docker), *mixed)
    assert "nodes share" not in (paths.plots / "time.svg").read_text()


def test_what_a_server_does_is_shown(tmp_path: Path) -> None:
    runs = [
        a_run("async_parameter_server", nodes=nodes, staleness=[(1.5, 7)] * (nodes - 1)) for nodes in (3, 4)
    ]
    paths = write_sweep(tmp_path, *runs, a_run("all_reduce", nodes=2))
    assert "1.50 (at most 7)" in paths.markdown.read_text().replace(formats.JOIN, " ")
    assert "Staleness of gradients" in (paths.plots / "staleness.svg").read_text()
    (row, *_) = read_comparison(paths).rows
    seen = survey_of(row)
    assert seen
    figure = label_maps([Map(row.partitioner_label, row.shape, seen)])
    # 0 is the server, which holds no samples
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["1", "2"]


def test_no_figure_of_staleness_where_nothing_is_stale(tmp_path: Path) -> None:
    paths = write_sweep(tmp_path, SERIAL, FAST)
    assert not (paths.plots / "staleness.svg").exists()
    assert "Staleness" not in paths.markdown.read_text()


def test_the_page_escapes_what_comes_from_files(report: SweepPaths) -> None:
    page = Page(report.html.read_text())
    assert "script" not in page.tags
    assert page.handlers == []
    assert page.text.count("<script>alert(1)</script>") >= 8


def test_the_page_needs_nothing_else(report: SweepPaths) -> None:
    text = report.html.read_text()
    page = Page(text)
    assert {"script", "link", "img", "iframe", "object", "base"}.isdisjoint(page.tags)
    assert all(link.startswith("#") for link in [*page.links, *page.sources])
    assert not re.search(r"@import|url\((?!#)", text)
    assert page.tags.count("svg") == len(list(report.plots.glob("*.svg"))) == 8


def test_links_lead_somewhere_and_ids_are_unique(report: SweepPaths) -> None:
    page = Page(report.html.read_text())
    assert len(page.ids) == len(set(page.ids))
    assert {unquote(link[1:]) for link in page.links} <= set(page.ids)
    assert {row.key for row in read_comparison(report).rows} <= set(page.ids)


def test_the_page_shows_failed_and_pending_runs_flags_and_specs(report: SweepPaths) -> None:
    text = Page(report.html.read_text()).text
    assert "failed: node 1: <script>" in text
    assert "not done yet" in text
    assert "flag <script>" in text
    assert '"batch_size": 32' in text
    assert "10 runs" not in text.split("Findings")[0]
    assert "8 runs: 6 ok, 1 failed, 1 not done yet" in text.replace(formats.JOIN, " ")


def test_markdown_takes_nothing_from_files_for_markup(report: SweepPaths) -> None:
    text = report.markdown.read_text()
    assert "<script" not in re.sub(r"`[^`]*`", "", text)
    assert "[link](" not in text.replace("\\[link](", "")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    for link in re.findall(r"\]\((plots/[^)]+)\)", text):
        assert (report.directory / link).exists()


def test_figures_stand_alone_and_stale_ones_go(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    write_atomic(paths.plots / "old.svg", "<svg/>")
    write_sweep(tmp_path, SERIAL, FAST)
    assert not (paths.plots / "old.svg").exists()
    first = {file.name: file.read_text() for file in paths.plots.glob("*.svg")}
    assert set(first) >= {
        "time.svg",
        "speedup.svg",
        "work_speedup.svg",
        "accuracy.svg",
        "phases.svg",
        "labels.svg",
    }
    assert all(text.startswith("<svg") for text in first.values())
    write_report(paths)
    assert first == {file.name: file.read_text() for file in paths.plots.glob("*.svg")}


def test_a_result_of_another_version_is_named(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    write_atomic(paths.record, a_record([SERIAL]).model_dump_json())
    strange = {**SERIAL.model_dump(), "spec": {"strategy": "telepathy"}}
    write_atomic(paths.run(SERIAL.key).result, json.dumps(strange))
    with pytest.raises(InputError, match=rf"{SERIAL.key}/result\.json: not a run of this version"):
        write_report(paths)


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
def test_numbers_are_written_one_way(written: str, expected: str) -> None:
    assert written.replace(formats.JOIN, " ") == expected


def test_importing_the_report_is_quick() -> None:
    heavy = "sorted({'torch', 'mpi4py', 'matplotlib', 'jinja2'} & set(sys.modules))"
    command = f"import sys, orchestrator.report; print({heavy})"
    assert subprocess.run([sys.executable, "-c", command], capture_output=True, text=True).stdout == "[]\n"
    render = "orchestrator.report.render"
    command = f"import sys, {render}.html, {render}.markdown; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", command], capture_output=True, text=True).stdout == "False\n"
    )
