"""A cluster that a coordinator leads (trainer/node), and its runs."""

from __future__ import annotations

import shutil
import time
from abc import abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.base import Cluster, Run, RunState
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.live_run import write_events
from trainer.core.events import Event, EventReader
from trainer.core.processes import Suspended
from trainer.node.channel import SPEC, Answer, Channel, Ending, Request
from trainer.node.heartbeat import COORDINATOR_STUCK_S, Silence
from trainer.node.rank_assignment import AgentInfo, node_name
from trainer.node.site import Site

POLL_S = 0.02  # for the end of a run
CANCEL_S = 12.0  # for agents to end their ranks

_AGENTS = TypeAdapter(list[AgentInfo])


def shared_site(paths: RunPaths, data_dir: Path, runtime: str, **fields: Any) -> Site:
    """The site of nodes that see the directories of this machine.

    Args:
        paths, data_dir: those of the run.
        runtime: names the checkpoints, since times on other runtimes do not compare.
        fields: others of the `Site`.
    """
    directories = {"data": data_dir, "code": paths.code, "console": paths.directory}
    directories["checkpoints"] = paths.checkpoints / runtime
    return Site.model_validate({name: str(path.resolve()) for name, path in directories.items()} | fields)


class LedCluster(Cluster):
    """Nodes whose coordinator takes one run after the other from a channel.

    Attributes:
        noun: begins what is said about one of the nodes.
        shared: whether other runs follow the first one.
        untrusted: which node has sent invalid data, and what; then no other run uses the nodes.
        deleted: whether the nodes are gone.
        finished: runs that have ended, and not with the nodes.
    """

    noun = ""

    def __init__(self, channel: Channel[Answer], shared: bool) -> None:
        self.channel, self.shared = channel, shared
        self.untrusted: str | None = None
        self.deleted = False
        self.finished = 0
        self._runs = 0

    def run(self, plan: LaunchPlan) -> LedRun:
        self._runs += 1
        return LedRun(self, plan, self._runs)

    def ready(self) -> bool:
        self.failure = self.untrusted or self.defect()
        return self.failure is None and not self.deleted

    def directory_of(self, plan: LaunchPlan) -> Path:
        """The directory to which the coordinator writes the record of a run."""
        return plan.paths.live

    def name_of(self, directory: Path) -> str:
        """What the coordinator calls it."""
        return str(directory.resolve())

    def site_of(self, plan: LaunchPlan) -> Site:
        """Where the agents of a run are, whose files have been written."""
        return plan.site

    def begin(self, run: LedRun) -> None:
        """Prepare the nodes for a run, before the coordinator hears of it."""

    @abstractmethod
    def defect(self) -> str | None:
        """How the nodes have failed; None if they can run, or are still starting."""

    def trouble(self, run: LedRun) -> RunState | None:
        """What ends a run in progress, which its coordinator does not know; None if nothing does."""
        failure = run.failure and f"{self.noun or 'the '}coordinator {run.failure}"
        cause = failure or self.defect()
        return RunState({}, 0, cause, nodes_lost=self.shared) if cause else None

    def is_waiting(self, run: LedRun) -> bool:
        """Whether a run waits for machines, which does not count towards its time limit."""
        return bool(run.waits)

    def loss_after(self, run: LedRun, disconnected: bool) -> RunState | None:
        """The same of a run that has failed. disconnected: whether an agent did not end it."""
        return self.trouble(run)

    def early_loss(self, run: LedRun) -> str | None:
        """Which node was lost before ranks were assigned, if the coordinator only misses it."""
        return None

    def save_logs(self, run: LedRun) -> None:
        """Save the logs of a run, if its nodes have not written them to its directory."""


