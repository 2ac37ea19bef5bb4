"""Attacks on the terminal by text of nodes, components and files, positions of ranks included."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text

from orchestrator.commands.check import Report, lines
from orchestrator.commands.sweep import text_console
from orchestrator.execution.outcome import outcome
from orchestrator.execution.progress import result_line
from orchestrator.sandbox.base import Tail
from orchestrator.sandbox.local import _drain
from orchestrator.terminal import shortened
from tests.unit.conftest import run_result
from trainer.components.examine import Finding
from trainer.core.events import Event
from trainer.core.position import MAX_NAME
from trainer.torchrun_restarts.attempts import Attempts

FORGED = "bad\n[3/3] x: ok\r[3/3] x: ok\u2028[3/3] x: ok\x85[3/3] x: ok\x0b[3/3] x: ok\x1b[2J\t\u202e"


def event_of(kind: str, rank: int = 0, **fields: Any) -> Event:
    head = {"version": 1, "time": 1.0, "run": "r", "rank": rank, "host": "h", "kind": kind}
    return Event.from_line(json.dumps({**head, **fields}))


def printed(*objects: Any) -> str:
    console = text_console(io.StringIO())
    for each in objects:
        console.print(each)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("kind", ["failed", "died"])
def test_an_exception_of_a_rank_is_one_line_of_progress(kind: str) -> None:
    events = [event_of("start", pid=1), event_of(kind, cause=FORGED)]
    _, cause = outcome(Attempts(1, events), {}, None)
    line = result_line(1, 3, run_result("failed", cause=cause), skipped=False)
    assert line.isprintable()
    assert "bad" in line


def test_a_result_that_another_has_written_holds_lines() -> None:
    for field in ("key", "cause", "log", "node_kind", "nodes_replaced"):
        assert getattr(run_result("failed", **{field: FORGED}), field).isprintable(), field


def test_a_law_that_a_component_breaks_is_shown_in_its_rows() -> None:
    texts = dict.fromkeys(("law", "statement", "input", "expected", "got", "reason"), FORGED)
    report = Report(component=FORGED, findings=[Finding(**texts, status="failed")])  # type: ignore[arg-type]
    shown = printed(*lines(report, 500))
    assert not any(line.lstrip().startswith("[3/3]") for line in shown.splitlines())
    assert {each for each in shown if not each.isprintable()} == {"\n"}


def test_whatever_prints_text_it_controls_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "output").write_text(FORGED)
    _drain((tmp_path / "output").open("rb"), Tail(), shown=100)  # of code that is checked
    table = Table(FORGED)
    table.add_row(Text(FORGED))
    of_code = capsys.readouterr().err
    for text in (of_code, printed(FORGED), printed(Text(FORGED, style="red")), printed(table)):
        assert {each for each in text if not each.isprintable()} <= {"\n", "\t"}
    assert len(shortened(FORGED.replace("\n", " ")).splitlines()) == 1
    assert len(shortened("a\r" * 100).splitlines()) == 1


BARRIER = {"kind": "barrier", "ranks": 2}
POSITIONS: list[dict[str, Any]] = [
    {"file": "\x1b" * MAX_NAME},  # too long once it is escaped
    {"function": "a\nb"},
    {"line": 2**31},
    {"waited_s": 1e300},
    {"unknown": 1},
    *({"exchange": {**BARRIER, "ranks": ranks}} for ranks in (0, 2**40)),
    *({"exchange": {**BARRIER, "op": text}} for text in ("a\tb", "x" * (MAX_NAME + 1))),
    *({"exchange": {**BARRIER, field: -1}} for field in ("elements", "kind", "dtype")),
]


def stopped(rank: int = 0, **changed: Any) -> Event:
    position = {"file": "mine.py", "line": 1, "function": "train", **changed}
    return event_of("terminated", rank, cause="stopped by SIGTERM", position=position)


def test_invalid_positions_are_refused() -> None:
    for fields in POSITIONS:
        with pytest.raises(ValueError, match="position"):
            stopped(**fields)


def test_a_cause_is_short_and_in_one_line_whatever_ranks_say() -> None:
    exchange = {**BARRIER, "op": "x" * MAX_NAME, "dtype": "y" * MAX_NAME, "elements": 2**53}
    texts = {"file": "\x1b]0;\u202e" * 6, "function": "f" * MAX_NAME}
    events = [stopped(rank, **texts, exchange=exchange, line=rank) for rank in range(1000)]
    cause = str(outcome(Attempts(1000, events), {}, 9.0)[1]).partition("last seen before it started")[2]
    assert 0 < len(cause) < 8 * 5 * MAX_NAME
    assert cause.isprintable()
    assert r"\x1b]0;\u202e" in cause
