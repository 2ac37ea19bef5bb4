"""Mistakes in trace files: damage that is not noticed, records that no rank writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

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
    wrong_record,
)

RECORDS = np.array(
    [(Kind.WORK, 0, 1, 0, 0.25, 0.0, 0.5), (Kind.ALL_REDUCE, 0, -1, 4096, 0.0, 0.5, 0.75)], RECORD
)
LIMITS = TraceLimits(seconds=60, bytes=4096, epochs=3)


def header(**changes: object) -> TraceHeader:
    values = {"run": "run", "rank": 1, "size": 2, "transport": "gloo", "mode": "steps", "started_s": 12.5}
    return TraceHeader.model_validate({**values, "groups": [None, [1]], "count": len(RECORDS), **changes})


CONTENT = encode_trace(Trace(header(), RECORDS))


def read(directory: Path, content: bytes) -> Trace:
    path = trace_path(directory, 1)
    path.write_bytes(content)
    return read_trace(path, LIMITS)


def test_a_trace_is_read_back(tmp_path: Path) -> None:
    trace = read(tmp_path, CONTENT)
    assert trace.header == header()
    assert [[*trace.header.members(group)] for group in (0, 1)] == [[0, 1], [1]]
    assert (trace.records == RECORDS).all()


def test_every_damage_is_noticed(tmp_path: Path) -> None:
    changed = (CONTENT[:at] + bytes([CONTENT[at] ^ 0x40]) + CONTENT[at + 1 :] for at in range(len(CONTENT)))
    shortened = (CONTENT[:left] for left in (0, 10, 200, -5))
    for content in (*changed, *shortened, CONTENT + b"\0"):
        with pytest.raises(TraceError, match="trace-1"):
            read(tmp_path, content)


def test_what_is_no_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="version 1"):
        read(tmp_path, CONTENT.replace(b'"version":1', b'"version":2'))
    for started_s in (float("nan"), float("inf"), -1.0, 1e300):
        wrong = header().model_copy(update={"started_s": started_s})
        with pytest.raises(TraceError, match="started_s"):
            read(tmp_path, encode_trace(Trace(wrong, RECORDS)))
    trace_path(tmp_path, 1).unlink()
    with pytest.raises(TraceError, match="No such file"):
        read_trace(trace_path(tmp_path, 1))
    os.mkfifo(trace_path(tmp_path, 1))
    with pytest.raises(TraceError, match="is a pipe"):
        read_trace(trace_path(tmp_path, 1))


# A field, the kind of its record, values that a rank of the run can write, and values that it cannot.
RANGES: list[tuple[str, Kind, list[Any], list[Any]]] = [
    ("kind", Kind.BARRIER, [1, 42], [0, 99]),
    ("group", Kind.BARRIER, [0, 1], [2]),
    ("peer", Kind.EPOCH, [1, 3], [-1, 0, 4]),
    ("peer", Kind.SHIFT, [-1, 0, 4], []),
    ("bytes", Kind.ALL_REDUCE, [0, 4096], [4097, 2**63]),
    ("bytes", Kind.SEND_WAIT, [4097], []),  # an index
    ("cpu_s", Kind.WORK, [0.0, 60.0], [-0.1, 60.1, 1e16, float("nan")]),
    ("entered_s", Kind.BARRIER, [-60.0, 0.75], [-60.1, float("nan")]),
    ("left_s", Kind.BARRIER, [0.5, 60.0], [0.4, 60.1, 1e300, float("nan")]),
]


def test_records_that_no_rank_writes_are_refused(tmp_path: Path) -> None:
    for field, kind, right, wrong in RANGES:
        found = []
        for value in (*right, *wrong):
            records = RECORDS.copy()
            records["kind"][1] = kind
            records["peer"][1] = 1
            records[field][1] = value
            found.append(wrong_record(header(), records, LIMITS, first=5).partition(" is ")[0])
        assert found == [""] * len(right) + [f"record 6: {field}"] * len(wrong)
    trace_path(tmp_path, 1).write_bytes(CONTENT)
    with pytest.raises(TraceError, match=r"record 1: bytes is .*; allowed: at most 10"):
        read_trace(trace_path(tmp_path, 1), TraceLimits(bytes=10))
