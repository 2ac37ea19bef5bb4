"""Mistakes in what passes between grader and students' code: values, refused forms, errors, resets."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.core.frames import ProtocolError
from trainer.course.protocol import decode, encode
from trainer.course.worker import Worker


def passed(value: Any) -> Any:
    """The value after its way as JSON."""
    return decode(json.loads(json.dumps(encode(value))))


def test_values_arrive_unchanged_and_arrays_with_type_and_shape_to_be_written() -> None:
    values: list[Any] = [None, True, 3, -2.5, "é", [1, [2]], {"a": {1: [2.0]}}, float("inf")]
    assert passed(values) == values
    assert passed((values, (2,))) == [values, [2]]
    for dtype in ("float64", "float32", "float16", "int64", "uint8", "bool", ">f8"):
        for shape in ((), (0,), (3,), (2, 3)):
            array = np.ones(shape, dtype)
            arrived = passed(array)
            assert (arrived.dtype, arrived.shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(arrived, array)
            arrived[...] = 0
    np.testing.assert_array_equal(passed(torch.arange(3)), [0, 1, 2])


def test_other_values_and_invalid_forms_are_refused() -> None:
    others: list[Any] = [len, object(), {1, 2}, np.array(["x"]), np.array([None]), 1j, b"x"]
    for value in others:
        with pytest.raises(ProtocolError, match="type"):
            encode(value)
    data, deep = base64.b64encode(bytes(16)).decode(), list[Any]()
    for _ in range(100_000):
        deep = [deep]
    arrays: list[Any] = [["<f8", [2]], ["<f8", [2], "!"], [["<f8"], [2], data]]
    arrays += [["<f8", shape, data] for shape in ([3], [-1], [-2, -1], [2.0])]
    arrays += [[dtype, [2], data] for dtype in ("|O8", "<f3")]
    forms: list[Any] = [{}, {"array": 1, "dict": []}, {"dict": [[[], 1]]}, {"dict": [1]}, deep]
    forms += [{"object": []}, {"function": 0}, {"seed": 0}, {"pickle": "x"}]
    for form in (*forms, *({"array": each} for each in arrays)):
        with pytest.raises(ProtocolError):
            decode(form)


KINDS = st.sampled_from(["array", "dict", "object", "function", "seed"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KINDS, inner, max_size=2),
    max_leaves=12,
)


@settings(deadline=None, max_examples=40)
@given(JSON)
def test_any_json_is_decoded_or_refused(form: Any) -> None:
    with contextlib.suppress(ProtocolError, KeyError):
        decode(form, {0: len}.__getitem__)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A worker for mine.py, which imports another file."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "mine.py").write_text(
        "import beside_mine\n\ndef outer():\n    return beside_mine.inner()\n\n"
        "def number():\n    return beside_mine.NUMBER\n"
    )
    (tmp_path / "beside_mine.py").write_text("NUMBER = 1\ndef inner():\n    return 1 / 0\n")
    return Worker(tmp_path, io.BytesIO(), io.BytesIO())


def test_an_error_names_the_last_line_of_the_student_that_it_passed(worker: Worker) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        worker._function("mine.py", "outer", {})()
    assert worker._described(raised.value) == "beside_mine.py:3: ZeroDivisionError: division by zero"


def test_a_reset_imports_every_file_of_the_student_again(worker: Worker, tmp_path: Path) -> None:
    assert worker._function("mine.py", "number", {})() == 1
    (tmp_path / "beside_mine.py").write_text("NUMBER = 2\n")
    assert worker._function("mine.py", "number", {})() == 1
    worker._reset()
    assert worker._function("mine.py", "number", {})() == 2
