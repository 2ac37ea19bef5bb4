"""Imports go one way: which package may import which, and no circles, type-only imports included."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

from orchestrator.course.assignments import KITS
from tests.unit.conftest import PROJECT

# Package (or module) -> the packages that it may import besides itself.
TRAINER: dict[str, str] = {
    "core": "",
    "comm": "core",
    "data": "core comm",
    "models": "core comm data",
    "losses": "core",
    "optimizers": "core comm data models",
    "compression": "core comm data models optimizers",
    "aggregation": "core",
    "attacks": "core",
    "spec": "core comm data models losses optimizers compression aggregation attacks",
    "time_model": "core spec",
    "user_components": "core data models losses optimizers",
    "link_switch": "core spec",
    "training": "core comm data models losses optimizers compression aggregation attacks spec",
    "parallel": "core comm data models losses optimizers compression aggregation spec training",
    "strategies": "core comm data models losses optimizers compression aggregation spec training parallel",
    "launch": (
        "core comm data models losses optimizers compression spec user_components training parallel "
        "strategies"
    ),
    "component_trials": (
        "core comm data models losses optimizers compression spec user_components training strategies "
        "launch"
    ),
    "conformance": (
        "core comm data models losses optimizers compression spec user_components component_trials "
        "training parallel strategies launch"
    ),
    "torchrun_restarts": (
        "core comm data models losses optimizers compression spec training parallel strategies launch"
    ),
    "virtual": "core comm spec time_model training launch",
    "__main__": "core comm data models spec training launch torchrun_restarts virtual",
    "warm": "core comm data spec launch __main__",
    "slurm_allocation": "core launch warm",
    "cluster": "core comm data models spec training launch torchrun_restarts warm",
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
    "layouts": "results replay execution prediction",
    "export": "errors shipped sweeps results runtimes report",
    "watch": "errors shipped sweeps results runtimes execution report",
    "course": "errors identity shipped sandbox results runtimes",
    "commands": (
        "errors shipped sandbox sweeps results runtimes execution replay prediction layouts report export "
        "watch course"
    ),
    "api": "errors shipped sweeps results commands report",
    "cli": (
        "errors shipped sandbox sweeps terminal results runtimes execution replay report export course "
        "commands"
    ),
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
    "topics": "formats statistics model quantities metrics findings figures",
    "verdict": "formats statistics model quantities metrics findings topics",
    "plots": "model figures topics",
    "renderer": "",
    "render": "formats statistics model quantities metrics findings figures topics verdict plots renderer",
    "directory_comparison": "formats statistics model quantities metrics findings figures render",
    "__init__": (
        "formats statistics model quantities metrics findings figures topics verdict plots renderer render"
    ),
}
LAYERS = {"trainer": TRAINER, "orchestrator": ORCHESTRATOR, "orchestrator.report": REPORT}

# What the orchestrator may import from the trainer. All of it runs without torch.
SHARED_MODULES = (
    "slurm_allocation.leader",
    "slurm_allocation.messages",
    "cluster.hand_over",
    "cluster.heartbeat",
    "cluster.rank_assignment",
    "conformance.report",
    "core.cgroup",
    "core.event_schema",
    "core.events",
    "core.frames",
    "core.json_files",
    "core.membership",
    "core.position",
    "core.processes",
    "core.record",
    "core.registry",
    "core.regular_files",
    "core.result",
    "core.trace",
    "core.whole_number",
    "course.protocol",
    "data.base",
    "torchrun_restarts.attempts",
    "torchrun_restarts.command",
    "user_components.source",
    "component_trials.messages",
    "launch.launchers",
    "models.base",
    "models.split_points",
    "spec.byzantine",
    "spec.checks",
    "spec.faults",
    "spec.link",
    "spec.node_speed",
    "spec.output_limits",
    "spec.registries",
    "spec.run_spec",
    "spec.traces",
    "strategies.hybrid",
    "time_model.algorithms",
    "time_model.cluster",
    "time_model.collectives",
    "time_model.described",
    "time_model.errors",
    "time_model.outcome",
    "time_model.program",
    "time_model.simulate",
    "link_switch.control",
    "training.partition",
    "training.profile",
    "training.stopping",
    "virtual.options",
    "warm.client",
    "warm.process",
)


def module_name(path: Path) -> str:
    name = ".".join(path.relative_to(PROJECT).with_suffix("").parts)
    return name.removesuffix(".__init__")


PATHS = {
    module_name(path): path
    for package in ("trainer", "orchestrator")
    for path in sorted((PROJECT / package).rglob("*.py"))
    if not path.is_relative_to(KITS)  # files for students, which are no modules
}


def imported_modules(path: Path) -> Iterator[str]:
    """The project's modules that a file imports, including imports in functions and for types."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [(alias.name, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [(f"{node.module}.{alias.name}", str(node.module)) for alias in node.names]
        else:
            continue
        for full, module in names:
            target = full if full in PATHS else module
            if target in PATHS:
                yield target
            else:
                assert target.split(".")[0] not in LAYERS, f"{path}: {target} does not exist"


