"""A stack as Swarm reports it: tasks, what happens to machines, and removal."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.docker.engine import Engine
from orchestrator.runtimes.docker.run import OneRunContainers
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.swarm import services as module
from orchestrator.runtimes.swarm.machines import HOST, machines, manager_trouble, total_cores
from orchestrator.runtimes.swarm.services import Stack
from tests.unit.cluster_support import FIELDS
from trainer.spec.run_spec import RunSpec

DEPLOY = ["docker", "stack", "deploy", "-c", "-", "run-1"]


def machine(name: str, state: str = "ready", rack: str = "1", **labels: str) -> dict[str, Any]:
    return {
        "ID": f"id of {name}",
        "Description": {
            "Hostname": name,
            "Resources": {"NanoCPUs": 2 * 10**9},
            "Engine": {"Labels": labels or None},
        },
        "Status": {"State": state},
        "Spec": {"Availability": "active", "Role": "worker", "Labels": {"rack": rack}},
    }


class Swarm:
    """A fake manager with two nodes and a coordinator. Tests change `tasks` and `nodes`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes = [machine("one"), machine("two"), machine("three")]
        self.tasks: list[dict[str, Any]] = []
        self.removed: list[str] = []
        self.killed: list[tuple[str, str]] = []
        self.commands: list[list[str]] = []
        self.refusal: str | BaseException | None = None
        self.given = ""
        services = [
            {"ID": f"s-{name}", "Spec": {"Name": f"run-1_{name}"}} for name in ("node", "coordinator")
        ]
        api = SimpleNamespace(
            services=lambda filters: services,
            tasks=lambda filters=None: [dict(task) for task in self.tasks],
            nodes=lambda: self.nodes,
            kill=lambda container, signal: self._kill(container, signal),
        )
        self.swarm: dict[str, Any] = {"LocalNodeState": "active", "ControlAvailable": True}
        client: Any = SimpleNamespace(
            api=api, ping=lambda: True, info=lambda: {"Swarm": {**self.swarm, "NodeID": "id of one"}}
        )
        self.engine = Engine(client, "unix:///m.sock", "26.1", "2.26", 2)
        monkeypatch.setattr(module, "remove_stack", lambda engine, name: self._remove(name))
        monkeypatch.setattr(module, "_deploy", self._deploy)
        for task in (("node", 1, "one"), ("node", 2, "two"), ("coordinator", 1, "one")):
            self.add(*task)

    def _deploy(self, command: Sequence[str], text: str) -> str | None:
        self.given = text
        if isinstance(self.refusal, BaseException):
            raise self.refusal
        return self.refusal

    def _kill(self, container: str, signal: str) -> None:
        self.killed.append((container, signal))
        for task in self.tasks:
            task["Status"] = {"State": "complete", "ContainerStatus": {"ExitCode": 0}}

    def _remove(self, name: str) -> None:
        self.removed.append(name)

    def add(self, service: str, slot: int, where: str) -> None:
        status = {"State": "running", "ContainerStatus": {"ContainerID": f"c-{service}-{slot}"}}
        name = f"{service}-{slot}"
        self.tasks.append(
            {
                "ID": name,
                "ServiceID": f"s-{service}",
                "Slot": slot,
                "NodeID": f"id of {where}",
                "Status": status,
            }
        )

    def set(self, name: str, state: str, code: int = 0, error: str = "") -> None:
        (task,) = [task for task in self.tasks if task["ID"] == name]
        task["Status"] = {"State": state, "Err": error, "ContainerStatus": {"ExitCode": code}}

    def stack(self) -> Stack:
        return Stack(self.engine, "run-1", "ddp", DEPLOY, "the file")


@pytest.fixture
def swarm(monkeypatch: pytest.MonkeyPatch) -> Swarm:
    return Swarm(monkeypatch)


