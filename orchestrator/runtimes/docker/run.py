"""A run in containers that were started for it, and that end with it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.base import Cluster, Run, RunState
from orchestrator.runtimes.docker.engine import is_responding
from orchestrator.runtimes.docker.live import LiveRecord
from orchestrator.runtimes.docker.project import Container, Project
from orchestrator.runtimes.launch_plan import LaunchPlan
from trainer.core.events import Event, signal_name
from trainer.core.processes import Suspended
from trainer.spec.run_spec import RunSpec

POLL_S = 0.25


class OneRunContainers(Cluster):
    """Containers that start with their run and end with it."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._deleted = False

    def run(self, plan: LaunchPlan) -> ContainerRun:
        return ContainerRun(self, self._project, plan.spec, plan.paths)

    def delete(self) -> None:
        if self._deleted:
            return
        try:
            self._project.remove()
            self._deleted = True
        except Exception:
            # An engine that has died must not hide the run's result.
            if is_responding(self._project.engine):
                raise


class ContainerRun(Run):
    """A run in containers that were started for it."""

    def __init__(self, cluster: Cluster, project: Project, spec: RunSpec, paths: RunPaths) -> None:
        self._cluster, self._project, self._spec, self._paths = cluster, project, spec, paths
        self._ranks, self._continues = spec.world_size, spec.on_loss == "continue"
        self._record = LiveRecord(paths.live)
        self._state = RunState({}, running=1)
        self._stopped = False

    def wait(self, timeout_s: float) -> RunState:
        before = len(self._state.exits)
        deadline = time.monotonic() + timeout_s
        while True:
            self._state = self._inspect()
            over = not self._state.running or self._state.error or len(self._state.exits) > before
            if over or time.monotonic() > deadline:
                return self._state
            time.sleep(min(POLL_S, timeout_s))

    def _inspect(self) -> RunState:
        """The state of the containers, from the engine."""
        try:
            starting = self._project.starting
            self._cluster.engine_start_s = self._project.start_s
            found = self._project.containers()
            containers = [each for each in found if each.service != "switch"]  # it does not end by itself
            exits = {self._name(each): self._project.exit_code(each) for each in containers if each.ended}
        except Exception as error:  # the SDK does not wrap the exceptions of its HTTP library
            dead = self._project.engine_failure(error)
            return RunState(self._state.exits, 0, dead) if dead else self._state
        self._project.answered_at = time.monotonic()
        if exits.get("coordinator"):
            exits |= self._record.mpirun_exit
        running = sum(not each.ended for each in containers) + starting
        if not exits and (start_error := self._project.start_error):
            return RunState(exits, running, start_error)
        if exits.get("coordinator") and not self._record.agents:
            return RunState(exits, running, _killed_early(exits) or self._record.registration_error)
        if exits.get("coordinator") and (cause := self._record.unreported(self._project.topology)):
            return RunState(exits, running, cause)
        if any(each.service == "switch" and each.ended for each in found):
            return RunState(
                exits, running, "the switch of the run's links has ended; switch.log may say why"
            )
        if (
            self._project.links_pending
            and not starting
            and (refusal := self._project.apply_links(self._spec))
        ):
            return RunState(exits, running, refusal)
        ready = self._project.quota_pending and self._record.are_ready(self._ranks)
        if ready and (refusal := self._project.apply_quotas()):
            return RunState(exits, running, refusal)
        coordinated = any(each.service == "coordinator" and not each.ended for each in containers)
        if coordinated and (trouble := self._record.coordinator_trouble()):
            return RunState(exits, running, f"the coordinator {trouble}")
        if self._continues and coordinated:
            return RunState({}, running)  # the coordinator knows whether the others continue
        for each in containers:
            if self._project.is_stuck(each):
                return RunState(exits, running, f"{self._name(each)} is stuck: its health check fails")
        return RunState(exits, running)

    def _name(self, container: Container) -> str:
        return container.name(self._record.agents, self._project.topology)

    def new_events(self) -> list[Event]:
        return self._record.new_events()

    def suspended(self) -> Suspended:
        return self._record.suspended

    def stop(self) -> None:
        """Stop the containers, save their logs, and delete the cluster: then the run record is complete."""
        if self._stopped:
            return
        began = time.monotonic()
        try:
            try:
                self._project.terminate()
                for each in self._project.containers():
                    with open(self._paths.log(self._name(each).replace(" ", "-")), "wb") as file:
                        file.writelines(self._project.log(each))
            finally:
                self._cluster.delete()
            self._stopped = True
            self._cluster.engine_stop_s = time.monotonic() - began
        except Exception:
            # An engine that has died must not hide the run's result.
            if is_responding(self._project.engine):
                raise

    def collect(self) -> list[Event]:
        return self._record.collect(self._paths)


def _killed_early(exits: Mapping[str, int]) -> str | None:
    """Which container was killed before ranks were assigned; the coordinator only misses it. None: none."""
    killed = sorted((name, code) for name, code in exits.items() if code < 0)
    if not killed:
        return None
    name, code = killed[0]
    return f"{name} was killed by {signal_name(-code)} together with its container, before it registered"
