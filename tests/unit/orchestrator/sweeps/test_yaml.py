"""The YAML of sweep files: strict, with numbers such as 1e-3."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.sweeps.yaml import parse_yaml, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1e-3", 1e-3), ("1E5", 1e5), ("-2e+1", -20.0), ("1.5e3", 1500.0), ("0.05", 0.05), ("1.", 1.0)),
        *(
            ("10", 10),
            ("true", True),
            ("null", None),
            ("", None),
            (".nan", pytest.approx(float("nan"), nan_ok=True)),
        ),
        *(("e3", "e3"), ("1e", "1e"), ("'1e-3'", "1e-3"), ("v1e3", "v1e3"), ("1e3x", "1e3x")),
        *(("[1, 1e-1]", [1, 0.1]), ("{a: {b: [x]}}", {"a": {"b": ["x"]}}), ("a.b: 1", {"a.b": 1})),
    ],
)
def test_values(text: str, value: Any) -> None:
    parsed = parse_yaml(text, "--set")
    assert parsed == value
    assert type(parsed) is type(value) or isinstance(parsed, float)


def test_integers_and_floats() -> None:
    assert isinstance(parse_yaml("3", "x"), int)
    assert isinstance(parse_yaml("3e0", "x"), float)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a: 1\nb: 2\na: 3\n", (3, 1)),
        ("x:\n  k: 1\n  k: 1\n", (3, 2)),
        ("- {k: 1, k: 2}\n", (1, 1)),
        ("k: 1\n\n\n'k': 2\n", (4, 1)),
    ],
)
def test_duplicate_key(text: str, lines: tuple[int, int]) -> None:
    with pytest.raises(
        InputError, match=rf"^s\.yml:{lines[0]}: duplicate key '\w', also in line {lines[1]}$"
    ):
        parse_yaml(text, "s.yml")


def test_same_key_in_different_mappings() -> None:
    assert parse_yaml("a: {k: 1}\nb: {k: 1}\n", "x") == {"a": {"k": 1}, "b": {"k": 1}}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1", 1),
        ("a: 1\n\tb: 2", 2),
        ("a: b: c", 1),
        ("a: *nowhere", 1),
        ("x: 1\n- 2", 2),
        ("a: !!python/object:os.system 1", 1),
    ],
)
def test_invalid_yaml_error_names_file_and_line(text: str, line: int) -> None:
    with pytest.raises(InputError, match=rf"^s\.yml:{line}: \S"):
        parse_yaml(text, "s.yml")


def test_forbidden_characters() -> None:
    with pytest.raises(InputError, match=r"^s\.yml: invalid YAML"):
        parse_yaml("a: \x00", "s.yml")


@pytest.mark.parametrize(
    "value",
    [
        *["2026-02-30", "2024-13-45", "0000-01-01", "2001-01-01T00:00:00+99:99", "!!timestamp x"],
        *["!!int x", "!!int ''", "!!int =", "!!int 0x", "!!float x", "!!float ''", "!!bool x", "!!set [x]"],
    ],
)
def test_invalid_values(value: str) -> None:
    with pytest.raises(InputError, match=r"^s\.yml:2: \S"):
        parse_yaml(f"a: 1\nb: {value}", "s.yml")


@pytest.mark.parametrize(
    "number",
    [
        *["9" * 5000, "-" + "9" * 5000, "0x" + "f" * 5000, "0b" + "1" * 20_000, "0" + "7" * 5000],
        *["1" + ":0" * 2500, "1" + ":0" * 2500 + ":0.5", "1." + "0" * 5000, "!!int " + "9" * 5000],
    ],
    ids=lambda number: number[:8],
)
def test_a_number_has_at_most_100_characters(number: str) -> None:
    for text in (f"a: 1\nb: {number}", f"a: 1\n? {number}\n: b", f"# a\n- {number}"):
        with pytest.raises(InputError, match=r"^s\.yml:2: a number of [0-9,]+ characters") as raised:
            parse_yaml(text, "s.yml")
        assert len(str(raised.value)) < 100
    assert parse_yaml("9" * 100, "s.yml") == 10**100 - 1


def test_merge_keys() -> None:
    assert parse_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n", "x")["b"] == {"x": 1, "y": 3}


def test_anchors() -> None:
    assert parse_yaml("a: &a [1]\nb: *a\n", "x") == {"a": [1], "b": [1]}


def test_read_yaml_also_returns_the_text(tmp_path: Path) -> None:
    path = tmp_path / "s.yml"
    path.write_text("# größer\na: ü\n", encoding="utf-8")
    assert read_yaml(path) == ({"a": "ü"}, "# größer\na: ü\n")


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "latin.yml").write_bytes("a: ü".encode("latin-1"))
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe.yml")
    for path, reason in [
        (tmp_path / "absent.yml", "no such file"),
        (tmp_path, "is a directory"),
        (tmp_path / "pipe.yml", "is a pipe"),
        (tmp_path / "latin.yml", "cannot be read"),
        (tmp_path / "file" / "s.yml", "cannot be read"),
    ]:
        with pytest.raises(InputError) as caught:
            read_yaml(path)
        assert str(caught.value).startswith(f"{path}: {reason}")


def test_escapes_of_a_surrogate_pair_are_one_character() -> None:
    """As in JSON, of which every document is YAML."""
    assert parse_yaml(json.dumps({"\U00010000": "\U0001f600"}), "s.yml") == {"\U00010000": "\U0001f600"}
