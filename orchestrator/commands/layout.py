"""The command `layout`: the ways to divide a model's training over nodes, by predicted time and memory."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Any

from pydantic import BaseModel
from rich.table import Table
from rich.text import Text

from orchestrator.commands.model import takes_tokens
from orchestrator.commands.replay import parse_link
from orchestrator.commands.sweep import SelectedRuntime
from orchestrator.errors import InputError
from orchestrator.execution.clusters import Clusters
from orchestrator.layouts.advice import Advice, advise
from orchestrator.layouts.candidates import candidates
from orchestrator.layouts.trials import EPOCHS, STEPS, Failed, Network, Trial, Trials
from orchestrator.prediction.measured_cluster import read_measured_cluster
from orchestrator.prediction.simulated import RUNTIME
from orchestrator.report import formats
from orchestrator.report.model.labels import component_label, strategy_label
from orchestrator.runtimes.virtual.runtime import VirtualRuntime
from orchestrator.sweeps.expand import BlockFields, check_field, expand
from orchestrator.sweeps.imports import Imports
from orchestrator.sweeps.yaml import parse_yaml
from orchestrator.terminal import plain_table
from trainer.core.registry import ImportedComponent
from trainer.spec.run_spec import RunSpec
from trainer.virtual.options import VirtualOptions

REAL = 3  # layouts that run for real, if each node can have a core
TRANSPORTS = ("gloo", "mpi", "rpc")  # that virtual nodes can play
# Fields that the command sets.
FIXED = ("strategy", "nodes", "model", "dataset", "epochs", "batch_size", "batch_per", "threads", "trace")
_MEMORY = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([kmgt]i?b)")
MAX_TIB = 1024
_BYTES = {
    f"{prefix}{binary}b": (1024 if binary else 1000) ** power
    for power, prefix in enumerate("kmgt", start=1)
    for binary in ("", "i")
}


@dataclass(frozen=True)
class Asked:
    """What the options ask. memory_bytes: of a node; None: any."""

    serial: RunSpec
    nodes: int
    transport: str
    memory_bytes: float | None
    network: Network


def asked(
    model: str,
    nodes: int,
    memory: str | None,
    link: str,
    cluster: Path | None,
    dataset: str | None,
    batch_size: int,
    sets: Sequence[str],
    transport: str,
) -> Asked:
    """The options, checked. Raises InputError."""
    network = Network(
        None if link == "none" else parse_link(link),
        None if cluster is None else read_measured_cluster(cluster),
    )
    memory_bytes = None if memory is None else parse_memory(memory)
    if transport not in TRANSPORTS:
        raise InputError(f"--transport {transport}: allowed: {', '.join(TRANSPORTS)}")
    return Asked(serial_run(model, dataset, batch_size, sets), nodes, transport, memory_bytes, network)


def parse_memory(text: str) -> float:
    """`4gb` in bytes. Raises InputError."""
    found = _MEMORY.fullmatch(text.strip().lower())
    size = 0.0 if found is None else float(found[1]) * _BYTES[found[2]]
    if not 0 < size <= MAX_TIB * 2**40:
        raise InputError(
            f"--memory {text}: must be a size above 0, at most {MAX_TIB}tib, such as 4gb; units are "
            f"{', '.join(_BYTES)}"
        )
    return size


def serial_run(model: str, dataset: str | None, batch_size: int, sets: Sequence[str]) -> RunSpec:
    """The serial run that all layouts divide. Raises InputError."""
    for each in sets:
        if (field := each.partition("=")[0].partition(".")[0]) in FIXED:
            raise InputError(
                f"--set {each}: {field} is not allowed here; it follows from the other options"
            )
    run = _serial(model, dataset or _dataset_for(model), batch_size, sets)
    for name in type(run).model_fields:
        if isinstance(getattr(run, name), ImportedComponent):
            raise InputError(f"{name}: components of your own are not supported by layout")
    return run


def _dataset_for(model: str) -> str:
    """A dataset that the model takes."""
    return "{name: induction, length: 63, tokens: 96}" if takes_tokens(model) else "synthetic"


def _serial(model: str, dataset: str, batch_size: int, sets: Sequence[str]) -> RunSpec:
    """A serial run of a few steps. Raises InputError."""
    fields = BlockFields("layout", skip=[])
    own = {"strategy": "serial", "batch_per": "run", "epochs": EPOCHS, "threads": 1, "trace": "steps"}
    for name, value in own.items():
        fields.override(name, [value], "layout")
    fields.option("model", model, "model")
    fields.option("dataset", dataset)
    fields.option("batch_size", batch_size)
    for each in sets:
        name, _, text = each.partition("=")
        check_field(name, f"--set {each}")
        fields.override(name, [parse_yaml(text, f"--set {each}")], f"--set {each}")
    (run,) = expand(fields, Imports(Path()))
    if "samples" not in type(run.dataset).model_fields:
        raise InputError(
            f"--dataset {dataset}: its number of samples is fixed; allowed: copy, induction, synthetic"
        )
    fields.override("dataset.samples", [STEPS * batch_size], "layout")
    fields.override("dataset.test_samples", [batch_size], "layout")
    (run,) = expand(fields, Imports(Path()))
    return run


def advice(asked: Asked, data_dir: Path, selected: SelectedRuntime | None, most_real: int | None) -> Advice:
    """Try all layouts on virtual nodes, then the fastest for real.

    Args:
        selected: the runtime of real nodes; None: no layout runs for real.
        most_real: how many layouts run for real; None: some if each node can have a core, otherwise none.

    Raises:
        InputError: the serial run failed, or the runtime has no real nodes.
    """
    if selected is not None and selected.runtime.info.simulates_time:
        raise InputError(
            f"--runtime {selected.name}: has no real nodes; choose another one, or use --real 0"
        )
    if selected is not None and most_real is None:
        most_real = REAL if asked.nodes <= selected.runtime.cores() else 0
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runtime = VirtualRuntime()
        runtime.configure(VirtualOptions())
        clusters = stack.enter_context(Clusters(runtime))
        virtual = Trials(clusters, RUNTIME, directory / "virtual", data_dir, asked.network)
        serial = virtual.of(asked.serial)
        if isinstance(serial, Failed):
            raise InputError(f"the serial run failed: {serial.reason}")
        found = candidates(asked.serial, asked.nodes, asked.transport)
        predicted = advise(serial, found, virtual.of, asked.memory_bytes)
        if selected is None or not most_real:
            return predicted
        selected.runtime.configure(selected.runtime.Options())
        real = stack.enter_context(Clusters(selected.runtime))
        trials = Trials(real, selected.name, directory / "real", data_dir, asked.network)
        return predicted.with_real(trials.of, most_real)


def lines(asked: Asked, found: Advice, width: int) -> Iterator[Text | Table]:
    """All that the command prints."""
    serial = asked.serial
    yield Text(
        f"{component_label(serial, 'model')} on samples of {'×'.join(map(str, serial.dataset.shape))}, "
        f"{formats.count(asked.nodes, 'node')}, batches of {serial.batch_size}, over {asked.transport}"
    )
    yield Text(
        f"serial: {formats.seconds(found.serial.step_s)} a step, {formats.size(found.serial.held_bytes)}"
    )
    yield Text("")
    if found.fitting:
        yield _table(found.fitting, found)
    else:
        yield Text("No layout fits into the memory of a node.")
    if found.too_large:
        yield Text("\nThey do not fit:")
        yield _table(found.too_large, found)
    for sentence in (_real(found), *_others(found)):
        if sentence:
            yield Text("")
            yield Text("\n".join(wrap(sentence, width, break_on_hyphens=False, subsequent_indent="  ")))


def _table(trials: Sequence[Trial], found: Advice) -> Table:
    headings = ["\nstep", "speed-\nup", "comm.\nshare", "sent a\nstep", "memory\na rank"]
    shown = plain_table([*headings, "real\nstep"] if found.real else headings, first="\nlayout")
    for each in trials:
        real = found.real_of(each)
        cells = [
            strategy_label(each.run),
            formats.seconds(each.step_s),
            formats.ratio(found.serial.step_s / each.step_s),
            formats.percent(each.communication),
            formats.size(each.step_bytes),
            formats.size(each.held_bytes),
        ]
        shown.add_row(*cells, *([formats.seconds(real.step_s if real else None)] if found.real else []))
    return shown


def _real(found: Advice) -> str:
    """What the real runs say of the advice; empty without any."""
    failed = [each for each in found.real if isinstance(each, Failed)]
    reasons = [f"{strategy_label(each.run)} failed for real: {each.reason}." for each in failed]
    if (regret := found.regret) is None:
        return " ".join(reasons)
    number = len(found.real) - len(failed)
    advised, longer = strategy_label(found.fitting[0].run), formats.percent(regret)
    verdict = (
        f"{advised} is also the fastest of the {number} that ran for real."
        if not regret
        else f"Of the {number} that ran for real, {advised} took {longer} longer than the fastest."
    )
    return " ".join([verdict, *reasons])


def _others(found: Advice) -> Iterator[str]:
    """A sentence for each reason why layouts are not in the table."""
    failed = [(each.reason, strategy_label(each.run)) for each in found.failed]
    impossible = [(each.reason, each.strategy) for each in found.impossible]
    for verb, pairs in (("not predicted", failed), ("not possible", impossible)):
        for reason, same in groupby(sorted(pairs), key=lambda pair: pair[0]):
            yield f"{formats.listed([name for _, name in same])}: {verb}: {reason}"


class LayoutRecord(BaseModel):
    """A layout in JSON. real_step_s: None if it was not run for real."""

    strategy: Any
    recompute: str
    nodes: int
    step_s: float
    communication: float
    bytes_per_step: float
    memory_bytes: int
    fits: bool
    real_step_s: float | None


class AdviceRecord(BaseModel):
    """The output of `--json`: layouts that fit, the fastest first, then the others."""

    serial_step_s: float
    serial_memory_bytes: int
    layouts: list[LayoutRecord]
    left_out: dict[str, str]
    regret: float | None


def record(found: Advice) -> AdviceRecord:
    """The advice as JSON has it."""
    fitting = [_layout(each, found, True) for each in found.fitting]
    failed = {strategy_label(each.run): each.reason for each in found.failed}
    return AdviceRecord(
        serial_step_s=found.serial.step_s,
        serial_memory_bytes=found.serial.held_bytes,
        layouts=[*fitting, *(_layout(each, found, False) for each in found.too_large)],
        left_out=failed | {each.strategy: each.reason for each in found.impossible},
        regret=found.regret,
    )


def _layout(trial: Trial, found: Advice, fits: bool) -> LayoutRecord:
    real = found.real_of(trial)
    return LayoutRecord(
        strategy=trial.run.model_dump(mode="json", exclude_defaults=True)["strategy"],
        recompute=trial.run.recompute,
        nodes=trial.run.nodes,
        step_s=trial.step_s,
        communication=trial.communication,
        bytes_per_step=trial.step_bytes,
        memory_bytes=trial.held_bytes,
        fits=fits,
        real_step_s=real.step_s if real else None,
    )
