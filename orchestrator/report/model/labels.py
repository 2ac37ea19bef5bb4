"""Labels of runs: components with their parameters, the workload, the shape of the cluster, the location.

A location is the runtime and the image in which nodes ran. Rows of different locations are never compared.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from orchestrator.report.formats import count, listed, percent
from orchestrator.results.limits import speeds_label, written
from orchestrator.results.records import RunResult
from trainer.core.registry import IMPORTED
from trainer.spec.link import Links
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import NODE_LIMITS, RunSpec

LIMIT_LABELS = {
    "cpus": "cpus {}",
    "memory_mb": "{} MiB memory",
    "pids": "{} pids",
    "shm_mb": "{} MiB /dev/shm",
}
_COMPONENTS = ("dataset", "model", "optimizer", "lr_schedule", "augmentation", "loss")
_AS_IN_SPEC = (
    *("lr", "batch_size", "batch_per", "epochs", "target_accuracy", "patience"),
    *("clip_norm", "precision", "noise_scale", "threads"),
)
LR_SCHEDULE_FIELDS = ("lr_scaling", "warm_up_epochs")
SURVIVAL = ("on_loss", "checkpoint_epochs", "checkpoint_steps")  # that say how a run survives faults
NOT_COMPARED = ("seed", "save_weights", "timeout_s", "trace")  # that runs of a configuration may not share
# What the fields of a spec are to a comparison. Each has one role.
ROLES = {
    "not compared": NOT_COMPARED,
    "workload": (*_COMPONENTS, *_AS_IN_SPEC, *NODE_LIMITS, "vary", "link", "faults", "byzantine"),
    "shape": ("nodes", "processes_per_node", "node_speed"),
    "way to train": ("strategy", "transport", "partitioner", "accumulate", "recompute", "debug"),
    "schedule of the learning rate": LR_SCHEDULE_FIELDS,
    "survival of faults": (*SURVIVAL, "restarts"),
}
EVERYTHING = tuple(RunSpec.model_fields["vary"].default)  # that a seed can vary


class Rate(NamedTuple):
    """The learning rate of a workload, and the epochs of its warm-up."""

    lr: float
    warm_up_epochs: int


@dataclass(frozen=True)
class Workload:
    """Dataset, model and training conditions. Times and accuracies compare only between equal workloads."""

    dataset: str
    model: str
    optimizer: str
    lr: float
    batch_size: int  # samples per step, see batch_per
    batch_per: str  # rank: per rank; run: over all ranks
    epochs: int
    threads: int  # per rank
    limits: tuple[float, ...]  # of a node, as in NODE_LIMITS
    on_gpu: bool  # a GPU is not compared with CPU cores
    augmentation: str
    slower_speeds: tuple[float, ...] = ()  # of the slower nodes, in ascending order
    target_accuracy: float | None = None  # 0 … 1, ends the training
    patience: int = 1  # consecutive epochs in which the target must be reached
    faults: str = ""  # that were injected
    location: str = ""  # where the nodes ran; named only if the directory's runs differ in it
    vary: tuple[str, ...] = EVERYTHING  # what the seed varies
    enforced: bool = True  # whether the runtime enforced limits that are not the default
    link: str = ""  # the links that were requested between nodes; empty on one node, which has none
    loss: str = "nll"
    lr_schedule: str = "constant"
    byzantine: str = ""  # the nodes that attack, and how
    clip_norm: float | None = None  # of gradients
    precision: str = "float32"  # in which layers compute
    noise_scale: bool = False  # whether it was measured, which takes time
    warm_up_epochs: int = 0  # of its serial runs

    @classmethod
    def of(cls, run: RunSpec, location: str = "", enforces_limits: bool = True) -> Workload:
        fields: dict[str, Any] = {name: getattr(run, name) for name in _AS_IN_SPEC}
        fields |= {name: component_label(run, name) for name in _COMPONENTS}
        return cls(
            **fields,
            on_gpu=run.on_gpu,
            limits=tuple(getattr(run, name) for name in NODE_LIMITS),
            slower_speeds=tuple(sorted(run.slower_nodes.values())),
            faults=faults_label(run),
            location=location,
            vary=tuple(run.vary),
            enforced=enforces_limits or all(getattr(run, name) == _default(name) for name in NODE_LIMITS),
            link=link_label(run),
            byzantine=run.byzantine_label,
        )

    @property
    def without_links(self) -> Workload:
        """The same workload without links: that of its runs on one node."""
        return replace(self, link="")

    @property
    def training(self) -> Workload:
        """What it trains, without where and how fast: runs of one seed start with the same draws."""
        anywhere = replace(self, link="", location="", threads=1, on_gpu=False)
        return replace(anywhere, faults="", limits=(), slower_speeds=(), enforced=True)

    @property
    def label(self) -> str:
        """All that is not the default, as text."""
        warm_up = self.warm_up_epochs and count(self.warm_up_epochs, "epoch")
        return "".join(
            [
                f"{self.dataset}, {self.model}, {self.optimizer} lr {self.lr:g}",
                _unless(0, " after {} of warm-up", warm_up),
                _unless("constant", ", schedule {}", self.lr_schedule),
                f", batch {self.batch_size} {'in all' if self.batch_per == 'run' else 'per rank'}",
                f", {'1 epoch' if self.epochs == 1 else f'{self.epochs} epochs'}{self._until}",
                _unless(None, ", gradients clipped to norm {:g}", self.clip_norm),
                _unless("float32", ", in {}", self.precision),
                _unless(False, ", with noise_scale", self.noise_scale),
                _unless("none", ", augmentation {}", self.augmentation),
                _unless("nll", ", loss {}", self.loss),
                _unless(1, ", {} threads per rank", self.threads),
                f"{self._limits}{self._slower}{', on GPUs' if self.on_gpu else ''}",
                _unless("", ", over links of {}", self.link),
                _unless("", ", {}", self.location),
                _unless("", ", with {}", self.faults),
                _unless("", ", with {}", self.byzantine),
                self._vary,
            ]
        )

    @property
    def _vary(self) -> str:
        if self.vary == EVERYTHING:
            return ""
        return f", seeds vary {listed([*self.vary]) if self.vary else 'nothing'}"

    @property
    def _slower(self) -> str:
        """`, one node at speed 0.25`, or `, 2 nodes at speed 0.25 to 0.5`."""
        if not self.slower_speeds:
            return ""
        low, high = self.slower_speeds[0], self.slower_speeds[-1]
        nodes = "one node" if len(self.slower_speeds) == 1 else f"{len(self.slower_speeds)} nodes"
        return f", {nodes} at speed {low:g}{f' to {high:g}' if high > low else ''}"

    @property
    def _until(self) -> str:
        if self.target_accuracy is None:
            return ""
        in_a_row = f" in {self.patience} in a row" if self.patience > 1 else ""
        return f" or until {percent(self.target_accuracy)} accuracy{in_a_row}"

    @property
    def _limits(self) -> str:
        """`, cpus 0.4 and 512 MiB memory per node`: the limits that are not the default."""
        limits = [
            LIMIT_LABELS[name].format(written(value))
            for name, value in zip(NODE_LIMITS, self.limits, strict=True)
            if value != _default(name)
        ]
        enforced = "" if self.enforced else " (not enforced)"
        return f", {listed(limits)} per node{enforced}" if limits else ""


def _unless(default: object, text: str, value: object) -> str:
    """The text with a value; empty for the default."""
    return "" if value == default else text.format(value)


def _default(field: str) -> Any:
    return RunSpec.model_fields[field].default


@dataclass(frozen=True)
class ClusterShape:
    """The number of nodes, the ranks in each, and the nodes that are slower than the others."""

    nodes: int
    processes_per_node: int = 1
    slower_nodes: tuple[tuple[int, float], ...] = ()  # node and speed

    @classmethod
    def of(cls, run: RunSpec) -> ClusterShape:
        return cls(run.nodes, run.processes_per_node, tuple(run.slower_nodes.items()))

    @property
    def ranks(self) -> int:
        return self.nodes * self.processes_per_node

    @property
    def short(self) -> str:
        """`2`, or `2 × 4` with four ranks in each node."""
        return (
            str(self.nodes) if self.processes_per_node == 1 else f"{self.nodes} × {self.processes_per_node}"
        )

    @property
    def label(self) -> str:
        """`2 nodes`, `2 nodes × 4 ranks`, or `4 nodes, node 3 at speed 0.25`."""
        ranks = "" if self.processes_per_node == 1 else f" × {count(self.processes_per_node, 'rank')}"
        return count(self.nodes, "node") + ranks + (f", {self.slower}" if self.slower else "")

    @property
    def slower(self) -> str:
        """`node 3 at speed 0.25`; empty if all nodes are equal."""
        return speeds_label(dict(self.slower_nodes))

    @property
    def rank_noun(self) -> str:
        """`node` if a node is one rank, else `rank`."""
        return "node" if self.processes_per_node == 1 else "rank"

    @property
    def per_node(self) -> str:
        """`4 ranks per node`; empty if a node is one rank."""
        return "" if self.processes_per_node == 1 else f"{count(self.processes_per_node, 'rank')} per node"


def component_label(run: RunSpec, field: str, but: Collection[str] = ()) -> str:
    """A component's name and its parameters that are not the default: `one_shot init=independent`.

    A parameter that is a component itself is written `compression=top_k(ratio=0.1)`.

    Args:
        but: names of parameters to leave out.
    """
    shown = parameters(run, field, exclude_defaults=True)
    return " ".join(
        [run.name_of(field), *(f"{name}={value}" for name, value in shown.items() if name not in but)]
    )


def strategy_label(run: RunSpec) -> str:
    """The strategy's label, with `on_loss=continue` and what costs time, as checkpoints do."""
    fields = ("accumulate", "recompute", "checkpoint_epochs", "checkpoint_steps", "on_loss")
    values = {name: getattr(run, name) for name in fields}
    changed = [f"{name}={value}" for name, value in values.items() if value != _default(name)]
    return " ".join([component_label(run, "strategy"), *changed, *(["debug"] if run.debug else [])])