GRAPH = {name: {*imported_modules(path)} - {name} for name, path in PATHS.items()}


def layer(package: str, module: str) -> str | None:
    """The part of `package` that a module belongs to, or None if it is outside."""
    if module == package:
        return "__init__"
    return module.removeprefix(f"{package}.").split(".")[0] if module.startswith(f"{package}.") else None


def violations(package: str, allowed: dict[str, str]) -> set[tuple[str, str]]:
    found = set()
    for module, targets in GRAPH.items():
        for target in targets:
            source, imported = layer(package, module), layer(package, target)
            if source is None or imported in (None, "__init__", source) or source not in allowed:
                continue
            if imported not in allowed[source].split():
                found.add((module, target))
    return found


def circles(graph: dict[str, set[str]]) -> Iterator[set[str]]:
    """Yield circles one by one; drops an import of each to find the next."""
    graph = {name: {*targets} for name, targets in graph.items()}
    while True:
        try:
            [*TopologicalSorter(graph).static_order()]
        except CycleError as error:
            circle = error.args[1]
            yield {*circle}
            graph[circle[1]].discard(circle[0])
        else:
            return


@pytest.mark.parametrize("package", LAYERS)
def test_tables_list_every_package_in_order(package: str) -> None:
    """Each row may import only earlier rows, so the table itself has no circle."""
    table = LAYERS[package]
    layers = {layer(package, module) for module in PATHS} - {None, "__init__"}
    assert layers <= table.keys()
    earlier: list[str] = []
    for name, allowed in table.items():
        assert {*allowed.split()} <= {*earlier}, name
        earlier.append(name)


@pytest.mark.parametrize("package", LAYERS)
def test_packages_import_only_earlier_ones(package: str) -> None:
    assert sorted(violations(package, LAYERS[package])) == []


def test_trainer_does_not_import_the_orchestrator() -> None:
    found = [
        (module, target)
        for module, targets in GRAPH.items()
        for target in targets
        if module.startswith("trainer.") and target.startswith("orchestrator")
    ]
    assert found == []


def test_orchestrator_imports_only_shared_modules_of_the_trainer() -> None:
    found = {
        target.removeprefix("trainer.")
        for module, targets in GRAPH.items()
        for target in targets
        if module.startswith("orchestrator") and target.startswith("trainer")
    }
    assert found == {*SHARED_MODULES}


def test_products_do_not_import_the_tools_of_maintainers() -> None:
    packages = ("trainer", "orchestrator", "shardyard")
    files = [path for package in packages for path in (PROJECT / package).rglob("*.py")]
    assert [path for path in files if re.search(r"(?m)^\s*(from|import) tools\b", path.read_text())] == []


def test_no_module_is_in_an_import_circle() -> None:
    assert [*circles(GRAPH)] == []


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, [{"a", "b"}]),
    ],
)
def test_circles_are_found(graph: dict[str, set[str]], expected: list[set[str]]) -> None:
    assert [*circles(graph)] == expected


@pytest.mark.parametrize("module", PATHS)
def test_module_has_a_docstring(module: str) -> None:
    assert ast.get_docstring(ast.parse(PATHS[module].read_text()))


def test_no_utils_modules() -> None:
    assert [path for path in PATHS.values() if path.stem in ("utils", "util", "helpers", "misc")] == []


@pytest.mark.parametrize(
    "module",
    [
        ".".join(path.relative_to(PROJECT).with_suffix("").parts)
        for folder in ("bench", "soak", "support")
        for path in sorted((PROJECT / "tests" / folder).glob("[!_]*.py"))
    ],
)
def test_benchmarks_soak_tests_and_test_support_can_be_imported(module: str) -> None:
    import_module(module)
