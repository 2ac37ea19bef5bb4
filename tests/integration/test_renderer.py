"""Mistakes of the process that draws a report's figures: other drawings, no reason, no end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from orchestrator.report.figures.vega import packed, scripts, svg_of
from orchestrator.report.renderer import Renderer
from orchestrator.shipped import IMPORT_ROOT

SPEC = {
    "data": {"values": [{"a": 1, "b": 2}, {"a": 2, "b": 3}]},
    "mark": "point",
    "encoding": {"x": {"field": "a", "type": "quantitative"}, "y": {"field": "b", "type": "quantitative"}},
}


def test_it_draws_what_this_process_would() -> None:
    with Renderer() as renderer:
        drawings = renderer.draw([SPEC, {**SPEC, "mark": "line"}]).result()
    assert drawings.svgs == [svg_of(SPEC), svg_of({**SPEC, "mark": "line"})]
    assert drawings.library == packed(scripts())


def test_a_failure_names_its_reason() -> None:
    with Renderer() as renderer, pytest.raises(RuntimeError, match="conversion failed"):
        renderer.draw([{**SPEC, "mark": "no mark"}]).result()


def test_it_ends_with_a_caller_that_fails() -> None:
    with pytest.raises(ZeroDivisionError), Renderer() as renderer:
        raise ZeroDivisionError
    assert renderer._process.returncode is not None


def test_it_ends_with_a_caller_that_was_killed() -> None:
    command = [sys.executable, "-m", "orchestrator.report.figures"]
    done = subprocess.run(command, cwd=IMPORT_ROOT, input=b"", capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
