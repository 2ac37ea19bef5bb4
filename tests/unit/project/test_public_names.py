"""`shardyard` exports one set of names: to users' scripts, to type checkers, and to components in nodes."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

import shardyard

NODES = {name for name, module in shardyard._MODULES.items() if module.startswith("trainer.")}


def test_types_and_values_come_from_the_same_modules() -> None:
    (types,) = (
        node
        for node in ast.parse(Path(shardyard.__file__).read_text(encoding="utf-8")).body
        if isinstance(node, ast.If)
    )
    typed = {
        alias.name: each.module
        for each in types.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    assert typed == shardyard._MODULES
    assert sorted(typed) == sorted(shardyard.__all__) == sorted(dir(shardyard))


@pytest.mark.parametrize("name", shardyard.__all__)
def test_every_name_exists(name: str) -> None:
    assert getattr(shardyard, name) is getattr(import_module(shardyard._MODULES[name]), name)


def test_other_names_do_not() -> None:
    with pytest.raises(AttributeError, match="Strategies"):
        _ = shardyard.Strategies


def test_nodes_need_no_orchestrator(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {"orchestrator", *(each for each in sys.modules if each.startswith("orchestrator."))}:
        monkeypatch.setitem(sys.modules, name, None)
    assert "Strategy" in NODES
    assert all(getattr(shardyard, name) for name in NODES)
    with pytest.raises(ImportError):
        _ = shardyard.sweep