def test_deploying_replaces_what_an_earlier_attempt_left(swarm: Swarm) -> None:
    stack = swarm.stack()
    assert (swarm.removed, swarm.given) == (["run-1"], "the file")
    assert not stack.starting
    assert stack.start_error is None


def test_containers_are_tasks_by_service_and_slot(swarm: Swarm) -> None:
    swarm.set("node-2", "failed", 137)
    stack = swarm.stack()
    found = {each.identifier: (each.service, each.ordinal, each.ended) for each in stack.containers()}
    assert found == {
        "coordinator-1": ("coordinator", 1, False),
        "node-1": ("node", 1, False),
        "node-2": ("node", 2, True),
    }
    assert [stack.exit_code(each) for each in stack.containers() if each.ended] == [-9]


@pytest.mark.parametrize("state", ["new", "pending", "preparing", "starting"])
def test_a_stack_starts_until_every_task_runs(swarm: Swarm, state: str) -> None:
    swarm.set("node-2", state)
    stack = swarm.stack()
    assert stack.starting
    assert [each.identifier for each in stack.containers()] == ["coordinator-1", "node-1"]
    swarm.set("node-2", "running")
    assert not stack.starting


def test_a_failed_task_without_an_exit_code_has_failed(swarm: Swarm) -> None:
    swarm.set("node-1", "failed")
    stack = swarm.stack()
    assert [stack.exit_code(each) for each in stack.containers() if each.ended] == [1]


def test_a_refused_stack_says_why(swarm: Swarm) -> None:
    swarm.refusal = "services.node.x is not allowed"
    swarm.tasks = []
    stack = swarm.stack()
    assert not stack.starting
    assert stack.start_error == "services.node.x is not allowed"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("cat", None),
        ("cat >&2; exit 1", "the file"),
        ("exit 3", "exit code 3"),
        ("exec sleep 5", "has not ended"),
    ],
)
def test_deploying_says_what_the_command_says(
    monkeypatch: pytest.MonkeyPatch, command: str, reason: str | None
) -> None:
    monkeypatch.setattr(module, "DEPLOY_S", 1.0)
    refusal = module._deploy(["sh", "-c", command], "the file")
    assert refusal is None if reason is None else reason in str(refusal)


def test_an_interrupt_while_deploying_leaves_no_stack(swarm: Swarm) -> None:
    swarm.refusal = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        swarm.stack()
    assert swarm.removed == ["run-1", "run-1"]


def test_a_stack_that_others_have_removed(swarm: Swarm) -> None:
    stack = swarm.stack()
    assert stack.lost() is None
    swarm.tasks = []
    assert "removed" in str(stack.lost())


def test_a_task_that_ended_before_its_machine_was_lost(swarm: Swarm) -> None:
    swarm.set("node-2", "complete")
    swarm.nodes[1] = machine("two", "down")
    assert swarm.stack().lost() is None


def test_a_lost_machine_is_named_with_its_node(swarm: Swarm) -> None:
    stack = swarm.stack()
    assert stack.lost() is None
    swarm.nodes[1] = machine("two", "down")
    assert "two" in str(stack.lost())
    assert "node 1" in str(stack.lost())
    swarm.nodes = [swarm.nodes[0]]  # it has left the swarm
    assert "node 1" in str(stack.lost())


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("No such image: sha256:12", "swarm/load-image"),
        ("invalid mount: bind source path does not exist: /data", "files of the dataset"),
        ("no space left on device", "no space left"),
    ],
)
def test_a_machine_that_refuses_a_task_is_named(swarm: Swarm, error: str, hint: str) -> None:
    swarm.set("node-2", "rejected", error=error)
    lost = str(swarm.stack().lost())
    assert all(part in lost for part in ("node 1", "two", error, hint)), lost


