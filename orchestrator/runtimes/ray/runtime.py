"""Runtime `ray`: a node is an actor of a placement group on a Ray cluster. See docs/ray.md."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from orchestrator.errors import InputError
from orchestrator.results.environment import cores, installed
from orchestrator.results.records import RuntimeInfo
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.base import Cluster, Runtime
from orchestrator.runtimes.finding import Finding
from orchestrator.runtimes.launch_plan import ClusterPlan, LaunchPlan
from orchestrator.runtimes.led import shared_site
from orchestrator.runtimes.local.runtime import LocalRuntime
from orchestrator.runtimes.ray.cluster import RayCluster, remove_sessions
from orchestrator.runtimes.ray.options import ADDRESS, RayOptions
from orchestrator.runtimes.ray.placement import NodeResources
from trainer.spec.run_spec import RunSpec

INSTALL = "ray is not installed: pip install 'shardyard[ray]'"
SILENCE_S = 90.0  # of a node; Ray itself gives up a silent machine after 65 s


class RayRuntime(Runtime):
    """Actors on the machines of a Ray cluster, or on local raylets."""

    info = RuntimeInfo(
        enforces_limits=False,
        shares_cores=True,  # where one machine has several nodes; `cores` counts those of all machines
        one_clock=False,
        shapes_links=False,
        warm=True,
        remote=True,
    )
    Options = RayOptions
    options: RayOptions

    def __init__(self, cold: bool = False, shared_network: bool = False) -> None:
        super().__init__(cold, shared_network)
        self._group: RayCluster | None = None  # the last one
        self._configure()

    def configure(self, options: BaseModel) -> None:
        super().configure(options)
        self._configure()

    def _configure(self) -> None:
        local = self._address is None
        self.info = replace(type(self).info, remote=not local, one_clock=local)

    @property
    def _address(self) -> str | None:
        return self.options.address or os.environ.get("RAY_ADDRESS") or None

    def unavailable_reason(self) -> str | None:
        return None if installed("ray") else INSTALL

    def node_kind(self) -> str:
        where = "on local raylets" if self._address is None else "on the machines of a Ray cluster"
        return f"Ray actors {where}{f' ({self._group.strategy})' if self._group else ''}"

    def cores(self) -> float:
        return self._group.cpus if self._group and self._address else cores()

    def findings(self) -> Iterator[Finding]:
        if reason := self.unavailable_reason():
            yield Finding("Ray", "note", f"no runtime ray: {reason}")
        else:
            where = f"the cluster at {self._address}" if self._address else "raylets that it starts here"
            yield Finding("Ray", "ok", f"{installed('ray')}: runtime ray, on {where}")

    def environment(self) -> dict[str, Any]:
        cluster = self._address or f"{self.options.raylets} local raylets"
        return {"ray": installed("ray"), "ray_cluster": cluster}

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        if spec.topology == "mpi":
            return "transport mpi does not run on runtime ray, without mpirun; use --set transport=gloo"
        if spec.restarts or spec.on_loss == "continue":
            return "runs that outlive a lost rank do not run on runtime ray; use --runtime local or docker"
        if spec.node_speed is not None:
            return "node_speed: runtime ray cannot slow a node; use --runtime local or docker"
        if spec.topology == "rpc" and not self.shared_network:
            return (
                "other users of the machines could run code as you over transport rpc. Use gloo, or "
                "--shared-network to permit it"
            )
        return None

    def check_together(self, runs: Sequence[RunSpec], data_dir: Path) -> None:
        if self._address and not re.fullmatch(ADDRESS, self._address):
            raise InputError(f"RAY_ADDRESS is {self._address!r}; allowed: auto, or HOST:PORT of the head")

    def kind(self, spec: RunSpec) -> Hashable | None:
        # CUDA does not work in a forked process.
        return None if self.cold or spec.on_gpu else "ray"

    def size(self, spec: RunSpec) -> int:
        return 1 if spec.topology == "single" else spec.nodes

    def plan(
        self, spec: RunSpec, paths: RunPaths, data_dir: Path, peers: Sequence[RunSpec] = ()
    ) -> LaunchPlan:
        warm = self.kind(spec) is not None
        runs = [*peers, spec] if warm else [spec]
        size = max(map(self.size, runs))
        request = {"size": size, **asdict(NodeResources.of(runs))}
        downloads = {"downloads": self.options.data_dir or "", "downloads_option": "ray.data_dir"}
        site = shared_site(paths, data_dir, "ray", interface="", silence_s=SILENCE_S, **downloads)
        cluster = ClusterPlan(size, shared=warm, request=request)
        return LaunchPlan(spec, paths, data_dir, cluster, warm=warm, site=site)

    def create(self, plan: LaunchPlan) -> Cluster:
        request, shared = plan.cluster.request, plan.cluster.shared
        self._group = RayCluster(self._address, self.options, request, shared)
        return self._group

    def clean(self) -> int:
        return LocalRuntime().clean() + remove_sessions()
