"""SweepExporter: the base class of formats for the runs of a sweep, which another program starts."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

import yaml

from orchestrator.errors import InputError, output_error
from orchestrator.export.base import Change, Exported, Exporter, Options, prepare, write_text
from orchestrator.shipped import find_sweep
from orchestrator.sweeps.load import Sweep, load_sweep
from trainer.launch.launchers import PORT
from trainer.spec.run_spec import RunSpec

TORCHRUN = "torch.distributed.run"
NAME_LENGTH = 48  # a pod's name adds `-node-0-1023` to it, and has at most 63 characters
LABEL_LENGTH = 63


@dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep, with the names that it has in a cluster."""

    sweep: str
    spec: RunSpec

    @cached_property
    def name(self) -> str:
        """A DNS label of sweep, run and digest: unique among the runs of all sweeps."""
        key = self.spec.key
        return dns_label(f"{self.sweep}-{key}".rpartition("-")[0], f"{self.sweep}/{key}", NAME_LENGTH)

    @property
    def labels(self) -> dict[str, str]:
        return {"shardyard/sweep": label_value(self.sweep), "shardyard/run": label_value(self.spec.key)}

    @property
    def annotations(self) -> dict[str, str]:
        return {"shardyard/sweep": self.sweep, "shardyard/run": self.spec.key}

    @property
    def nodes(self) -> int:
        """How many containers or machines it needs; in topology `single`, one has all ranks."""
        return 1 if self.spec.topology == "single" else self.spec.nodes

    @property
    def share(self) -> int:
        """The number of nodes whose limits one container has."""
        return self.spec.nodes // self.nodes

    @property
    def ranks_per_node(self) -> int:
        """How many processes one of them starts."""
        return 1 if self.spec.topology == "single" else self.spec.processes_per_node

    @property
    def timeout_s(self) -> int:
        return ceil(self.spec.timeout_s)

    @property
    def files(self) -> tuple[str, ...]:
        """The files of its dataset."""
        return self.spec.dataset.files

    @property
    def spec_json(self) -> str:
        return self.spec.model_dump_json(indent=1) + "\n"

    @property
    def module(self) -> tuple[str, ...]:
        """Arguments of Python that start the ranks of a node; torchrun starts several."""
        return ("-m", TORCHRUN, "-m", "trainer") if self.ranks_per_node > 1 else ("-m", "trainer")

    def environment(self, launcher: str) -> dict[str, str]:
        """Environment variables of every rank. launcher: what says which node a process is on."""
        named = "torchrun" if self.ranks_per_node > 1 else launcher
        return {**self.spec.thread_environment(), "SHARDYARD_LAUNCHER": named}


def dns_label(readable: str, whole: str, length: int) -> str:
    """A name for objects of a cluster, which ends in a digest. whole: what it is unique for."""
    digest = sha256(whole.encode()).hexdigest()[:8]
    found = re.sub(r"[^a-z0-9]+", "-", readable.lower())
    found = found if found[:1].isalpha() else f"run-{found}"
    return f"{found[: length - len(digest) - 1].strip('-')}-{digest}"


def label_value(text: str) -> str:
    """The text as a label's value; with a digest where it cannot be one."""
    value = re.sub(r"[^\w.-]", "-", text, flags=re.ASCII).strip("-_.")
    if value == text and len(value) <= LABEL_LENGTH:
        return value
    return f"{value[: LABEL_LENGTH - 9].rstrip('-_.')}-{sha256(text.encode()).hexdigest()[:8]}"


