"""The containers of a cluster, whose coordinator takes one run after the other, or one alone."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

from orchestrator.results.store import make_private
from orchestrator.runtimes.base import RunState
from orchestrator.runtimes.docker.compose import SPEC, ComposeProject
from orchestrator.runtimes.docker.engine import Engine, is_responding
from orchestrator.runtimes.docker.project import Container, Project
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.led import POLL_S, LedCluster, LedRun
from trainer.core.events import how_ended, signal_name
from trainer.node.channel import file_channel, log_marks
from trainer.node.rank_assignment import ROLES, AgentInfo, node_name

INSPECT_S = 1.0  # between checks of the containers
LOG_S = 3.0  # for the engine to log what a container has written
LOSS_S = 5.0  # for the engine to notice the end of a container whose agent has disconnected


class Containers(LedCluster):
    """The containers of a compose project, for runs with the same topology and limits."""

    def __init__(
        self, engine: Engine, compose: ComposeProject, directory: Path, shared: bool, spec: Path, log: Path
    ) -> None:
        """Start them; return at once.

        Args:
            engine: the engine that runs them.
            compose: all containers.
            directory: the directory through which they get runs and return results; replaced by an empty
                one.
            shared: whether they stay for other runs.
            spec: the spec of the first run, whose owner owns the results.
            log: the file for the output of docker compose.
        """
        self.compose, self.directory = compose, directory
        shutil.rmtree(directory, ignore_errors=True)
        make_private(directory.parent)
        directory.mkdir()
        shutil.copyfile(spec, directory / SPEC)
        super().__init__(file_channel(directory), shared)
        self.noun = "the warm container " if shared else ""
        self.project = Project(engine, compose, log)
        self._inspected_at = 0.0
        self._link_error: str | None = None

    def directory_of(self, plan: LaunchPlan) -> Path:
        return self.directory / plan.paths.directory.name

    def name_of(self, directory: Path) -> str:
        return directory.name

    def begin(self, run: LedRun) -> None:
        self.engine_start_s = self.engine_stop_s = 0.0  # of this run
        self._inspected_at = self.project.answered_at = time.monotonic()
        # Ranks cannot know whether the links of an earlier run still apply, but whether there are any.
        if self.compose.linked and not self.project.links_pending:
            self._link_error = self.project.apply_links(run.spec)

    def ready(self) -> bool:
        if self.deleted:
            return False
        if not is_responding(self.project.engine):
            self.failure = "the Docker engine did not respond"
            return False
        ready = super().ready()
        if self._expired:
            self.failure = None
        return ready

    @property
    def _expired(self) -> bool:
        """Whether they exit after an idle time: the coordinator exits first, with code 0."""
        coordinators = [each for each in self.project.containers() if each.service == "coordinator"]
        return any(each.ended and not self.project.exit_code(each) for each in coordinators)

    def defect(self) -> str | None:
        return self._defect([])

    def _defect(self, agents: list[AgentInfo]) -> str | None:
        """How they have failed. agents: of a run, which goes on without the other nodes; empty: all."""
        used = {(agent.role, agent.ordinal) for agent in agents}
        starting = self.project.starting
        containers = self.project.containers()
        for each in containers:
            if used and each.service == "node" and (each.service, each.ordinal) not in used:
                continue
            # The names of shared containers have no gaps.
            name = each.name([] if self.shared else agents, self.compose.topology)
            if each.ended and self._fails_with(each):
                if each.service == "switch" and not self.shared:
                    return "the switch of the run's links has ended; switch.log may say why"
                return f"{self.noun}{name} {how_ended(self.project.exit_code(each))}"
            if self.project.is_stuck(each):
                return f"{self.noun}{name} is stuck: its health check fails"
        if error := self.project.start_error:
            return error
        # One is the coordinator.
        expected = self.compose.scale + len(ROLES[self.compose.topology]) + self.compose.linked
        spare = self.compose.scale - sum(role == "node" for role, _ in used) if used else 0
        if self.shared and not starting and len(containers) < expected - spare:
            return "a warm container was removed"
        return None

    def _fails_with(self, container: Container) -> bool:
        """Whether the coordinator does not notice the end of a container, or lets the run go on."""
        alone = self.project.start_error is not None
        return self.shared or alone or container.service in ("coordinator", "switch")

    def trouble(self, run: LedRun) -> RunState | None:
        project = self.project
        if project.links_pending and not project.starting:
            self._link_error = project.apply_links(run.spec)
        if error := self._link_error:
            return RunState({}, 0, error, nodes_lost=self.shared and not project.links_pending)
        if time.monotonic() - self._inspected_at > INSPECT_S and (failure := self._inspected(run)):
            return failure
        if project.quota_pending and run.is_ready and (error := project.apply_quotas()):
            return RunState({}, 0, error)
        return super().trouble(run) if run.failure else None

    def _inspected(self, run: LedRun) -> RunState | None:
        """The state if containers or the engine have failed, else None."""
        self._inspected_at = time.monotonic()
        try:
            failure = None if self._goes_on(run) else self._defect(run.agents)
        except Exception as error:  # the SDK does not wrap the exceptions of its HTTP library
            dead = self.project.engine_failure(error)
            return RunState({}, 0, dead) if dead else None
        self.project.answered_at = time.monotonic()
        if run.new:
            self.engine_start_s = self.project.start_s
        starts = bool(self.project.start_error)  # a second attempt would fail, too
        return RunState({}, 0, failure, nodes_lost=self.shared and not starts) if failure else None

    def _goes_on(self, run: LedRun) -> bool:
        """Whether the coordinator alone knows if lost nodes end a run."""
        if run.spec.on_loss != "continue":
            return False
        return any(each.service == "coordinator" and not each.ended for each in self.project.containers())

    def loss_after(self, run: LedRun, disconnected: bool) -> RunState | None:
        """The coordinator often notices the end of a container before the engine does."""
        deadline = time.monotonic() + (LOSS_S if disconnected else 0.0)
        while not (failure := self._inspected(run)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return failure

    def early_loss(self, run: LedRun) -> str | None:
        codes = {each: self.project.exit_code(each) for each in self.project.containers() if each.ended}
        killed = sorted(
            (each.name([], self.compose.topology), code) for each, code in codes.items() if code < 0
        )
        if not killed:
            return None
        name, code = killed[0]
        return (
            f"{name} was killed by {signal_name(-code)} together with its container, before it registered"
        )

    def save_logs(self, run: LedRun) -> None:
        agents = run.agents
        used = {(agent.role, agent.ordinal) for agent in agents} | {("coordinator", 1)}
        try:
            for each in self.project.containers():
                if run.lost or not self.shared or (each.service, each.ordinal) in used:
                    name = node_name(each.service, each.ordinal, agents, self.compose.topology)
                    run.paths.log(name.replace(" ", "-")).write_bytes(self._log(run, each))
        except Exception:
            # An engine that has died must not hide the run's result.
            if is_responding(self.project.engine):
                raise

    def _log(self, run: LedRun, container: Container) -> bytes:
        """The container's output during a run."""
        begin, end = (f"{mark}\n".encode() for mark in log_marks(run.paths.directory.name))
        marked = self.shared or container.service == "coordinator"
        deadline = time.monotonic() + LOG_S
        while True:
            output = b"".join(self.project.log(container, since=int(run.began) - 1))
            _, _, own = output.rpartition(begin)
            if end in own:
                return own.partition(end)[0]
            if container.ended or run.lost or not marked or time.monotonic() > deadline:
                return own
            time.sleep(POLL_S)

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
