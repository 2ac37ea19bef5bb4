"""Mistakes in the layers: imports against their order or in circles, also those for types only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

from tests.unit.conftest import PROJECT
from trainer.spec.registries import STRATEGIES

RUN = "results runtimes execution"
ANALYSIS = "formats statistics model quantities metrics findings figures"
COMPONENTS = "data models losses optimizers lr_schedules compression"
# Package (or module) -> the packages that it may import besides itself.
TRAINER: dict[str, str] = {
    "core": "",
    "comm": "core",
    "data": "core comm",
    "models": "core comm data",
    "losses": "core",
    "optimizers": "core comm data models",
    "lr_schedules": "core",
    "compression": "core comm data models optimizers",
    "aggregation": "core",
    "attacks": "core",
    "spec": f"core comm {COMPONENTS} aggregation attacks",
    "time_model": "core spec",
    "link_switch": "core spec",
    "training": f"core comm {COMPONENTS} aggregation attacks spec",
    "parallel": f"core comm {COMPONENTS} aggregation spec training",
    "strategies": f"core comm {COMPONENTS} aggregation spec training parallel",
    "launch": f"core comm {COMPONENTS} spec training parallel strategies",
    "components": f"core comm {COMPONENTS} spec training parallel strategies launch",
    "torchrun_restarts": f"core comm {COMPONENTS} spec training parallel strategies launch",
    "virtual": "core comm spec time_model training launch",
    "__main__": "core comm data models spec training launch torchrun_restarts virtual",
    "warm": "core comm data spec launch __main__",
    "node": "core comm data models spec training launch torchrun_restarts warm",
    "course": "core",
}
ORCHESTRATOR: dict[str, str] = {
    "errors": "",
    "identity": "",
    "interrupts": "",
    "registries": "",
    "shipped": "errors",
    "sandbox": "errors identity shipped",
    "sweeps": "errors registries shipped sandbox",
    "terminal": "errors sweeps",
    "results": "errors shipped sweeps",
    "runtimes": "errors identity registries shipped sandbox sweeps results",
    "replay": "errors shipped sweeps results runtimes",
    "execution": "errors shipped sweeps results runtimes",
    "report": "errors shipped sweeps results runtimes replay",
    "prediction": "errors results runtimes replay execution",
    "layouts": "errors results replay execution prediction",
    "export": "errors shipped sweeps results runtimes report",
    "watch": "errors shipped sweeps results runtimes execution report",
    "course": "errors identity shipped sandbox results runtimes",
    "commands": f"errors shipped sandbox sweeps terminal {RUN} replay prediction layouts report export "
    "watch course",
    "api": "errors shipped sweeps results commands report",
    "cli": f"errors shipped sandbox sweeps terminal {RUN} replay report export course commands",
    "__main__": "interrupts cli",
}
REPORT: dict[str, str] = {
    "formats": "",
    "statistics": "formats",
    "model": "formats statistics",
    "quantities": "formats statistics model",
    "metrics": "formats statistics model quantities",
    "findings": "formats statistics model quantities metrics",
    "figures": "formats statistics model quantities metrics findings",
    "topics": ANALYSIS,
    "verdict": "formats statistics model quantities metrics findings topics",
    "plots": "model findings figures topics",
    "renderer": "",
    "render": f"{ANALYSIS} topics verdict plots renderer",
    "directory_comparison": f"{ANALYSIS} render",
    "__init__": f"{ANALYSIS} topics verdict plots renderer render",
}
LAYERS = {"trainer": TRAINER, "orchestrator": ORCHESTRATOR, "orchestrator.report": REPORT}

# What the orchestrator may import from the trainer. All of it runs without torch.
SHARED = {
    "node": "coordinator channel heartbeat home lead members mpi_rank protocol rank_assignment site",
    "components": "examine find kind messages",
    "core": (
        "cgroup event_schema events frames json_files membership position processes record registry "
        "regular_files result sources trace user_code whole_number"
    ),
    "course": "protocol",
    "data": "base",
    "launch": "launchers",
    "link_switch": "control",
    "models": "base split_points",
    "parallel": "mesh schedules",
    "spec": "byzantine checks faults link node_speed noise_scale output_limits registries run_spec traces",
    "strategies": "hybrid",
    "time_model": "algorithms cluster collectives described errors outcome program simulate",
    "torchrun_restarts": "attempts command",
    "training": "partition profile stopping",
    "virtual": "options",
    "warm": "client process",
}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__")


FILES = [path for of in ("trainer", "orchestrator", "shardyard") for path in (PROJECT / of).rglob("*.py")]
PATHS = {module_name(path): path for path in FILES}


@cache
def trees() -> dict[str, ast.Module]:
    """By module. Not parsed on import, which each worker of pytest does."""
    return {name: ast.parse(path.read_text()) for name, path in PATHS.items()}


def imported_modules(name: str) -> Iterator[str]:
    """The project's modules that a module imports, including imports in functions and for types."""
    for node in ast.walk(trees()[name]):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            of = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            assert not getattr(node, "level", 0), f"{name}:{node.lineno}: relative import"
            for full in (of + alias.name for alias in node.names):
                target = full if full in PATHS else of.removesuffix(".")
                assert full.split(".")[0] != "tools", f"{name} imports a tool of maintainers"
                assert target in PATHS or full.split(".")[0] not in LAYERS, f"{name}: {full} does not exist"
                if target in PATHS and target != name:
                    yield target


