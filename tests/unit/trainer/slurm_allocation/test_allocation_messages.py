"""Mistakes in the files between orchestrator and leader: lost, repeated, incomplete and invalid lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.slurm_allocation.messages import LeaderAnswer, LeaderRequest, LineReader, append

RUN = LeaderRequest(kind="run", run=1, script="/a b", log="/c", warm=True)


def test_appended_records_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    reader = LineReader(path, LeaderRequest)
    with pytest.raises(FileNotFoundError):  # a file that was removed stays so
        append(path, RUN)
    assert reader.new() == []
    path.touch()
    requests = [RUN, LeaderRequest(kind="heartbeat")]
    for each in requests:
        append(path, each)
    assert [reader.new(), reader.new()] == [requests, []]


def test_incomplete_line_is_read_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    ended = LeaderAnswer(kind="ended", run=3, code=-9, reason="lost")
    line = ended.model_dump_json() + "\n"
    reader = LineReader(path, LeaderAnswer)
    for written, found in ((line + line[:20], [ended]), (line + line, [ended])):
        path.write_text(written)
        assert reader.new() == found


@pytest.mark.parametrize("line", ["nonsense", '{"kind": "dance"}', '{"kind": "ended", "code": "0"}', "[]"])
def test_line_that_is_no_record_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(ValueError, match=r"^answers\.jsonl: "):
        LineReader(path, LeaderAnswer).new()