def test_a_task_without_a_machine_is_an_error_after_a_while(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm.set("node-2", "pending", error="no suitable node")
    del swarm.tasks[1]["NodeID"]
    stack = swarm.stack()
    assert stack.lost() is None
    monkeypatch.setattr(module, "PLACE_S", -1.0)
    assert "no suitable node" in str(stack.lost())


def test_terminating_lets_the_coordinator_end_the_run(swarm: Swarm) -> None:
    swarm.stack().terminate()
    assert swarm.killed == [("c-coordinator-1", "SIGTERM")]


def test_removal_waits_for_machines_that_answer(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = swarm.stack()
    stack.containers()
    waits = iter([None, None])

    def sleep(seconds: float) -> None:
        if next(waits, "over") == "over":
            for name in ("node-1", "coordinator-1"):
                swarm.set(name, "shutdown")

    monkeypatch.setattr(module.time, "sleep", sleep)
    swarm.nodes[1] = machine("two", "down")  # its task still counts as running
    stack.remove()
    assert swarm.removed == ["run-1", "run-1"]
    assert [task["Status"]["State"] for task in swarm.tasks] == ["shutdown", "running", "shutdown"]


def test_a_log_that_does_not_arrive_says_so(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> Any:
        assert command[-3:] == ["logs", "--raw", "node-1"]
        raise subprocess.TimeoutExpired(command, options["timeout"], output=b"the beginning")

    monkeypatch.setattr(module.subprocess, "run", run)
    stack = swarm.stack()
    (node,) = [each for each in stack.containers() if each.identifier == "node-1"]
    log = b"".join(stack.log(node))
    assert log.startswith(b"the beginning")
    assert b"did not deliver" in log


def test_a_run_on_a_swarm_fails_with_the_machine_that_was_lost(swarm: Swarm, tmp_path: Path) -> None:
    spec = RunSpec.model_validate({**FIELDS["ddp"], "nodes": 2})
    run = OneRunContainers(swarm.stack()).run(LaunchPlan(spec, RunPaths(tmp_path), tmp_path))
    assert run.wait(0.0).error is None
    swarm.nodes[1] = machine("two", "down")
    assert "two" in str(run.wait(0.0).error)


# Machines


def test_engines_on_one_computer_share_its_cores(swarm: Swarm) -> None:
    assert total_cores(machines(swarm.engine)) == 6
    swarm.nodes = [machine("one", **{HOST: "pc"}), machine("two", **{HOST: "pc"})]
    assert total_cores(machines(swarm.engine)) == 2


@pytest.mark.parametrize(
    ("constraints", "names"),
    [
        ([], ["four", "one"]),
        (["node.labels.rack==2"], ["four"]),
        (["node.labels.rack != 2"], ["one"]),
        (["node.hostname==ONE", "node.role==worker"], ["one"]),  # Swarm ignores case
        (["engine.labels.gpu!=yes"], ["four", "one"]),
        (["engine.labels.gpu==yes"], []),
        (["node.id==id of four"], ["four"]),
    ],
)
def test_constraints_choose_machines_as_swarm_does(
    swarm: Swarm, constraints: list[str], names: list[str]
) -> None:
    swarm.nodes = [machine("one"), machine("four", rack="2")]
    assert [each.name for each in machines(swarm.engine) if each.satisfies(constraints)] == names


def test_a_machine_that_has_not_joined_yet_is_not_usable(swarm: Swarm) -> None:
    joining = {key: value for key, value in machine("one").items() if key != "Description"}
    swarm.nodes = [joining, machine("two")]
    assert [each.name for each in machines(swarm.engine) if each.usable] == ["two"]


def test_only_a_manager_can_run_stacks(swarm: Swarm) -> None:
    assert manager_trouble(swarm.engine) is None
    swarm.swarm = {
        "LocalNodeState": "active",
        "ControlAvailable": False,
        "RemoteManagers": [{"Addr": "a:1"}],
    }
    assert "a:1" in str(manager_trouble(swarm.engine))
    swarm.swarm = {"LocalNodeState": "inactive", "ControlAvailable": False}
    assert "docker swarm init" in str(manager_trouble(swarm.engine))
