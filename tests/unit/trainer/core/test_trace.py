"""Trace files: what is written is read back, and what is damaged is named."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from trainer.core.trace import (
    RECORD,
    Kind,
    Trace,
    TraceError,
    TraceHeader,
    TraceLimits,
    encode_trace,
    read_trace,
    trace_path,
)

RECORDS = np.array(
    [(Kind.WORK, 0, 1, 0, 0.25, 0.0, 0.5), (Kind.ALL_REDUCE, 0, -1, 4096, 0.0, 0.5, 0.75)], RECORD
)


def header(**changes: object) -> TraceHeader:
    values = {
        "run": "all_reduce-n2-s0",
        "rank": 1,
        "size": 2,
        "transport": "gloo",
        "mode": "steps",
        "groups": [[0, 1]],
        "started_s": 12.5,
        "count": len(RECORDS),
    }
    return TraceHeader.model_validate(values | changes)


def written(directory: Path, content: bytes) -> Path:
    path = trace_path(directory, 1)
    path.write_bytes(content)
    return path


def test_a_trace_is_read_back(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, encode_trace(Trace(header(), RECORDS))))
    assert trace.header == header()
    assert (trace.records == RECORDS).all()


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    content = encode_trace(Trace(header(), RECORDS))
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0x40
        with pytest.raises(TraceError, match="trace-1"):
            read_trace(written(tmp_path, bytes(damaged)))


@pytest.mark.parametrize("left", [0, 10, 200, -5])
def test_a_shortened_trace_is_damaged(tmp_path: Path, left: int) -> None:
    content = encode_trace(Trace(header(), RECORDS))
    with pytest.raises(TraceError, match="damaged"):
        read_trace(written(tmp_path, content[:left]))


def test_another_version_is_named(tmp_path: Path) -> None:
    content = encode_trace(Trace(header(), RECORDS)).replace(b'"version":1', b'"version":2')
    with pytest.raises(TraceError, match="version 1"):
        read_trace(written(tmp_path, content))


@pytest.mark.parametrize(
    ("field", "value"),
    [("kind", 99), ("group", 1), ("cpu_s", -1.0), ("left_s", float("nan")), ("left_s", 0.1)],
)
def test_impossible_records_are_refused(tmp_path: Path, field: str, value: float) -> None:
    records = RECORDS.copy()
    records[field][1] = value
    with pytest.raises(TraceError):
        read_trace(written(tmp_path, encode_trace(Trace(header(), records))))


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(trace_path(tmp_path, 1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cpu_s", 1e16),
        ("left_s", 1e300),
        ("entered_s", -1e9),
        ("bytes", 2**63),
        ("cpu_s", 61),
        ("bytes", 11),
    ],
)
def test_records_beyond_the_limits_of_a_run_are_refused(tmp_path: Path, field: str, value: float) -> None:
    records = RECORDS.copy()
    records["bytes"][1] = 10
    limits = TraceLimits(seconds=60, bytes=10)
    path = written(tmp_path, encode_trace(Trace(header(), records)))
    assert read_trace(path, limits).header == header()
    records[field][1] = value
    written(tmp_path, encode_trace(Trace(header(), records)))
    with pytest.raises(TraceError, match=f"record 1: {field} is .*; allowed: "):
        read_trace(path, limits)


@pytest.mark.parametrize("epoch", [0, -1, 4])
def test_epochs_are_those_of_the_run(tmp_path: Path, epoch: int) -> None:
    records = np.array([(Kind.EPOCH, 0, epoch, 0, 0.0, 0.0, 0.0)], RECORD)
    content = encode_trace(Trace(header(count=1), records))
    with pytest.raises(TraceError, match="record 0: peer"):
        read_trace(written(tmp_path, content), TraceLimits(epochs=3))


@pytest.mark.parametrize("started_s", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_start_without_range_is_refused(tmp_path: Path, started_s: float) -> None:
    wrong = header().model_copy(update={"started_s": started_s})
    with pytest.raises(TraceError, match="started_s"):
        read_trace(written(tmp_path, encode_trace(Trace(wrong, RECORDS))))


def test_a_pipe_is_no_trace(tmp_path: Path) -> None:
    os.mkfifo(trace_path(tmp_path, 1))
    with pytest.raises(TraceError, match="is a pipe"):
        read_trace(trace_path(tmp_path, 1))
