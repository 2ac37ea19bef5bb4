"""A runtime for an engine that does not exist: its nodes are agents, children of the coordinator."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Hashable, Sequence
from pathlib import Path

from orchestrator.identity import own_label
from orchestrator.results.records import RuntimeInfo
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.base import Cluster, Runtime
from orchestrator.runtimes.launch_plan import ClusterPlan, LaunchPlan, Process
from orchestrator.runtimes.led import LedCluster, shared_site
from orchestrator.runtimes.local.processes import loopback
from orchestrator.runtimes.local.runtime import LocalRuntime
from orchestrator.shipped import python_path
from trainer.core.events import how_ended
from trainer.node.channel import Answer, PipeChannel
from trainer.node.site import Plan
from trainer.spec.run_spec import RunSpec

ADDRESS = "127.0.0.1"
END_S = 10.0


class FakeRuntime(Runtime):
    """Nodes that are processes of this machine."""

    info = RuntimeInfo(
        enforces_limits=False,
        shares_cores=True,
        one_clock=True,
        shapes_links=False,
        warm=True,
        remote=False,
    )

    def unavailable_reason(self) -> str | None:
        return None

    def node_kind(self) -> str:
        return "fake nodes"

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        others = spec.topology == "mpi" or spec.restarts or spec.node_speed or spec.on_gpu
        return "fake nodes have no mpirun, no restarts, no quotas and no GPU" if others else None

    def kind(self, spec: RunSpec) -> Hashable | None:
        return None if self.cold else "fake"

    def plan(
        self, spec: RunSpec, paths: RunPaths, data_dir: Path, peers: Sequence[RunSpec] = ()
    ) -> LaunchPlan:
        shared = self.kind(spec) is not None
        runs = [spec, *(peers if shared else ())]
        size = max(1 if run.topology == "single" else run.nodes for run in runs)
        plan = Plan(count=size, agent=[sys.executable, "-m", "trainer.node", "agent", "node", ADDRESS])
        lead = [sys.executable, "-m", "trainer.node", "lead", plan.model_dump_json(exclude_defaults=True)]
        led = Process("coordinator", lead, {"PYTHONPATH": python_path()}, "coordinator")
        cluster = ClusterPlan(size, shared, [led])
        site = shared_site(paths, data_dir, "fake", interface=loopback())
        return LaunchPlan(spec, paths, data_dir, cluster, warm=shared, site=site)

    def create(self, plan: LaunchPlan) -> Cluster:
        return FakeCluster(plan)

    def clean(self) -> int:
        return LocalRuntime().clean()


class FakeCluster(LedCluster):
    """A coordinator that is a child of this process. Its agents end with it."""

    def __init__(self, plan: LaunchPlan) -> None:
        (led,) = plan.cluster.processes
        with open(plan.paths.log(led.log), "wb") as log:
            self._process = subprocess.Popen(
                led.argv,
                env={**os.environ, **led.environment, **own_label()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdin
        assert self._process.stdout
        answers, requests = self._process.stdout.fileno(), self._process.stdin.fileno()
        super().__init__(PipeChannel(answers, requests, Answer), plan.cluster.shared)

    def defect(self) -> str | None:
        code = self._process.poll()
        return None if code is None or self.deleted else f"the coordinator {how_ended(code)}"

    def delete(self) -> None:
        if not self.deleted:
            try:
                self._process.communicate(timeout=END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
            self.deleted = True
