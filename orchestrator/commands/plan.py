"""The command `plan`: a way to split a model's training over nodes: by formula, by execution, for real."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from math import inf
from pathlib import Path
from textwrap import wrap
from typing import Any

from pydantic import BaseModel
from rich.table import Table
from rich.text import Text

from orchestrator.commands.model import takes_tokens
from orchestrator.commands.predict import parse_price
from orchestrator.commands.sweep import SelectedRuntime
from orchestrator.errors import InputError
from orchestrator.execution.clusters import Clusters
from orchestrator.layouts.advice import Option, Plan, Try, crossing, fastest, plan
from orchestrator.layouts.candidates import Impossible, candidates
from orchestrator.layouts.formula import Sizes
from orchestrator.layouts.hardware import Machine, link_of, links, machine_of
from orchestrator.layouts.sizes import sizes_of
from orchestrator.layouts.trials import EPOCHS, STEPS, Failed, Network, Trial, Trials
from orchestrator.prediction.error_model import PRIOR_RUNS
from orchestrator.prediction.measured_cluster import read_measured_cluster
from orchestrator.prediction.simulated import RUNTIME
from orchestrator.report import formats
from orchestrator.report.model.labels import component_label, strategy_label
from orchestrator.report.statistics.spread import span
from orchestrator.results.environment import memory_free
from orchestrator.runtimes.base import Runtime
from orchestrator.runtimes.virtual.runtime import VirtualRuntime
from orchestrator.sweeps.expand import BlockFields, check_field, expand
from orchestrator.sweeps.imports import Imports
from orchestrator.sweeps.yaml import parse_yaml
from trainer.core.registry import ImportedComponent
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Link
from trainer.time_model.described import cluster_of_run
from trainer.virtual.options import VirtualOptions

REAL = 3  # layouts that run for real, if each node can have a core
TRANSPORTS = ("gloo", "mpi", "rpc")  # that virtual nodes can play
# Fields that the command sets.
FIXED = ("strategy", "nodes", "model", "dataset", "epochs", "batch_size", "batch_per", "threads", "trace")
MOST_ROWS = 8  # of a table
DOUBLINGS = range(-3, 4)  # of the batch, in the map
_MEMORY = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([kmgt]i?b)")
MAX_TIB = 1024
_BYTES = {
    f"{prefix}{binary}b": (1024 if binary else 1000) ** power
    for power, prefix in enumerate("kmgt", start=1)
    for binary in ("", "i")
}


@dataclass(frozen=True)
class Asked:
    """What the options ask.

    Attributes:
        memory_bytes: of a node; None: any.
        machine: the nodes; None: as this machine.
        price_per_h: of a node; None: unknown.
        samples: of an epoch; None: unknown.
        noise_scale: gradient noise scale in samples; None: unknown.
    """

    serial: RunSpec
    nodes: int
    transport: str
    link: Link
    network: Network
    memory_bytes: float | None = None
    machine: Machine | None = None
    price_per_h: float | None = None
    samples: int | None = None
    epochs: int = 1
    noise_scale: float | None = None

    @property
    def updates(self) -> int | None:
        """Updates in an epoch, the last one with fewer samples; None: unknown."""
        return self.samples and -(-self.samples // self.serial.batch_size)

    @property
    def samples_factor(self) -> float | None:
        """Samples for the same loss, by those of the smallest batches (McCandlish et al. 2018)."""
        return self.noise_scale and 1 + self.serial.batch_size / self.noise_scale

    @property
    def candidates(self) -> Iterator[RunSpec | Impossible]:
        return candidates(self.serial, self.nodes, self.transport)


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
    hardware: str | None = None,
    price: str | None = None,
    samples: int | None = None,
    epochs: int = 1,
    noise_scale: float | None = None,
) -> Asked:
    """The options, checked. Raises InputError."""
    if samples is not None and samples < batch_size:
        raise InputError(f"--batch-size {batch_size}: an epoch of {samples} samples has no full update")
    if noise_scale is not None and not 0 < noise_scale < inf:
        raise InputError(f"--noise-scale {noise_scale:g}: must be a number of samples above 0")
    if samples is None and epochs > 1:
        raise InputError(f"--epochs {epochs}: needs --samples, those of an epoch")
    own = None if link == "none" else link_of(link)
    measured = None if cluster is None else read_measured_cluster(cluster)
    if transport not in TRANSPORTS:
        raise InputError(f"--transport {transport}: allowed: {', '.join(TRANSPORTS)}")
    machine = None if hardware is None else machine_of(hardware)
    size = memory or (machine.memory if machine else None)
    serial, network = serial_run(model, dataset, batch_size, sets), Network(own, measured)
    shown = own or network.of(cluster_of_run(serial), transport).link
    limit = None if size is None else parse_memory(size)
    known = (limit, machine, parse_price(price), samples, epochs, noise_scale)
    return Asked(serial, nodes, transport, shown, network, *known)


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
            raise InputError(f"{name}: components of your own are not supported by plan")
    return run


def _dataset_for(model: str) -> str:
    """A dataset that the model takes."""
    return "{name: induction, length: 63, tokens: 96}" if takes_tokens(model) else "synthetic"


def _serial(model: str, dataset: str, batch_size: int, sets: Sequence[str]) -> RunSpec:
    """A serial run of a few steps. Raises InputError."""
    fields = BlockFields("plan", skip=[])
    own = {"strategy": "serial", "batch_per": "run", "epochs": EPOCHS, "threads": 1, "trace": "steps"}
    for name, value in own.items():
        fields.override(name, [value], "plan")
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
    fields.override("dataset.samples", [STEPS * batch_size], "plan")
    fields.override("dataset.test_samples", [batch_size], "plan")
    (run,) = expand(fields, Imports(Path()))
    return run


class Planner:
    """Makes a plan in three depths, each of which has more to say than the one before.

    Args:
        sizes: of the model.
        said: receives a line about the progress.
    """

    def __init__(self, asked: Asked, sizes: Sizes, data_dir: Path, said: Callable[[str], None]) -> None:
        self.asked, self.sizes, self._data_dir, self._said = asked, sizes, data_dir, said
        self._stopped = False  # by an interrupt
        self.plan = plan(asked.serial, asked.candidates, self.sizes, asked.link, asked.memory_bytes)

    def execute(self, seconds: float) -> None:
        """Execute layouts on virtual nodes, the fastest first, until so many seconds are over.

        An interrupt ends it earlier. What was executed counts.
        """
        started, number = time.monotonic(), len(self.plan.fitting)
        runtime = VirtualRuntime()
        runtime.configure(VirtualOptions())

        def goes_on(option: Option, done: int) -> bool:
            spent = time.monotonic() - started
            if spent >= seconds or self._stopped:
                return False
            if (least := self.plan.serial.formula.work_s[0] * STEPS * EPOCHS) > seconds - spent:
                self._said(f"executing a layout takes {least:.0f} s or more: the rest is left out")
                return False
            left = min(seconds - spent, spent / done * (number - done)) if done else seconds
            name = named(option.run)
            self._said(f"executing {done + 1} of {number}, at most {left:.0f} s more: {name}")
            return True

        with self._trials(runtime, RUNTIME) as tried:
            self.plan = self.plan.executed(self._until_interrupted(tried), goes_on, memory_free())

    def run(self, selected: SelectedRuntime, number: int | None) -> None:
        """Run the fastest layouts for real.

        number: how many; None: some if each node can have a core, otherwise none. Raises InputError.
        """
        if selected.runtime.info.simulates_time:
            raise InputError(
                f"--runtime {selected.name}: has no real nodes; choose another one, or use --real 0"
            )
        if number is None:
            number = REAL if self.asked.nodes <= selected.runtime.cores() else 0
        if not number or self._stopped:
            return
        self._said(f"running {number} for real")
        selected.runtime.configure(selected.runtime.Options())
        with self._trials(selected.runtime, selected.name) as tried:
            room_bytes = inf if selected.runtime.info.remote else memory_free()
            self.plan = self.plan.for_real(self._until_interrupted(tried), number, room_bytes)

    def _until_interrupted(self, try_: Try) -> Try:
        def tried(run: RunSpec) -> Trial | Failed:
            try:
                return Failed(run, "interrupted") if self._stopped else try_(run)
            except KeyboardInterrupt:
                self._stopped = True
                return Failed(run, "interrupted")

        return tried

    @contextmanager
    def _trials(self, runtime: Runtime, name: str) -> Iterator[Try]:
        with tempfile.TemporaryDirectory() as directory, Clusters(runtime) as clusters:
            yield Trials(clusters, name, Path(directory), self._data_dir, self.asked.network).of


def planner(asked: Asked, data_dir: Path, said: Callable[[str], None]) -> Planner:
    """A plan by formula. Raises InputError, also without torch."""
    return Planner(asked, sizes_of(asked.serial, asked.machine), data_dir, said)


def named(run: RunSpec) -> str:
    """`hybrid data: 2, pipeline: 4 m=8`: the layout, short enough for a table."""
    name = strategy_label(run).replace("micro_batches=", "m=").replace("}", "")
    return re.sub(r"mesh=\{|schedule=|attention=|_parallel=true", "", name)


def heading(planner: Planner) -> tuple[str, str]:
    """The model and the nodes; links, batch and the time of a serial step by formula."""
    asked = planner.asked
    nodes = (
        f"{asked.machine.name} ({asked.machine.source})" if asked.machine else "each a core of this machine"
    )
    return (
        f"{component_label(asked.serial, 'model')}, {planner.sizes.parameters:,} parameters, on "
        f"{formats.count(asked.nodes, 'node')}, {nodes}",
        f"links of {formats.mbit(asked.link.bytes_per_s)}, {formats.seconds(asked.link.latency_s)}; "
        f"{asked.serial.batch_size:,} samples a step of all nodes; serial "
        f"{span(*planner.plan.serial.formula.step_s, formats.seconds)}",
    )


def reasons(planner: Planner) -> Iterator[str]:
    """Why layouts are not in the table or were not executed, and what real runs say of the advice."""
    found = planner.plan
    yield from filter(None, [_real(found), *_failed(found), *_others(found)])


def formula_lines(planner: Planner, width: int) -> Iterator[Text | Table]:
    """The first answer."""
    found = planner.plan
    yield Text("\n".join(heading(planner)) + "\n")
    yield from _tables(found)
    yield from _paragraphs(width, answer(planner), *_others(found))
    if found.fitting:
        yield Text("")
        yield from _map(planner)


def executed_lines(planner: Planner, width: int) -> Iterator[Text | Table]:
    """What execution and real nodes say."""
    found = planner.plan
    done = sum(each.executed is not None for each in found.fitting)
    if not done:
        yield Text("\nNo layout was executed: times are those of formulas.")
    else:
        yield from _paragraphs(
            width,
            f"{done} of {len(found.fitting)} layouts were executed on virtual nodes, and have a *. Their "
            "exchange includes all waiting.",
        )
    if done or any(each.real for each in found.fitting):
        yield Text("")
        yield from _tables(found)
    yield from _paragraphs(width, answer(planner), _real(found), *_failed(found))


def answer(planner: Planner) -> str:
    """What to choose, why, what changes it, and what that is worth."""
    found, asked = planner.plan, planner.asked
    if not found.fitting:
        return "No layout fits into the memory of a node."
    best, rivals = found.fitting[0], found.fitting[1:]
    middle, low, high = best.step_s
    text = f"{named(best.run)}: {formats.seconds(middle)} a step ({span(low, high, formats.seconds)})"
    others = [each for each in rivals if _replicates(each) is not _replicates(best)]
    executed = [each for each in others if each.executed]
    if executed or others:
        rival = (executed or others)[0]
        both = executed and best.executed
        ours, theirs = (each.step_s[0] if both else each.formula.middle_s for each in (best, rival))
        text += f", {formats.ratio(theirs / ours)} times as fast as {named(rival.run)}"
        text += "" if both else " by formula"
        batch = crossing(best, rival, planner.sizes, asked.link)
        text += f", which is as fast from a batch of about {batch:,} on" if batch else ""
    return f"{text}. {_why(best, asked.machine)}{total(asked, middle)}"


def _why(best: Option, machine: Machine | None) -> str:
    """What a step consists of, and what its interval or range is."""
    if trial := best.executed:
        return (
            f"Why: {formats.seconds(trial.work_s)} of work, {formats.seconds(trial.communication_s)} of "
            "communication and waiting. Interval: 90%, from how far simulated times of "
            f"{PRIOR_RUNS} runs were off."
        )
    low, high = machine.efficiency if machine else (0.0, 0.0)
    work = f"{low:.0%} to {high:.0%} of the peak" if machine else "a small batch on this machine"
    parts = best.formula
    return (
        f"Why: {span(*parts.work_s, formats.seconds)} of work, {span(*parts.bubble_s, formats.seconds)} of "
        f"bubble, {span(*parts.exchange_s, formats.seconds)} of exposed communication. Ranges: {work}, and "
        "exchanges hidden or exposed."
    )


def total(asked: Asked, step_s: float) -> str:
    """The updates of a training, its time and price if its samples are known, and what its batch costs."""
    text = ""
    if asked.samples and asked.updates:
        updates = asked.epochs * asked.updates
        of_each = f", {asked.updates:,} in each epoch" if asked.epochs > 1 else ""
        hours = updates * step_s / 3600
        price = asked.price_per_h
        cost = "" if price is None else f", {hours * asked.nodes * price:,.2f} in all"
        samples = asked.epochs * asked.samples
        text = f" {samples:,} samples are {updates:,} updates{of_each}: {hours:,.3g} h{cost}."
    if asked.samples_factor and asked.noise_scale:
        batch = asked.serial.batch_size
        text += (
            f" {batch:,} samples a step are {formats.ratio(batch / asked.noise_scale)} times the critical "
            f"batch: expect about {formats.ratio(asked.samples_factor)} times the samples of the smallest "
            "batches for the same loss."
        )
    return text


def _replicates(option: Option) -> bool:
    """Whether each node has the whole model."""
    return option.run.strategy.replicas(option.run.world_size) == option.run.world_size


def best_by_link(planner: Planner) -> tuple[list[int], dict[str, list[int]]]:
    """Batches, and for each link the place of the layout that is the fastest with each, by formula."""
    asked, shown = planner.asked, planner.plan.fitting
    batches = sorted({max(asked.nodes, round(asked.serial.batch_size * 2.0**k)) for k in DOUBLINGS})
    places = {id(option): at for at, option in enumerate(shown, start=1)}
    best = {
        each.name: [places[id(fastest(shown, planner.sizes, each.link, batch))] for batch in batches]
        for each in links()
    }
    return batches, best


def _map(planner: Planner) -> Iterator[Text | Table]:
    """The fastest layout by formula, over other links and with other batches."""
    batches, best = best_by_link(planner)
    yield Text("The fastest by formula, by samples a step and link:")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="")
    for heading in ("", *(f"{batch:,}" for batch in batches)):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for name, places in best.items():
        table.add_row(name, *map(str, places))
    yield table
    named_places = sorted({at for places in best.values() for at in places})
    yield Text("; ".join(f"{at}: {named(planner.plan.fitting[at - 1].run)}" for at in named_places))


def _tables(found: Plan) -> Iterator[Text | Table]:
    if found.fitting:
        yield _table(found.fitting, found)
    if found.too_large:
        yield Text("\nThey do not fit:")
        yield _table(found.too_large, found)


def _table(options: Sequence[Option], found: Plan) -> Table:
    shown = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="")
    shows_real = any(each.real for each in found.fitting)
    shows_bubble = not any(each.executed for each in options)  # executed ones count it as exchange
    headings = ["\nstep", "\nbetween", "speed-\nup", "ex-\nchange", *(["\nbubble"] if shows_bubble else [])]
    headings += ["sent a\nstep", "memory\na rank", *(["real\nstep"] if shows_real else [])]
    shown.add_column(Text(""), justify="right")
    shown.add_column(Text("\nlayout"), overflow="fold")
    for heading in headings:
        shown.add_column(Text(heading), justify="right", no_wrap=True)
    for at, each in enumerate(options[:MOST_ROWS], start=1):
        middle, low, high = each.step_s
        parts, trial = each.formula, each.executed
        exchange = trial.communication if trial else parts.exchange_s[1] / parts.step_s[1]
        cells = [
            f"{at}",
            named(each.run) + (" *" if trial else ""),
            formats.seconds(middle),
            span(low, high, formats.significant),
            formats.ratio(found.speedup(each)),
            formats.percent(exchange),
            *([formats.percent(parts.bubble_s[1] / parts.step_s[1])] if shows_bubble else []),
            formats.size(each.sent_bytes),
            formats.size(each.held_bytes),
            *([formats.seconds(each.real_step_s)] if shows_real else []),
        ]
        shown.add_row(*cells)
    return shown


def _paragraphs(width: int, *sentences: str) -> Iterator[Text]:
    for sentence in filter(None, sentences):
        yield Text("")
        yield Text("\n".join(wrap(sentence, width, break_on_hyphens=False, subsequent_indent="  ")))


def _real(found: Plan) -> str:
    """What the real runs say of the advice; empty without any."""
    failed = [each.real for each in found.fitting if isinstance(each.real, Failed)]
    reasons = [f"{named(each.run)} failed for real: {each.reason}." for each in failed]
    if (regret := found.regret) is None:
        return " ".join(reasons)
    number = sum(each.real_step_s is not None for each in found.fitting)
    advised, longer = named(found.fitting[0].run), formats.percent(regret)
    verdict = (
        f"{advised} is also the fastest of the {number} that ran for real."
        if not regret
        else f"Of the {number} that ran for real, {advised} took {longer} longer than the fastest."
    )
    return " ".join([verdict, *reasons])


def _failed(found: Plan) -> Iterator[str]:
    """A sentence for each reason why a layout could not be executed."""
    failed = [each.trial for each in found.fitting if isinstance(each.trial, Failed)]
    return _by_reason("executed", ((each.reason, named(each.run)) for each in failed))


def _others(found: Plan) -> Iterator[str]:
    """A sentence for each reason why layouts are not in the table."""
    return _by_reason("possible", sorted((each.reason, each.strategy) for each in found.impossible))


def _by_reason(what: str, pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """pairs: a reason, and the layout that it is for."""
    for reason, same in groupby(sorted(pairs, key=lambda pair: pair[0]), key=lambda pair: pair[0]):
        yield f"{formats.listed([name for _, name in same])}: not {what}: {reason}"


class OptionRecord(BaseModel):
    """A layout in JSON. by: what its step comes from. Bounds: of the formula, or 90 % of executions.

    real_step_s: None if it was not run for real.
    """

    strategy: Any
    recompute: str
    nodes: int
    by: str
    step_s: float
    low_s: float
    high_s: float
    work_s: tuple[float, float]
    exchange_s: tuple[float, float]
    bubble_s: tuple[float, float]
    bytes_per_step: float
    bytes_by_formula: float
    memory_bytes: float
    memory_by_formula: float
    fits: bool
    real_step_s: float | None


class PlanRecord(BaseModel):
    """The output of `--json`: layouts that fit, the fastest first, then the others."""

    answer: str
    updates_per_epoch: int | None
    samples_factor: float | None
    parameters: int
    serial_step_s: tuple[float, float, float]
    layouts: list[OptionRecord]
    left_out: dict[str, str]
    regret: float | None


def record(planner: Planner) -> PlanRecord:
    """The plan as JSON has it."""
    found = planner.plan
    return PlanRecord(
        answer=answer(planner).replace(formats.JOIN, " "),
        updates_per_epoch=planner.asked.updates,
        samples_factor=planner.asked.samples_factor,
        parameters=planner.sizes.parameters,
        serial_step_s=found.serial.step_s,
        layouts=[
            *(_record(each, fits=True) for each in found.fitting),
            *(_record(each, fits=False) for each in found.too_large),
        ],
        left_out={each.strategy: each.reason for each in found.impossible},
        regret=found.regret,
    )


def _record(option: Option, fits: bool) -> OptionRecord:
    parts = option.formula
    middle, low, high = option.step_s
    return OptionRecord(
        strategy=option.run.model_dump(mode="json", exclude_defaults=True)["strategy"],
        recompute=option.run.recompute,
        nodes=option.run.nodes,
        by="execution" if option.executed else "formula",
        step_s=middle,
        low_s=low,
        high_s=high,
        work_s=parts.work_s,
        exchange_s=parts.exchange_s,
        bubble_s=parts.bubble_s,
        bytes_per_step=option.sent_bytes,
        bytes_by_formula=parts.sent_bytes,
        memory_bytes=option.held_bytes,
        memory_by_formula=parts.held_bytes,
        fits=fits,
        real_step_s=option.real_step_s,
    )