class SweepExporter(Exporter):
    """A format for the runs of a sweep. All runs are exported, or none."""

    takes = "sweep file"
    uses: ClassVar[tuple[str, ...]] = ("sets", "nodes", "gloo_for_mpi")

    def texts(self, run: PlannedRun, options: Options) -> Mapping[str, str]:
        """The files of a run: path below the directory of the export -> text."""
        return {}

    def common_texts(self, sweep: Sweep, runs: list[PlannedRun], options: Options) -> Mapping[str, str]:
        """Files that the runs share."""
        return {}

    def common_refusal(self, run: RunSpec) -> str | None:
        """Why no format of this kind can express a run; None if it can."""
        return common_refusal(run)

    @abstractmethod
    def refusal(self, run: PlannedRun, options: Options) -> str | None:
        """Why the format cannot express a run that the others can; None if it can."""

    @abstractmethod
    def advice(self, out: Path) -> str:
        """How to start a run."""

    def check_values(self, options: Options) -> None:
        """Raise InputError for options that are missing or invalid."""

    def export(self, source: Path, out: Path | None, options: Options) -> Iterator[Exported | str]:
        self.check_values(options)
        path = find_sweep(str(source))
        if path.is_dir():
            raise InputError(f"{path}: is a directory; --to {self.name} takes a sweep file")
        sweep = load_sweep(path, options.sets, options.nodes)
        name = sweep.spec.name
        exported = [_twin(run, options.gloo_for_mpi) for run in sweep.runs]
        # The sweep may have a run's twin already.
        runs = [PlannedRun(name, spec) for spec in {each.key: each for each in exported}.values()]
        self._check(runs, options)
        out = Path("export") / name / self.name if out is None else out
        prepare(out)
        for run in runs:
            if texts := self.texts(run, options):
                yield _write(run.spec.key, texts, out)
        if common := self.common_texts(sweep, runs, options):
            yield _write(", ".join(dict.fromkeys(each.partition("/")[0] for each in common)), common, out)
        if twins := sum(twin is not run for twin, run in zip(exported, sweep.runs, strict=True)):
            yield f"runs over mpi that are exported as other runs, over gloo: {twins}"
        yield self.advice(out)

    def _check(self, runs: list[PlannedRun], options: Options) -> None:
        """Raise InputError if the format cannot express all runs."""
        reasons: dict[str, list[str]] = {}
        for run in runs:
            if reason := self.common_refusal(run.spec) or self.refusal(run, options):
                reasons.setdefault(reason, []).append(run.spec.key)
        if reasons:
            lines = [
                f"--to {self.name}: {reason}: {keys[0]}"
                + (f" and {len(keys) - 1} more" if keys[1:] else "")
                for reason, keys in reasons.items()
            ]
            raise InputError("\n".join(lines))


def _twin(run: RunSpec, gloo_for_mpi: bool) -> RunSpec:
    """The run; over gloo instead of mpi, if that is wanted and its strategy supports it."""
    if not gloo_for_mpi or run.transport != "mpi" or "gloo" not in run.strategy.transports:
        return run
    return RunSpec.model_validate({**run.model_dump(mode="json"), "transport": "gloo"})


def common_refusal(run: RunSpec) -> str | None:
    """Why a run needs a runtime of Shardyard, which watches it; None if a launcher suffices."""
    if run.topology == "mpi":
        hint = "--gloo-for-mpi exports runs over gloo in their place"
        other = hint if "gloo" in run.strategy.transports else "its strategy has no gloo"
        return f"transport mpi needs mpirun and ssh between the nodes; {other}"
    if run.has_imports:
        return "the code of components from import paths is not in the trainer image"
    needs: dict[str, Any] = {
        "link": run.has_links,
        "node_speed": run.slower_nodes,
        "faults": run.faults,
        "on_loss": run.on_loss == "continue",
        "restarts": run.restarts,
    }
    for field, used in needs.items():
        if used:
            return f"{field} needs a runtime of Shardyard"
    return None


def _write(label: str, texts: Mapping[str, str], out: Path) -> Exported:
    """Write the files of a run, and say what that did to it as a whole."""
    changes: set[Change] = set()
    for name, text in texts.items():
        path = out / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise output_error(path.parent, error) from error
        changes.add(write_text(path, text).change)
    if changes == {"unchanged"} or changes == {"added"}:
        return Exported(label, changes.pop())
    return Exported(label, "replaced")


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_yaml(*documents: Mapping[str, Any]) -> str:
    """The documents as YAML, keys in their order."""
    return "---\n".join(
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
        for document in documents
    )


def pet_environment(run: PlannedRun, host: str) -> dict[str, str]:
    """torchrun's variables without the node's number."""
    return {
        "PET_NNODES": str(run.nodes),
        "PET_NPROC_PER_NODE": str(run.ranks_per_node),
        "PET_MASTER_ADDR": host,
        "PET_MASTER_PORT": str(PORT),
    }
