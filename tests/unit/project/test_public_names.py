"""Mistakes in the names of `shardyard`: other ones for type checkers, and the orchestrator in nodes."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

import shardyard


def test_types_and_values_come_from_the_same_modules() -> None:
    tree = ast.parse(Path(shardyard.__file__).read_text(encoding="utf-8"))
    (types,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in types.body if isinstance(node, ast.ImportFrom)]
    typed = {alias.name: node.module for node in imports for alias in node.names}
    assert typed == shardyard._MODULES
    assert sorted(typed) == sorted(shardyard.__all__) == sorted(dir(shardyard))
    for name, module in typed.items():
        assert getattr(shardyard, name) is getattr(import_module(str(module)), name)
    assert not hasattr(shardyard, "Strategies")


def test_nodes_need_no_orchestrator(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {"orchestrator", *(each for each in sys.modules if each.startswith("orchestrator."))}:
        monkeypatch.setitem(sys.modules, name, None)
    names = {name for name, module in shardyard._MODULES.items() if module.startswith("trainer.")}
    assert "Strategy" in names
    assert all(getattr(shardyard, name) for name in names)
    with pytest.raises(ImportError):
        _ = shardyard.sweep
