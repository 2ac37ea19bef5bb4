"""The command line, without starting any node."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from orchestrator import cli
from orchestrator.commands import doctor
from orchestrator.commands import sweep as run_sweep
from orchestrator.commands.doctor import Finding
from orchestrator.errors import InputError
from orchestrator.execution.order import execution_order
from orchestrator.interrupts import interruptible
from orchestrator.report import Written
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes.base import Runtime
from orchestrator.runtimes.docker.engine import EngineError
from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.runtimes.local.runtime import LocalRuntime
from orchestrator.runtimes.ray.runtime import RayRuntime
from orchestrator.runtimes.slurm.runtime import SlurmRuntime
from orchestrator.runtimes.swarm.runtime import SwarmRuntime
from orchestrator.runtimes.virtual.runtime import VirtualRuntime
from orchestrator.shipped import SWEEPS, find_sweep
from orchestrator.sweeps.load import load_sweep
from tests.unit.conftest import PROJECT

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def heeded() -> Iterator[None]:
    """The signals are not ignored, as they are if the tests run in the background."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("heeded")
def test_an_ignored_signal_stays_ignored() -> None:
    """As those of a command of `nohup`."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interruptible():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("number", SIGNALS)
def test_signal_interrupts_once_and_not_during_cleanup(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    cleaned = False
    with pytest.raises(KeyboardInterrupt), interruptible():  # noqa: PT012
        try:
            os.kill(os.getpid(), number)
            pytest.fail("was not interrupted")
        finally:
            for each in SIGNALS:
                os.kill(os.getpid(), each)
            cleaned = True
    assert cleaned
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_input_error_is_one_message_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["orchestrator", "sweep", str(tmp_path / "absent.yml")])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr() == ("", f"error: {tmp_path}/absent.yml: no such file\n")


@pytest.mark.parametrize("arguments", [[], ["--dry-run"]])
def test_equal_quotas_need_a_runtime_that_enforces_them(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
) -> None:
    file = tmp_path / "s.yml"
    file.write_text("name: s\nblocks: [{base: {strategy: serial}}]")
    monkeypatch.chdir(tmp_path)
    options = ["--runtime", "local", "--set", "cpus=equal", *arguments]
    monkeypatch.setattr(sys, "argv", ["orchestrator", "sweep", str(file), *options])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    message = capsys.readouterr().err
    for named in ("--set cpus=equal", "'equal'", "local", "--runtime docker", "a number"):
        assert named in message
    assert [*tmp_path.iterdir()] == [file]


def test_equal_quotas_share_the_cores_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DockerRuntime, "cores", lambda self: 10)
    loaded = load_sweep(PROJECT / "sweeps" / "smoke.yml")
    assert run_sweep.SelectedRuntime("docker", DockerRuntime(), "").shared_cores(loaded.spec) == 10


def test_equal_quotas_share_the_cores_of_the_machines_that_the_file_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cores(runtime: SwarmRuntime) -> float:
        return 2.0 if runtime.options.constraints else 6.0

    monkeypatch.setattr(SwarmRuntime, "cores", cores)
    selected = run_sweep.SelectedRuntime("swarm", SwarmRuntime(), "")
    options = "swarm: {constraints: [node.labels.rack==3]}"
    text = f"name: s\n{options}\nblocks: [{{base: {{strategy: serial, cpus: equal}}}}]"
    loaded = load_sweep(Path("s.yml"), text=text, cores=selected.shared_cores)
    assert loaded.equal_cpus is not None
    assert loaded.equal_cpus.cores == 2.0


def test_unknown_runtime_lists_the_known_ones() -> None:
    with pytest.raises(
        InputError, match="--runtime nomad: unknown runtime; known: docker, local, ray, slurm, swarm"
    ):
        run_sweep.select_runtime("nomad")


# Selecting the runtime


def engines(monkeypatch: pytest.MonkeyPatch, reason: str | None) -> None:
    monkeypatch.setattr(DockerRuntime, "unavailable_reason", lambda self: reason)


def test_runtime_defaults_to_docker_if_an_engine_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    engines(monkeypatch, None)
    selected = run_sweep.select_runtime(None)
    assert (selected.name, type(selected.runtime)) == ("docker", DockerRuntime)
    assert "--runtime local" in selected.reason


def test_runtime_falls_back_to_local_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    engines(monkeypatch, "no Docker engine answers at unix:///x")
    selected = run_sweep.select_runtime(None)
    assert (selected.name, type(selected.runtime)) == ("local", LocalRuntime)
    assert selected.reason == "no Docker engine answers at unix:///x"


def test_no_available_runtime_lists_every_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    engines(monkeypatch, "no engine answers")
    monkeypatch.setattr(LocalRuntime, "unavailable_reason", lambda self: "needs Linux")
    monkeypatch.setattr(RayRuntime, "unavailable_reason", lambda self: "no ray")
    monkeypatch.setattr(SlurmRuntime, "unavailable_reason", lambda self: "not installed")
    monkeypatch.setattr(SwarmRuntime, "unavailable_reason", lambda self: "in no swarm")
    with pytest.raises(InputError) as raised:
        run_sweep.select_runtime(None)
    assert str(raised.value).splitlines()[1:] == [
        "docker: no engine answers",
        "local: needs Linux",
        "ray: no ray",
        "slurm: not installed",
        "swarm: in no swarm",
        "virtual: needs Linux",
    ]


@pytest.mark.parametrize("name", ["docker", "local"])
def test_requested_runtime_is_used(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    engines(monkeypatch, None)
    assert (run_sweep.select_runtime(name).name, run_sweep.select_runtime(name).reason) == (
        name,
        f"--runtime {name}",
    )


@pytest.mark.parametrize(("option", "selected"), [(None, "virtual"), ("local", "local")])
def test_the_file_names_the_runtime_unless_an_option_does(option: str | None, selected: str) -> None:
    text = "name: s\nruntime: virtual\nblocks: [{base: {strategy: serial}}]"
    spec = load_sweep(Path("s.yml"), text=text).spec
    assert run_sweep.RuntimeSelection(option).of(spec).name == selected


def test_a_runtime_of_the_file_that_is_not_available_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(VirtualRuntime, "unavailable_reason", lambda self: "needs Linux")
    file = tmp_path / "s.yml"
    file.write_text("name: s\nruntime: virtual\nblocks: [{base: {strategy: serial}}]")
    done = CliRunner(env={"SHARDYARD_RUNTIME": None}).invoke(cli.app, ["sweep", str(file)])
    assert str(done.exception) == "the sweep file has runtime: virtual: needs Linux"


@pytest.mark.parametrize("how", ["option", "variable"])
def test_docker_without_an_engine_is_one_message_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, how: str
) -> None:
    engines(monkeypatch, "there is no docker compose command")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHARDYARD_RUNTIME", raising=False)
    option = ["--runtime", "docker"] if how == "option" else []
    if how == "variable":
        monkeypatch.setenv("SHARDYARD_RUNTIME", "docker")
    sweep = str(PROJECT / "sweeps" / "quickstart.yml")
    monkeypatch.setattr(sys, "argv", ["orchestrator", "sweep", sweep, *option])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr() == ("", "error: --runtime docker: there is no docker compose command\n")
    assert list(tmp_path.iterdir()) == []


def test_console_shows_the_runtime_and_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engines(monkeypatch, "no engine answers")
    monkeypatch.setattr(LocalRuntime, "clean", lambda self: 2)
    monkeypatch.setattr(
        "orchestrator.execution.sweep_runner.SweepRunner.prepare", lambda self, loaded: None
    )
    monkeypatch.setattr(
        "orchestrator.execution.sweep_runner.SweepRunner.results", lambda self, loaded: iter(())
    )
    monkeypatch.setattr(run_sweep, "publish_report", lambda paths, console: None)
    file = io.StringIO()
    loaded = load_sweep(PROJECT / "sweeps" / "smoke.yml")
    selected, console = run_sweep.select_runtime(None), run_sweep.text_console(file)
    how = run_sweep.HowToRun(warm_up_run=False)
    assert run_sweep.run_sweep(loaded, SweepPaths(tmp_path), selected, tmp_path, console, how) == 0
    assert "removed 2 leftover(s)" in file.getvalue()
    assert "nodes are local processes (no engine answers)\n" in file.getvalue()


def test_a_sweep_names_the_code_that_no_container_confines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    body = "return np.array_split(np.arange(len(labels)), parts)"
    (tmp_path / "mine.py").write_text(f"import numpy as np\ndef split(labels, parts): {body}\n")
    run = {"partitioner": "./mine.py:split", "strategy": "local_sgd", "nodes": 2, "dataset": "digits"}
    (tmp_path / "s.yml").write_text(json.dumps({"name": "s", "blocks": [{"base": run}]}))
    loaded = load_sweep(tmp_path / "s.yml")
    assert run_sweep.unconfined_code(loaded, DockerRuntime()) is None
    named = str(run_sweep.unconfined_code(loaded, LocalRuntime()))
    assert "mine.py:split" in named
    engines(monkeypatch, "no engine answers")
    run_sweep.print_plan(loaded, SweepPaths(tmp_path), run_sweep.select_runtime(None), tmp_path)
    assert capsys.readouterr().out.startswith(f"{named}\n")
    shipped = load_sweep(PROJECT / "sweeps" / "quickstart.yml")
    assert run_sweep.unconfined_code(shipped, LocalRuntime()) is None


def test_clean_covers_every_runtime(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runtimes = (LocalRuntime, DockerRuntime, SlurmRuntime, SwarmRuntime, VirtualRuntime, RayRuntime)
    for count, runtime in enumerate(runtimes, start=2):
        monkeypatch.setattr(runtime, "clean", lambda self, count=count: count)
    cli.clean()
    assert capsys.readouterr().out == "removed 27 process(es), container(s) and network(s)\n"


# The image


def test_image_is_built_with_the_given_wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built: list[Path | None] = []

    def build(engine: str, wheels: Path | None) -> int:
        assert engine == "the engine"
        built.append(wheels)
        return 7

    monkeypatch.setattr("orchestrator.runtimes.docker.engine.reach", lambda: "the engine")
    monkeypatch.setattr("orchestrator.runtimes.docker.image.build", build)
    for wheels in (tmp_path, None):
        with pytest.raises(typer.Exit) as caught:
            cli.image(wheels)
        assert caught.value.exit_code == 7
    assert built == [tmp_path, None]


def test_image_without_an_engine_or_wheels_is_an_input_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def reach() -> None:
        raise EngineError("no engine answers")

    monkeypatch.setattr("orchestrator.runtimes.docker.engine.reach", reach)
    with pytest.raises(InputError, match="no engine answers"):
        cli.image(None)
    with pytest.raises(InputError, match="/no: no such directory"):
        cli.image(tmp_path / "no")


@pytest.mark.parametrize(
    "name",
    ["plain", "long" * 40, "a[b]", "a[/b]", "a:b:c:ok:"],
)
def test_verdicts_and_the_path_of_a_report_are_printed_verbatim(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    written = Written("", [f"Choose {name}."] * 5, [])
    monkeypatch.setattr("orchestrator.report.write_report", lambda paths: written)
    file = io.StringIO()
    run_sweep.publish_report(SweepPaths(Path(name)), run_sweep.text_console(file))
    *verdicts, more, path = file.getvalue().splitlines()
    assert verdicts == [f"Choose {name}."] * 3
    assert "2 more workloads" in more
    assert path == f"report: {name}/report.html"


@pytest.mark.parametrize("path", ["/data", "/[b]/data"])
def test_doctor_prints_details_verbatim(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda data_dir: iter([Finding("mnist", "note", path)]))
    cli.doctor(Path(path))
    assert path in capsys.readouterr().out


def test_doctor_fails_if_a_required_finding_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [Finding("torch", "missing", "make venv", required=True), Finding("mpi", "missing", "no")]
    monkeypatch.setattr(doctor, "examine", lambda data_dir: iter(findings))
    with pytest.raises(typer.Exit) as caught:
        cli.doctor(Path())
    assert caught.value.exit_code == 1
    del findings[0]
    cli.doctor(Path())


@pytest.mark.parametrize(("options", "warm"), [([], True), (["--cold"], False)])
def test_cold_starts_every_rank_afresh(options: list[str], warm: bool) -> None:
    done = CliRunner().invoke(cli.app, ["sweep", "--runtime", "local", "--dry-run", "-v", *options])
    assert done.exit_code == 0, done.output
    commands = [line for line in done.output.splitlines() if line.startswith("  node ")]
    assert commands
    assert all(("warm/client.py" in line, "-m trainer" in line) == (warm, not warm) for line in commands)


@pytest.mark.parametrize(
    ("runtime", "strategy", "gib", "warned"),
    [
        (LocalRuntime, "ddp", 20, True),
        (DockerRuntime, "ddp", 20, True),
        (LocalRuntime, "ddp", 500, False),
        (LocalRuntime, "{name: one_shot}\n, transport: memory", 20, False),  # its ranks are threads
        (SlurmRuntime, "ddp", 20, False),  # its nodes are other machines
    ],
)
def test_a_run_that_memory_may_not_suffice_for_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, runtime: type[Runtime], strategy: str, gib: int, warned: bool
) -> None:
    monkeypatch.setattr(run_sweep, "memory_free", lambda: gib * 2**30)
    text = f"name: s\nblocks: [{{base: {{strategy: {strategy}}}, axes: {{nodes: [2, 600]}}}}]"
    found = run_sweep.memory_warning(load_sweep(Path("s.yml"), text=text), runtime())
    assert (found is not None) == warned
    if found:
        assert {"600", "28", "20.0"} <= {*re.findall(r"[\d.]+", found)}


def test_dry_run_prints_the_order_of_execution(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run_sweep, "memory_free", lambda: 2**40)
    file = tmp_path / "s.yml"
    file.write_text("name: s\nblocks: [{base: {strategy: ddp}, axes: {nodes: [1, 2, 3, 4, 5]}}]")
    arguments = ["sweep", str(file), "--runtime", "local", "--dry-run", "--shared-network", "--repeat", "2"]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    planned = re.findall(r"^\[(\d+)/10\] (\S+):", done.output, re.MULTILINE)
    assert len(done.output.splitlines()) == 10 + 1
    expected = execution_order("s", [load_sweep(file, repeat=2).runs])
    assert planned == [(str(number), run.key) for number, run in enumerate(expected, start=1)]


def test_dry_run_shows_options_of_the_runtime_and_what_they_exclude(tmp_path: Path) -> None:
    file = tmp_path / "s.yml"
    block = "{base: {strategy: all_reduce, transport: gloo}, axes: {nodes: [2, 4]}}"
    file.write_text(f"name: s\nruntime: virtual\nvirtual: {{workers: 9999}}\nblocks: [{block}]")
    done = CliRunner().invoke(cli.app, ["sweep", str(file), "--dry-run"])
    assert done.exit_code == 0, done.output
    first, *_, refused, planned = done.output.splitlines()
    assert first == 'virtual: {"workers": 9999}'
    assert refused.startswith("2 runs cannot be executed here, all_reduce-gloo-n2")
    assert "virtual.workers is 9999; allowed: 1 to " in refused
    assert planned == "2 runs planned; nothing was started"


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_the_name_of_a_shipped_sweep_is_no_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("quickstart"))
    assert find_sweep("quickstart") == SWEEPS / "quickstart.yml"
    assert find_sweep("./quickstart") == Path("quickstart")


def test_dry_run_warns_of_too_little_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run_sweep, "memory_free", lambda: 0)
    arguments = ["run", "ddp", "--nodes", "3", "--runtime", "local", "--dry-run", "--shared-network"]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("warning: ")
