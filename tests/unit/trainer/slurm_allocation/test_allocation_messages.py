"""What the orchestrator and the leader of an allocation exchange."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.slurm_allocation.messages import LeaderAnswer, LeaderRequest, LineReader, append


def test_appended_records_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.touch()
    reader = LineReader(path, LeaderRequest)
    assert reader.new() == []
    requests = [
        LeaderRequest(kind="run", run=1, script="/a b", log="/c", warm=True),
        LeaderRequest(kind="heartbeat"),
    ]
    for each in requests:
        append(path, each)
    assert reader.new() == requests
    assert reader.new() == []


def test_incomplete_line_is_read_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    line = LeaderAnswer(kind="ended", run=3, code=-9, reason="lost").model_dump_json() + "\n"
    path.write_text(line[:20])
    reader = LineReader(path, LeaderAnswer)
    assert reader.new() == []
    with open(path, "a") as file:
        file.write(line[20:])
    assert reader.new() == [LeaderAnswer(kind="ended", run=3, code=-9, reason="lost")]


@pytest.mark.parametrize("line", ["nonsense", '{"kind": "dance"}', '{"kind": "ended", "code": "0"}', "[]"])
def test_line_that_is_no_record_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(ValueError, match=r"^answers\.jsonl: "):
        LineReader(path, LeaderAnswer).new()


def test_removed_file_is_not_created_again(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with pytest.raises(FileNotFoundError):
        append(path, LeaderRequest(kind="heartbeat"))
    assert not path.exists()
    assert LineReader(path, LeaderRequest).new() == []
