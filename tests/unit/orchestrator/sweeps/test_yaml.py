"""Mistakes in the YAML of sweep files: numbers, duplicate keys, sizes that explode, files that are none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.errors import InputError
from orchestrator.sweeps.yaml import parse_yaml, read_yaml


def test_numbers_with_an_exponent_are_numbers_and_all_else_is_yaml() -> None:
    for text in ("1e-3", "1E5", "-2e+1", "1.5e3", "0.05", "1.", "3e0", "1_0.5e+1"):
        value = parse_yaml(text, "--set")
        assert (type(value), value) == (float, float(text))
    for text in ("e3", "1e", "v1e3", "1e3x", "a.b"):
        assert parse_yaml(text, "--set") == text
    assert parse_yaml("'1e-3'", "--set") == "1e-3"
    values = parse_yaml("[3, true, null, {a: {b: [x, 1e-1]}}]", "--set")
    assert values == [3, True, None, {"a": {"b": ["x", 0.1]}}]
    assert type(values[0]) is int
    assert parse_yaml("", "--set") is None
    escaped = json.dumps({"\U00010000": "\U0001f600"})  # surrogate pairs, as in JSON, which is YAML
    assert parse_yaml(escaped, "--set") == {"\U00010000": "\U0001f600"}
    assert parse_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}", "x")["b"] == {"x": 1, "y": 3}
    assert parse_yaml("a: &a [1]\nb: *a\nc: {a: 1}", "x") == {"a": [1], "b": [1], "c": {"a": 1}}


GROWING = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]


def test_invalid_yaml_names_file_line_and_reason() -> None:
    for text, reason in (
        ("a: 1\nb: 2\na: 3", "3: duplicate key 'a', also in line 1"),
        ("x:\n  k: 1\n  k: 1", "3: duplicate key 'k', also in line 2"),
        ("k: 1\n\n\n'k': 2", "4: duplicate key 'k', also in line 1"),
        ("a: [1", "1: "),
        ("a: 1\n\tb: 2", "2: "),
        ("x: 1\n- 2", "2: "),
        ("a: !!python/object:os.system 1", "1: "),
        ("a: \x00", " invalid YAML"),
        ("[" * 500, " nested too deeply"),
        ('{"\\ud800": 1}', "1: half of a surrogate pair"),
        ("\n".join(["a: &a0 [1, 2, 3, 4]", *GROWING]), "5: 33,625 values, counting those of aliases"),
        ("base: &b {faults: [*b]}", "1: an alias names a list or mapping that contains the alias"),
    ):
        with pytest.raises(InputError) as raised:
            parse_yaml(text, "s.yml")
        assert str(raised.value).startswith(f"s.yml:{reason}")


DATES = ["2026-02-30", "2024-13-45", "0000-01-01", "2001-01-01T00:00:00+99:99", "!!timestamp x"]
TAGGED = ["!!int x", "!!int ''", "!!int =", "!!int 0x", "!!float x", "!!float ''", "!!bool x", "!!set [x]"]


def test_values_that_do_not_fit_their_type_name_file_and_line() -> None:
    for value in DATES + TAGGED:
        with pytest.raises(InputError, match=r"^s\.yml:2: \S"):
            parse_yaml(f"a: 1\nb: {value}", "s.yml")


LONG = ["9" * 5000, "-" + "9" * 5000, "0x" + "f" * 5000, "0b" + "1" * 20_000, "0" + "7" * 5000]
LONG += ["1" + ":0" * 2500, "1" + ":0" * 2500 + ":0.5", "1." + "0" * 5000, "!!int " + "9" * 5000]


def test_a_number_has_at_most_100_characters() -> None:
    for number in LONG:
        for text in (f"a: 1\nb: {number}", f"a: 1\n? {number}\n: b", f"# a\n- {number}"):
            with pytest.raises(InputError, match=r"^s\.yml:2: a number of [0-9,]+ characters") as raised:
                parse_yaml(text, "s.yml")
            assert len(str(raised.value)) < 100
    assert parse_yaml("9" * 100, "s.yml") == 10**100 - 1


def test_a_file_is_read_with_its_text_if_it_is_a_small_regular_one(tmp_path: Path) -> None:
    contents = {"s": "# größer\na: ü\n".encode(), "latin": b"a: \xfc", "large": b"#" * (2**20 + 1)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe")
    assert read_yaml(tmp_path / "s") == ({"a": "ü"}, "# größer\na: ü\n")
    for name, reason in (
        ("absent", "no such file"),
        ("", "is a directory, not a regular file"),
        ("pipe", "is a pipe"),
        ("/dev/zero", "is a device"),
        ("latin", "cannot be read"),
        ("s/s", "cannot be read"),
        ("large", "is larger than 1,048,576 bytes"),
    ):
        with pytest.raises(InputError) as raised:
            read_yaml(tmp_path / name)
        assert str(raised.value).startswith(f"{tmp_path / name}: {reason}")
