"""The services of one stack: deploy them, observe their tasks and remove them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from orchestrator.runtimes.docker.containers import Container, Containers
from orchestrator.runtimes.docker.engine import Engine, is_responding
from orchestrator.runtimes.docker.project import UNRESPONSIVE_S
from orchestrator.runtimes.docker.reaper import STACK_LABEL, remove_stack
from orchestrator.runtimes.swarm.machines import machines
from trainer.spec.run_spec import RunSpec

NEW = ("new", "pending", "assigned", "accepted", "preparing", "ready", "starting")
DEPLOY_S = 60.0  # to create the services
TERMINATE_S = 8.0  # for the coordinator to end the agents, and these their ranks
POLL_S = 0.1
PLACE_S = 5.0  # for Swarm to find machines for all tasks
REMOVE_S = 15.0  # for the engines of all machines to end their containers
LOG_S = 15.0  # to fetch a container's output from another machine

Task = Mapping[str, Any]  # as the engine lists it


class Stack(Containers):
    """A deployed stack, observed through the engine of a manager."""

    quota_pending = links_pending = False  # quotas hold from the start; there are no links

    def __init__(self, engine: Engine, name: str, topology: str, deploy: Sequence[str], text: str) -> None:
        """Deploy it; return at once.

        Args:
            engine: the engine of a manager.
            name: the name of the stack.
            topology: the topology of the run.
            deploy: the command.
            text: the stack file, which the command reads.
        """
        self._engine, self._name, self.topology = engine, name, topology
        self._services: dict[str, str] = {}  # names by ID
        self._statuses: dict[str, Mapping[str, Any]] = {}  # by task, as of the last listing
        self.start_s = 0.0
        self._starting = True
        remove_stack(engine, name)
        self._began = self.answered_at = time.monotonic()
        try:
            self._refusal = _deploy(deploy, text)
        except BaseException:  # as Ctrl-C: no handle of the stack exists yet
            remove_stack(engine, name)
            raise

    @property
    def starting(self) -> bool:
        if self._starting:
            tasks = self._tasks()
            self._starting = not self._refusal and (
                not tasks or any(task["Status"]["State"] in NEW for task in tasks)
            )
            self.start_s = time.monotonic() - self._began
        return self._starting

    @property
    def start_error(self) -> str | None:
        return self._refusal

    def _tasks(self) -> list[Task]:
        """All tasks of the stack, in the order of services and slots."""
        api: Any = self._engine.client.api
        own = {"label": f"{STACK_LABEL}={self._name}"}
        if not self._services:
            found = api.services(filters=own)
            self._services = {
                each["ID"]: each["Spec"]["Name"].removeprefix(f"{self._name}_") for each in found
            }
        # Not by service: the engine refuses a filter with one that was removed.
        tasks: list[Task] = [each for each in api.tasks(filters=own) if each["ServiceID"] in self._services]
        return sorted(tasks, key=lambda task: (self._services[task["ServiceID"]], task["Slot"]))

    def containers(self) -> list[Container]:
        tasks = self._tasks()
        self._statuses = {task["ID"]: task["Status"] for task in tasks}
        return [
            Container(
                identifier=task["ID"],
                service=self._services[task["ServiceID"]],
                ordinal=task["Slot"],
                address="",
                ended=task["Status"]["State"] != "running",
            )
            for task in tasks
            if task["Status"]["State"] not in (*NEW, "rejected")
        ]

    def exit_code(self, container: Container) -> int:
        status = self._statuses[container.identifier]
        code = int(status.get("ContainerStatus", {}).get("ExitCode", 0))
        if not code and status["State"] != "complete":
            return 1  # its engine could not start it, or has been lost
        return 128 - code if code > 128 else code

    def is_stuck(self, container: Container) -> bool:
        return False  # the coordinator watches heartbeats

    def lost(self) -> str | None:
        tasks = self._tasks()
        if self._services and not tasks:
            return "the stack of the run was removed"
        found = {machine.identifier: machine for machine in machines(self._engine)}
        for task in tasks:
            status, name = task["Status"], self._task_name(task)
            machine = found.get(task.get("NodeID", ""))
            if status["State"] == "rejected":
                where = machine.name if machine else "a machine that has left the swarm"
                return f"{name} cannot run on {where}: {_reason(status)}"
            waits = time.monotonic() - self._began > PLACE_S
            if status["State"] == "pending" and status.get("Err") and waits:
                return f"Swarm has no machine for {name}: {status['Err']}"
            gone = machine is None or machine.state == "down"
            if task.get("NodeID") and gone and status["State"] in (*NEW, "running"):
                where = machine.name if machine else "a machine"
                return f"{where} was lost, which had {name}: Swarm reports that it is down or has left"
        return None

    def _task_name(self, task: Task) -> str:
        service = self._services[task["ServiceID"]]
        return Container(task["ID"], service, task["Slot"], "", ended=False).name([], self.topology)

    def engine_failure(self, error: Exception) -> str | None:
        if time.monotonic() - self.answered_at < UNRESPONSIVE_S and self.is_responding():
            return None
        return f"the Docker engine of the manager stopped responding ({type(error).__name__})"

    def is_responding(self) -> bool:
        return is_responding(self._engine)

    def apply_quotas(self) -> str | None:
        return None

    def apply_links(self, run: RunSpec) -> str | None:
        return None

    def log(self, container: Container, since: int | None = None) -> Iterator[bytes]:
        options = () if since is None else ("--since", str(since))
        command = self._engine.command("service", "logs", "--raw", *options, container.identifier)
        try:  # the SDK has no logs of a task
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=LOG_S,
            )
        except subprocess.TimeoutExpired as slow:
            yield slow.stdout or b""
            yield f"\nSwarm did not deliver the rest of this log within {LOG_S:g} s.\n".encode()
        else:
            yield done.stdout

    def terminate(self) -> None:
        """Stop the coordinator, which runs on this machine. It ends the agents, and these their ranks."""
        for task in self._tasks():
            if self._services[task["ServiceID"]] == "coordinator" and task["Status"]["State"] == "running":
                with suppress(Exception):  # it has just ended
                    container = task["Status"]["ContainerStatus"]["ContainerID"]
                    self._engine.client.api.kill(container, "SIGTERM")
        deadline = time.monotonic() + TERMINATE_S
        while any(not each.ended for each in self.containers()) and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def remove(self) -> None:
        try:
            remove_stack(self._engine, self._name)
            deadline = time.monotonic() + REMOVE_S
            while self._ending() and time.monotonic() < deadline:
                time.sleep(POLL_S)
        except Exception:
            # An engine that has died must not hide a run's result. The next sweep removes by label what
            # the swarm still has.
            if self.is_responding():
                raise

    def _ending(self) -> list[Task]:
        """The tasks that engines have yet to end after the removal of the services.

        A lost machine cannot say that it has ended one; it does so when it returns.
        """
        api: Any = self._engine.client.api
        ready = {each.identifier for each in machines(self._engine) if each.state == "ready"}
        return [
            task
            for task in api.tasks()
            if task["ServiceID"] in self._services
            and task["Status"]["State"] in (*NEW, "running")
            and task.get("NodeID") in ready
        ]


def _deploy(command: Sequence[str], text: str) -> str | None:
    """Create the services. Returns why that failed, or None."""
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=DEPLOY_S,
            start_new_session=True,  # Ctrl-C in the terminal is the orchestrator's to handle
        )
    except subprocess.TimeoutExpired:
        return f"docker stack deploy has not ended within {DEPLOY_S:g} s"
    if not done.returncode:
        return None
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"docker stack deploy failed: {lines[-1][:300]}"


def _reason(status: Mapping[str, Any]) -> str:
    """Why a machine has refused a task, and what helps."""
    error = str(status.get("Err", "")).strip()
    if "No such image" in error:
        return f"{error}; it lacks the image: swarm/load-image MACHINE, see docs/swarm.md"
    if "bind source path does not exist" in error:
        return f"{error}; every machine needs the files of the dataset at this path, see docs/swarm.md"
    return error or str(status.get("Message", "rejected"))