def partitioner_label(run: RunSpec) -> str:
    """Empty if every node trains on the whole training set."""
    return component_label(run, "partitioner") if run.strategy.uses_partition else ""


def link_label(run: RunSpec) -> str:
    """`100 Mbit/s, 1 ms; node 2: 10 Mbit/s`: the requested links; empty without any."""
    return "; ".join(run.link.texts()) if run.link is not None and run.has_links else ""


def faults_label(run: RunSpec) -> str:
    """`kill of node 2 at epoch 3`; empty without faults."""
    return listed([fault.title for fault in run.faults]) if run.faults else ""


def lr_schedule_labels(runs: Sequence[RunSpec]) -> list[str]:
    """The learning-rate schedule of each run: `lr_scaling=linear warm_up_epochs=2`.

    Empty if all runs have the same one. Those of runs with one batch per step, which nothing scales, and of
    the others are not compared.
    """
    labels = [
        " ".join(f"{name}={getattr(run, name)}" for name in LR_SCHEDULE_FIELDS if name in fields)
        for run in runs
        for fields in [run.canonical()]
    ]
    scaled = [run.batch_multiplier > 1 for run in runs]
    differ = len({*zip(scaled, labels, strict=True)}) > len({*scaled})
    return labels if differ else [""] * len(runs)


