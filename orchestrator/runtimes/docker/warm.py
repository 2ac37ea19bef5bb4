"""Warm containers: they stay up, and take one run after the other (trainer/node/hand_over.py)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

from orchestrator.results.store import RunPaths, make_private
from orchestrator.runtimes.base import Cluster, Run, RunState
from orchestrator.runtimes.docker.compose import ComposeProject
from orchestrator.runtimes.docker.engine import Engine, is_responding
from orchestrator.runtimes.docker.live import LiveRecord
from orchestrator.runtimes.docker.project import Container, Project
from orchestrator.runtimes.launch_plan import LaunchPlan
from trainer.core.events import Event, how_ended
from trainer.core.processes import Suspended
from trainer.node.hand_over import CANCEL, ENDED, Ending, hand_over, log_marks
from trainer.node.rank_assignment import ROLES, node_name
from trainer.spec.run_spec import RunSpec

SPEC = "spec.json"  # of the first run, in the directory of the containers
POLL_S = 0.02  # for the end of a run, and for its last log line
INSPECT_S = 1.0  # between checks of the containers
CANCEL_S = 12.0  # for agents to end their ranks
LOG_S = 3.0  # for the engine to log what a container has written
LOSS_S = 5.0  # for the engine to notice the end of a container whose agent has disconnected


class WarmContainers(Cluster):
    """The containers of one compose project, for runs with the same topology and limits.

    Attributes:
        untrusted: which of them has sent invalid data, and what; then no other run takes them.
    """

    def __init__(
        self, engine: Engine, compose: ComposeProject, directory: Path, spec: Path, log: Path
    ) -> None:
        """Start them; return at once.

        Args:
            engine: the engine that runs them.
            compose: all containers.
            directory: the directory through which they get runs and return results; replaced by an empty
                one.
            spec: the spec of the first run, whose owner owns the results.
            log: the file for the output of docker compose.
        """
        self.compose, self.directory = compose, directory
        self.deleted = False
        self.untrusted: str | None = None
        self._new = True
        shutil.rmtree(directory, ignore_errors=True)
        make_private(directory.parent)
        directory.mkdir()
        shutil.copyfile(spec, directory / SPEC)
        self.project = Project(engine, compose, log)

    def run(self, plan: LaunchPlan) -> WarmRun:
        new, self._new = self._new, False
        self.engine_start_s = self.engine_stop_s = 0.0  # of this run
        return WarmRun(self, plan.spec, plan.paths, new)

    def ready(self) -> bool:
        if self.deleted:
            return False
        if not is_responding(self.project.engine):
            self.failure = "the Docker engine did not respond"
            return False
        failure = self.untrusted or self.defect()
        self.failure = None if self._expired else failure
        return failure is None

    def defect(self, used: Set[tuple[str, int]] = frozenset()) -> str | None:
        """How they have failed; None if all run, or are still starting.

        used: service and number of those that a run has, which goes on without the other nodes; empty: all.
        """
        starting = self.project.starting
        containers = self.project.containers()
        for each in containers:
            if used and each.service == "node" and (each.service, each.ordinal) not in used:
                continue
            name = each.name((), self.compose.topology)  # they have no gaps
            if each.ended:
                return f"the warm container {name} {how_ended(self.project.exit_code(each))}"
            if self.project.is_stuck(each):
                return f"the warm container {name} is stuck: its health check fails"
        if error := self.project.start_error:
            return error
        # One is the coordinator.
        expected = self.compose.scale + len(ROLES[self.compose.topology]) + self.compose.linked
        spare = self.compose.scale - sum(service == "node" for service, _ in used) if used else 0
        if not starting and len(containers) < expected - spare:
            return "a warm container was removed"
        return None

    @property
    def _expired(self) -> bool:
        """Whether they exit after an idle time: the coordinator exits first, with code 0."""
        coordinators = [each for each in self.project.containers() if each.service == "coordinator"]
        return any(each.ended and not self.project.exit_code(each) for each in coordinators)

    def delete(self) -> None:
        """Remove the containers and the directory. Idempotent."""
        if self.deleted:
            return
        began = time.monotonic()
        self.project.remove()
        self.deleted = True
        shutil.rmtree(self.directory, ignore_errors=True)
        with suppress(OSError):  # other containers use its parent
            self.directory.parent.rmdir()
        self.engine_stop_s = time.monotonic() - began


class WarmRun(Run):
    """One run in warm containers."""

    def __init__(self, nodes: WarmContainers, spec: RunSpec, paths: RunPaths, new: bool) -> None:
        """Hand the run over.

        Args:
            nodes: the containers.
            spec: the run.
            paths: the paths of the run's results.
            new: whether the containers were started for this run.
        """
        self._nodes, self._spec, self._paths, self._new = nodes, spec, paths, new
        self._ranks = spec.world_size
        live = nodes.directory / paths.directory.name
        self._record = LiveRecord(live, coordinator_is_up=not new)
        self._cancel, self._ended = live / CANCEL, live / ENDED
        self._inspected_at = nodes.project.answered_at = time.monotonic()
        self._began = int(time.time()) - 1  # of its log lines
        self._lost = self._stopped = False
        shutil.rmtree(live, ignore_errors=True)
        live.mkdir()
        self._link_error: str | None = None
        # Ranks cannot know whether the links of an earlier run still apply, but whether there are any.
        if nodes.compose.linked and not nodes.project.links_pending:
            self._link_error = nodes.project.apply_links(spec)
        shutil.copyfile(paths.spec, live / "spec.json")
        hand_over(nodes.directory, live.name)

    def wait(self, timeout_s: float) -> RunState:
        deadline = time.monotonic() + timeout_s
        while not self._ended.exists():
            if self._nodes.project.links_pending and not self._nodes.project.starting:
                self._link_error = self._nodes.project.apply_links(self._spec)
            if self._link_error:
                self._lost = True
                return RunState({}, 0, self._link_error, nodes_lost=not self._nodes.project.links_pending)
            if time.monotonic() - self._inspected_at > INSPECT_S and (failure := self._failure()):
                self._lost = True
                return failure
            ready = self._nodes.project.quota_pending and self._record.are_ready(self._ranks)
            if ready and (error := self._nodes.project.apply_quotas()):
                return RunState({}, 0, error)
            if time.monotonic() > deadline:
                return RunState({}, running=1)
            time.sleep(POLL_S)
        return self._final_state()

    def _failure(self) -> RunState | None:
        """The state if containers or the engine have failed, else None."""
        self._inspected_at = time.monotonic()
        try:
            failure = self._nodes.defect(self._used)
            if trouble := self._record.coordinator_trouble():
                failure = failure or f"the warm container coordinator {trouble}"
        except Exception as error:  # the SDK does not wrap the exceptions of its HTTP library
            dead = self._nodes.project.engine_failure(error)
            return RunState({}, 0, dead) if dead else None
        self._nodes.project.answered_at = time.monotonic()
        if self._new:
            self._nodes.engine_start_s = self._nodes.project.start_s
        starts = bool(self._nodes.project.start_error)  # a second attempt would fail, too
        return RunState({}, 0, failure, nodes_lost=not starts) if failure else None

    def _final_state(self) -> RunState:
        """The state after the coordinator has ended the run."""
        ending = Ending.model_validate_json(self._ended.read_text())
        agents, topology = self._record.agents, self._nodes.compose.topology
        names = {agent.name: node_name(agent.role, agent.ordinal, agents, topology) for agent in agents}
        exits = {names.get(name, name): code for name, code in ending.exits.items()}
        self._nodes.untrusted = ending.untrusted
        if not exits["coordinator"]:
            return RunState(exits, running=0)
        if ending.untrusted and not agents:  # an earlier run may have spoilt the container
            return RunState(exits, 0, ending.untrusted, nodes_lost=True)
        if ending.cut_off:  # it runs, and its health check passes
            self._lost = True
            # Other new containers would not register in time, either.
            return RunState(exits, 0, ending.cut_off, nodes_lost=bool(agents) or not self._new)
        if ending.lost:
            return RunState(exits, 0, f"the process of warm nodes {ending.lost}", nodes_lost=True)
        # The coordinator often notices the end of a container before the engine does.
        disconnected = ending.failures.keys() - ending.exits.keys()
        deadline = time.monotonic() + (LOSS_S if disconnected else 0.0)
        while not (failure := self._failure()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if failure:
            self._lost = True
            return failure
        if not agents:
            return RunState(exits, 0, self._record.registration_error)
        if cause := self._record.unreported(topology):
            return RunState(exits, 0, cause)
        # Events say why a started rank has failed.
        silent = set(range(self._ranks)) - self._record.started
        for agent in agents:
            if agent.name in ending.failures and silent & {*agent.ranks}:
                return RunState(exits, 0, f"{names[agent.name]}: {ending.failures[agent.name]}")
        return RunState(exits, 0)

    def new_events(self) -> list[Event]:
        return self._record.new_events()

    def suspended(self) -> Suspended:
        return self._record.suspended

    def stop(self) -> None:
        """End the run, and save its logs. The containers stay up unless they do not end it in time."""
        if self._stopped:
            return
        self._stopped = True
        began = time.monotonic()
        if not self._lost and not self._ended.exists():
            self._cancel.touch()
            deadline = began + CANCEL_S
            while not self._ended.exists() and time.monotonic() < deadline:
                time.sleep(POLL_S)
            self._lost = not self._ended.exists()
        try:
            self._save_logs()
        except Exception:
            if is_responding(self._nodes.project.engine):
                raise
        if self._lost:
            self._nodes.delete()

    @property
    def _used(self) -> Set[tuple[str, int]]:
        """Service and number of the containers whose agents take part; none before ranks are assigned."""
        return {(agent.role, agent.ordinal) for agent in self._record.agents}

    def _save_logs(self) -> None:
        agents, used = self._record.agents, self._used | {("coordinator", 1)}
        for each in self._nodes.project.containers():
            if self._lost or (each.service, each.ordinal) in used:
                name = node_name(each.service, each.ordinal, agents, self._nodes.compose.topology)
                self._paths.log(name.replace(" ", "-")).write_bytes(self._log(each))

    def _log(self, container: Container) -> bytes:
        """The container's output during this run."""
        begin, end = (f"{mark}\n".encode() for mark in log_marks(self._paths.directory.name))
        deadline = time.monotonic() + LOG_S
        while True:
            output = b"".join(self._nodes.project.log(container, since=self._began))
            _, _, own = output.rpartition(begin)
            if end in own:
                return own.partition(end)[0]
            if container.ended or self._lost or time.monotonic() > deadline:
                return own
            time.sleep(POLL_S)

    def collect(self) -> list[Event]:
        reasons = [agent.replaced for agent in self._record.agents if agent.replaced]
        self.replaced = next(iter(reasons), None)
        return self._record.collect(self._paths)