@cache
def graph() -> dict[str, set[str]]:
    return {name: {*imported_modules(name)} for name in PATHS}


def layer(package: str, module: str) -> str | None:
    """The part of `package` that a module belongs to, or None if it is outside."""
    if module == package:
        return "__init__"
    return module.removeprefix(f"{package}.").split(".")[0] if module.startswith(f"{package}.") else None


@pytest.mark.parametrize("package", LAYERS)
def test_packages_import_only_earlier_ones_that_their_row_allows(package: str) -> None:
    table = LAYERS[package]
    assert {layer(package, module) for module in PATHS} - {None, "__init__"} <= table.keys()
    rows = [*table]
    assert [name for name in rows if not {*table[name].split()} <= {*rows[: rows.index(name)]}] == []
    wrong = [
        (module, target)
        for module, targets in graph().items()
        for target in targets
        if (source := layer(package, module)) in table
        and (imported := layer(package, target)) not in (None, "__init__", source)
        and imported not in table[str(source)].split()
    ]
    assert wrong == []


def test_trainer_and_orchestrator_share_only_what_is_listed() -> None:
    across = {
        (name.partition(".")[0], target)
        for name, targets in graph().items()
        for target in targets
        if name.partition(".")[0] not in (target.partition(".")[0], "shardyard")
    }
    listed = (f"trainer.{package}.{name}" for package, names in SHARED.items() for name in names.split())
    assert across == {("orchestrator", target) for target in listed}


def test_no_module_is_in_an_import_circle() -> None:
    assert len([*TopologicalSorter(graph()).static_order()]) == len(PATHS)  # or CycleError names the circle


def test_modules_have_docstrings_and_names_of_what_is_in_them() -> None:
    assert [name for name, tree in trees().items() if not ast.get_docstring(tree)] == []
    assert [path for path in PATHS.values() if path.stem in ("utils", "util", "helpers", "misc")] == []


def test_benchmarks_soak_tests_and_test_support_can_be_imported() -> None:
    folders = (PROJECT / "tests" / name for name in ("bench", "faults", "soak", "support"))
    modules = {module_name(path) for folder in folders for path in folder.glob("[!_]*.py")}
    assert {"tests.bench.predictions", "tests.support.runs"} <= modules
    for module in modules:
        import_module(module)
    predicted = {run.name_of("strategy") for run in import_module("tests.bench.predictions").strategies(0)}
    traced = {name for name in STRATEGIES.entries if STRATEGIES.load(name).trains}
    assert traced - predicted == {"hogwild", "serial"}  # without messages
