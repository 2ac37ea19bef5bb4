"""Mistakes in the compact form of Vega's SVG and in the scripts of a page: another picture, references to
the wrong element, text that is not escaped, and scripts that another user can have written."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import altair
import pytest
import vl_convert

from orchestrator.report.figures import vega
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.svg import compact, with_heading
from orchestrator.report.figures.theme import with_light_colours
from orchestrator.report.figures.vega import VERSION, library, packed, scripts, svg_file, svg_of
from orchestrator.report.topics.speed import TIMES
from tests.unit.orchestrator.report.test_report_lines import MANY, drawn, runs
from tests.unit.report_support import SERIAL

CLIP = '<clipPath id="{}"><rect x="0" y="0" width="9" height="9"/></clipPath>'
LONG = "M0,0" + "L1.5,2.25" * 20


@pytest.fixture(scope="module")
def panels() -> Chart:
    return drawn([SERIAL, *runs([*MANY, "ddp", "zero1", "fsdp"])], TIMES)


def root(body: str, head: str = "") -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"{head}>{body}</svg>'


def test_the_compact_form_has_a_fraction_of_the_bytes_and_the_same_text(panels: Chart) -> None:
    svg = str(vl_convert.vegalite_to_svg(panels.spec, vl_version=VERSION))
    small, whole = ET.fromstring(compact(svg, "a")), ET.fromstring(svg)
    assert len(compact(svg, "a")) < len(svg) / 3
    assert compact(svg, "a").count("<use ") > len(MANY)
    assert small.get("viewBox") == whole.get("viewBox")
    texts = [{text.text for text in each.iter() if text.tag.endswith("text")} for each in (small, whole)]
    assert texts[0] == texts[1]


def test_references_name_one_element_each_and_files_have_no_variables(panels: Chart) -> None:
    svg = svg_of(panels.spec)
    ids = re.findall(r'\bid="([^"]+)"', svg)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', svg)) == set(ids)
    other = svg_of({**panels.spec, "width": 100})
    assert not set(ids) & set(re.findall(r'\bid="([^"]+)"', other))
    file = svg_file(svg, "Time")
    assert "var(" not in file
    assert file == with_light_colours(file)


def test_an_equal_element_becomes_a_reference() -> None:
    path = f'<path d="{LONG}" stroke="#123456"/>'
    small = compact(
        root(f'<g transform="translate(1,2)">{path}</g><g transform="translate(3,4)">{path}</g>'), "a"
    )
    assert small.count("<path") == small.count("<use") == 1


def test_a_style_moves_to_the_group_only_if_all_parts_share_it() -> None:
    parts = '<text fill="#111111" font-size="12px">a</text><text fill="#222222" font-size="12px">b</text>'
    (group,) = ET.fromstring(compact(root(f'<g transform="scale(2)">{parts}</g>'), "a"))
    assert (group.get("font-size"), group.get("fill")) == ("12px", None)
    assert [text.get("fill") for text in group] == ["#111111", "#222222"]


def test_clip_paths_are_defined_once() -> None:
    shapes = "".join(
        f'<g clip-path="url(#{name})"><line x2="{at}" stroke="#111111"/></g>'
        for at, name in enumerate("pq")
    )
    small = compact(root(f"<defs>{CLIP.format('p')}{CLIP.format('q')}</defs>{shapes}"), "a")
    assert small.count("<clipPath") == 1
    assert len(set(re.findall(r"url\(#[^)]+\)", small))) == 1


def test_what_draws_nothing_is_dropped() -> None:
    nothing = (
        '<path class="background" d="M0,0h1v1h0Z"/><path d="" display="none" fill="#111111"/><g><g/></g>'
    )
    assert len(ET.fromstring(compact(root(nothing), "a"))) == 0


@pytest.mark.parametrize("heading", ["", "A < B & C"])
def test_a_file_has_its_heading_above_the_picture(heading: str) -> None:
    svg = compact(root("<g><text>a</text></g>", ' width="200" height="100.5" viewBox="0 0 200 100.5"'), "a")
    file = ET.fromstring(with_heading(svg, heading))
    left, top, width, height = (float(number) for number in file.get("viewBox", "").split())
    assert (left, width, top + height) == (0, 200, 100.5)
    assert (float(file.get("width", 0)), float(file.get("height", 0))) == (width, height)
    texts = [text.text for text in file.iter() if text.tag.endswith("text")]
    assert texts == [*filter(None, [heading]), "a"]
    assert (top < 0) == bool(heading)


@pytest.mark.slow
def test_scripts_are_of_the_version_of_the_specifications() -> None:
    assert "vegaEmbed" in scripts()
    assert altair.SCHEMA_VERSION.removeprefix("v").startswith(VERSION.removeprefix("v"))


@pytest.mark.parametrize("spoil", ["nothing", "text", "mode", "link", "home"])
def test_kept_scripts_are_used_if_only_this_user_can_have_written_them(
    spoil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    monkeypatch.setattr(vega, "scripts", lambda: built.append("") or f"scripts {len(built)}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library() == packed("scripts 1")
    (kept,) = (tmp_path / "shardyard").iterdir()
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    if spoil == "text":
        kept.write_text(kept.read_text()[:-1])
    elif spoil == "mode":
        kept.chmod(0o620)
    elif spoil == "link":
        kept.rename(tmp_path / "other")
        kept.symlink_to(tmp_path / "other")
    elif spoil == "home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", refuse)
    assert library() == packed("scripts 1" if spoil == "nothing" else "scripts 2")


def refuse() -> Path:
    raise RuntimeError("Could not determine home directory.")