class LedRun(Run):
    """One run of such a cluster.

    Attributes:
        directory: the record of the run, while it is in progress.
        new: whether the nodes were started for this run.
        began: when it was handed over, in seconds since the epoch.
        lost: whether they take no other one.
        is_up: whether the coordinator has answered.
        failure: what is wrong with the coordinator; None if nothing is.
        waits: what the run waits for, such as machines; empty if for nothing.
    """

    def __init__(self, cluster: LedCluster, plan: LaunchPlan, number: int) -> None:
        """Hand the run over. number: its number in this cluster, from 1."""
        self._cluster, self._number, self.new = cluster, number, number == 1
        self.spec, self.paths, self.directory = plan.spec, plan.paths, cluster.directory_of(plan)
        self.began = time.time()
        self.lost = self._stopped = False
        self._reader = EventReader(self.directory)
        self._events: list[Event] = []
        self._ending: Ending | None = None
        self._suspended: Suspended = {}
        self.waits = ""
        self.failure: str | None = None  # of the coordinator
        self.is_up, self._silence = not self.new, Silence()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()
        shutil.copyfile(plan.paths.spec, self.directory / SPEC)
        cluster.begin(self)
        site = cluster.site_of(plan).model_dump(exclude_defaults=True)
        name, directory = plan.paths.directory.name, cluster.name_of(self.directory)
        self._post(kind="run", name=name, directory=directory, site=site, warm=plan.warm)

    def _post(self, **fields: object) -> None:
        with suppress(BrokenPipeError):  # the coordinator has ended, which `wait` notices
            self._cluster.channel.post(Request.model_validate({"run": self._number, **fields}))

    def _hear(self) -> None:
        """Read the coordinator's answers, at least once a second."""
        try:
            answers = self._cluster.channel.new()
        except ValueError as error:
            answers, self.failure = [], f"sent invalid data: {error}"
        if self._silence.look() > COORDINATOR_STUCK_S and self.is_up and not answers:
            self.failure = f"is stuck: no heartbeat for {COORDINATOR_STUCK_S:g} s"
        for answer in answers:
            self.is_up = True
            self._silence.end()
            if answer.kind == "lost":
                self.failure = f"has ended: {answer.reason}"
            if answer.run == self._number:
                self._ending = answer.ending or self._ending
                if answer.kind == "waiting":
                    self.waits = answer.reason or ""
                if answer.kind == "suspended":
                    self._suspended = answer.processes

    def wait(self, timeout_s: float) -> RunState:
        deadline = time.monotonic() + timeout_s
        while True:
            self._hear()
            if self._ending:
                state = self._final_state(self._ending)
                self._cluster.finished += not state.nodes_lost
                return state
            if trouble := self._cluster.trouble(self):
                self.lost = True
                return trouble
            if time.monotonic() > deadline:
                return RunState({}, running=1, waiting=self._cluster.is_waiting(self))
            time.sleep(POLL_S)

    def _final_state(self, ending: Ending) -> RunState:
        """The state after the coordinator has ended the run."""
        cluster, agents, topology = self._cluster, self.agents, self.spec.topology
        names = {agent.name: node_name(agent.role, agent.ordinal, agents, topology) for agent in agents}
        exits = {names.get(name, name): code for name, code in ending.exits.items()}
        cluster.untrusted = ending.untrusted
        if not exits["coordinator"]:
            return RunState(exits, 0)
        if cluster.shared and (lost := self._loss(ending, exits)):
            return lost
        if not agents:
            return RunState(exits, 0, cluster.early_loss(self) or self._registration_error)
        for name, cause in ending.unreported.items():
            return RunState(exits, 0, f"{names.get(name, name)}: {cause}")
        # Events say why a started rank has failed.
        silent = {*range(self.spec.world_size)} - self._ranks_with("start")
        for agent in agents:
            if agent.name in ending.failures and silent & {*agent.ranks}:
                return RunState(exits, 0, f"{names[agent.name]}: {ending.failures[agent.name]}")
        return RunState(exits, 0)

    def _loss(self, ending: Ending, exits: dict[str, int]) -> RunState | None:
        """The state of a run that has failed with its nodes, and not by itself."""
        agents = self.agents
        if ending.untrusted and not agents:  # an earlier run may have spoilt the nodes
            return RunState(exits, 0, ending.untrusted, nodes_lost=True)
        known = ending.cut_off or ending.lost
        disconnected = not known and bool(ending.failures.keys() - ending.exits.keys())
        if loss := self._cluster.loss_after(self, disconnected):
            self.lost = True
            return loss
        if ending.cut_off:  # it runs, and its health check passes
            self.lost = True
            # Other new nodes would not register in time, either.
            lost = bool(agents) or not self.new
            return RunState(exits, 0, self._cluster.noun + ending.cut_off, nodes_lost=lost)
        if ending.lost:
            return RunState(exits, 0, f"the process of warm nodes {ending.lost}", nodes_lost=True)
        return None

    @property
    def agents(self) -> list[AgentInfo]:
        """The agents of the rank assignment; empty before ranks are assigned."""
        try:
            return _AGENTS.validate_json((self.directory / "assignment.json").read_text())
        except (OSError, ValueError):
            return []

    @property
    def _registration_error(self) -> str:
        """Why no ranks were assigned, from the coordinator's summary."""
        try:
            return (self.directory / "summary.txt").read_text().strip().removeprefix("FAILED: ")
        except OSError:
            return "the coordinator exited before it assigned ranks; its log says why"

    def _ranks_with(self, kind: str) -> set[int]:
        self._reader.new()
        return {event.rank for event in self._reader.events if event.kind == kind}

    @property
    def is_ready(self) -> bool:
        """Whether all ranks are ready to train."""
        return len(self._ranks_with("ready")) == self.spec.world_size

    def new_events(self) -> list[Event]:
        self._reader.new()
        return self._reader.untold()

    def suspended(self) -> Suspended:
        return self._suspended

    def stop(self) -> None:
        """End the run, and save its files. Shared nodes stay, unless they do not end it in time."""
        if self._stopped:
            return
        self._stopped = True
        if not self.lost and self._ending is None:
            self.lost = not self._is_cancelled()
        try:
            self._cluster.save_logs(self)
            self._save()
        finally:
            if self.lost or not self._cluster.shared:
                self._cluster.delete()
            shutil.rmtree(self.directory, ignore_errors=True)  # to which lost nodes may write until now

    def _is_cancelled(self) -> bool:
        """Let the coordinator end the run. Returns whether it has; one that still starts cannot."""
        self._post(kind="cancel")
        deadline = time.monotonic() + (CANCEL_S if self.is_up else 0.0)
        while self._ending is None and not self.failure and time.monotonic() < deadline:
            time.sleep(POLL_S)
            self._hear()
        return self._ending is not None and not self._ending.cut_off

    def _save(self) -> None:
        """Move events, weights, usage and traces to their final paths."""
        self._reader.new()
        self.replaced = next((agent.replaced for agent in self.agents if agent.replaced), None)
        self._events = write_events(self.paths.events, self._reader.events)
        traces = map(self.paths.trace, range(self.spec.world_size))
        for kept in (self.paths.weights, self.paths.usage, *traces):
            with suppress(FileNotFoundError):
                shutil.move(self.directory / kept.name, kept)

    def collect(self) -> list[Event]:
        return self._events
