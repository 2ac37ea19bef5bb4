"""Runtime `virtual`: one process of this machine has all nodes of a run. See docs/virtual.md."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any, ClassVar, cast

from pydantic import BaseModel

from orchestrator.results.environment import cores
from orchestrator.results.records import RunResult, RuntimeInfo
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.base import Cluster, Runtime
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.local.processes import in_one_process
from orchestrator.runtimes.local.runtime import LocalRuntime
from trainer.spec.run_spec import RunSpec
from trainer.virtual.options import VIRTUAL, VirtualOptions


class VirtualRuntime(Runtime):
    """Nodes whose time is simulated, and whose training is real unless its computation is sampled."""

    info = RuntimeInfo(
        enforces_limits=False,
        shares_cores=False,
        one_clock=True,
        shapes_links=True,
        warm=True,
        remote=False,
        simulates_time=True,
    )
    Options: ClassVar[type[VirtualOptions]] = VirtualOptions

    def __init__(self, cold: bool = False, shared_network: bool = False) -> None:
        super().__init__(cold, shared_network)
        self._local = LocalRuntime(cold, shared_network=True)  # there is no network

    def configure(self, options: BaseModel) -> None:
        super().configure(options)
        self.info = replace(type(self).info, trains=self._virtual.trains)

    @property
    def _virtual(self) -> VirtualOptions:
        return cast("VirtualOptions", self.options)

    def unavailable_reason(self) -> str | None:
        return self._local.unavailable_reason()

    def node_kind(self) -> str:
        return "virtual nodes" if self.info.trains else "virtual nodes that train nothing"

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        strategy, options = spec.strategy, self._virtual
        if options.workers > 1:
            most = max(int(cores()), 1)
            if options.workers > most:
                allowed = f"1 to {most}, the cores of this machine"
                return f"virtual.workers is {options.workers}; allowed: {allowed}"
            if strategy.partitions_model:
                return (
                    f"virtual.workers is {options.workers}, but {spec.name_of('strategy')} cuts the model "
                    "over ranks, which one process must have; leave it out"
                )
        priced = options.seconds_per_sample is not None or not options.trains
        if not (strategy.stand_in() or strategy if priced else strategy).virtual or strategy.forks:
            instead = f"; strategy {strategy.equivalent} can" if strategy.equivalent else ""
            return f"strategy {spec.name_of('strategy')} cannot run on virtual nodes{instead}"
        if spec.on_gpu:
            return "virtual nodes compute on CPU cores; allowed: a transport other than nccl"
        if spec.transport == "memory" and spec.world_size > 1:
            return "transport memory has no network that could be simulated; allowed: gloo, mpi or rpc"
        if spec.trace == "none" and strategy.trains:
            return "trace is none, but virtual nodes have the times of their traces; allowed: steps, full"
        if spec.threads > 1:
            return f"threads is {spec.threads}, and each virtual rank has one core; allowed: 1"
        for field, value in (("faults", spec.faults), ("restarts", spec.restarts), ("debug", spec.debug)):
            if value:
                return f"virtual nodes have no {field}; leave it out"
        if spec.on_loss == "continue":
            return "virtual nodes are never lost; allowed: on_loss: stop"
        if not strategy.deterministic and not _has_latency(spec):
            return (
                f"the order in which {spec.name_of('strategy')} applies updates depends on the latency of "
                "the links, and they have none; set link.latency_ms"
            )
        if noise := _noise(spec):
            return f"link: {' and '.join(noise)} cannot be simulated; leave it out"
        given = options.seconds_per_sample is not None
        if given and strategy.overlaps_backward and not strategy.stand_in():
            return (
                "virtual.seconds_per_sample is the cost of a whole step, and "
                f"{spec.name_of('strategy')} exchanges within its backward pass; leave it out"
            )
        if given and strategy.partitions_model:
            return (
                "virtual.seconds_per_sample is the cost of the whole model, and "
                f"{spec.name_of('strategy')} cuts it over ranks; leave it out"
            )
        return None if options.trains else _needs_training(spec)

    def environment(self) -> dict[str, Any]:
        return self.options.model_dump(exclude_defaults=True)

    def can_reuse(self, result: RunResult) -> bool:
        """Whether a result has the costs that are given now."""
        given = self.environment()
        return all(result.environment.get(name) == given.get(name) for name in VirtualOptions.model_fields)

    def kind(self, spec: RunSpec) -> Hashable | None:
        return self._local.kind(spec)

    def plan(
        self, spec: RunSpec, paths: RunPaths, data_dir: Path, peers: Sequence[RunSpec] = ()
    ) -> LaunchPlan:
        warm = self.kind(spec) is not None
        cluster, command = self._local.cluster_and_command(warm)
        variables = {VIRTUAL: self._virtual.model_dump_json(exclude_defaults=True)}
        if spec.checkpoints:  # separate from those of local processes, whose times do not compare
            variables["SHARDYARD_CHECKPOINTS"] = str((paths.checkpoints / "virtual").resolve())
        nodes = in_one_process(spec, paths, data_dir, paths.live, command, variables)
        return LaunchPlan(spec, paths, data_dir, cluster, [nodes], warm)

    def create(self, plan: LaunchPlan) -> Cluster:
        return self._local.create(plan)

    def close(self) -> None:
        self._local.close()

    def clean(self) -> int:
        return self._local.clean()


def _needs_training(spec: RunSpec) -> str | None:
    """Why the computation of a run cannot be skipped, and what to change; None if it can."""
    names = ("target_accuracy", "save_weights", "checkpoint_epochs", "checkpoint_steps")
    for name in names:
        if value := getattr(spec, name):
            return f"virtual.compute is sampled, which trains nothing, but {name} is {value}; leave it out"
    if spec.aggregates_by_value:
        what = "byzantine nodes attack" if spec.byzantine else "aggregation combines"
        return f"virtual.compute is sampled, but {what} the values of vectors; allowed: full"
    skipped = "virtual.compute is sampled, which skips a whole step of the model"
    if spec.strategy.partitions_model:
        return f"{skipped}, but {spec.name_of('strategy')} cuts it over ranks; allowed: full"
    if spec.strategy.stand_in() is None:
        within = "exchanges within" if spec.strategy.overlaps_backward else "divides"
        return f"{skipped}, but {spec.name_of('strategy')} {within} it; allowed: full"
    if spec.model.has_synchronous_layers:
        return f"{skipped}, but layers of {spec.name_of('model')} exchange data in it; allowed: full"
    return None


def _has_latency(spec: RunSpec) -> bool:
    """Whether every link has a latency."""
    link = spec.link
    pairs = permutations(range(spec.nodes), 2)
    return link is not None and all(link.path(source, to).latency_ms for source, to in pairs)


def _noise(spec: RunSpec) -> Sequence[str]:
    """Properties of the run's links that vary from packet to packet."""
    link = spec.link
    parts = (link.default, *link.nodes.values(), *link.pairs.values()) if link else ()
    return [name for name in ("jitter_ms", "loss") if any(getattr(part, name) for part in parts)]