def parameters(run: RunSpec, field: str, exclude_defaults: bool = False) -> dict[str, str]:
    """The parameters of a component as text."""
    shown = REGISTRIES[field].dump(getattr(run, field), exclude_defaults=exclude_defaults)
    return {name: as_written(value) for name, value in shown.items() if name not in ("name", IMPORTED)}


def as_written(value: object) -> str:
    """A value in YAML syntax; a component as `top_k(ratio=0.1)`."""
    if isinstance(value, Links):
        value = value.canonical
    if isinstance(value, dict) and "name" not in value:
        return f"{{{', '.join(f'{name}: {as_written(item)}' for name, item in value.items())}}}"
    if isinstance(value, dict):
        inside = ", ".join(f"{name}={as_written(item)}" for name, item in value.items() if name != "name")
        return f"{value['name']}({inside})" if inside else str(value["name"])
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{', '.join(map(as_written, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def location_names(results: Sequence[RunResult]) -> list[str]:
    """A name for the location of each result; empty if all have the same one, and have trained.

    `runtime docker`, or `image 4c3e83f9` (the beginning of its sources' hash) if there are several images,
    and `not trained` where steps were charged instead of computed.
    """
    runtimes = {result.runtime for result in results}
    images = {image for result in results if (image := _image(result))}
    tags = {name for name, _ in images}
    names = []
    for result in results:
        parts = [f"runtime {result.runtime}"] if len(runtimes) > 1 else []
        if len(images) > 1 and (image := _image(result)):
            parts.append(" ".join(filter(None, ["image", image[0] if len(tags) > 1 else "", image[1][:8]])))
        parts += [] if result.runtime_info.trains else ["not trained"]
        names.append(", ".join(parts))
    return names


def _image(result: RunResult) -> tuple[str, str] | None:
    """The image's name and the hash of its sources; None if nodes were not containers."""
    name, _, sources = str(result.environment.get("image", "")).partition(" from sources ")
    return (name, sources) if name else None
