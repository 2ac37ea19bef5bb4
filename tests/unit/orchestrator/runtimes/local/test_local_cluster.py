"""The cluster of runtime `local`: a warm parent, of which nothing is left if it cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.local.runtime import LocalCluster
from trainer.spec.run_spec import RunSpec
from trainer.warm.process import ParentError


class Parent:
    """A warm parent that fails to start."""

    def __init__(self, error: BaseException | None = None, unhealthy: str | None = None) -> None:
        self.error, self.unhealthy, self.closed, self.is_running = error, unhealthy, False, True

    def ensure(self) -> None:
        if self.error:
            raise self.error

    def unhealthy_reason(self) -> str | None:
        return self.unhealthy

    def close(self) -> None:
        self.closed, self.is_running = True, False


def cluster(parent: Parent | None, **options: Any) -> LocalCluster:
    given: Any = parent
    return LocalCluster(given, **options)


def test_ctrl_c_while_the_parent_starts_ends_it() -> None:
    parent = Parent(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        cluster(parent)
    assert parent.closed


def test_parent_that_does_not_start_is_an_input_error() -> None:
    with pytest.raises(InputError, match="torch is missing; use --cold"):
        cluster(Parent(ParentError("torch is missing")))


def test_unhealthy_parent_takes_no_other_run_and_says_why() -> None:
    parent = Parent(unhealthy="their process grew")
    grown = cluster(parent)
    assert not grown.ready()
    assert grown.failure == "their process grew"
    grown.delete()
    assert parent.closed


def test_parent_that_ended_after_an_idle_time_is_no_failure() -> None:
    parent = Parent()
    idle = cluster(parent)
    assert idle.ready()
    parent.is_running = False
    assert not idle.ready()
    assert idle.failure is None


def test_refused_run_writes_nothing(tmp_path: Path) -> None:
    spec = RunSpec.model_validate({"strategy": "serial"})
    with pytest.raises(InputError, match="others could connect"):
        cluster(None, refusal=lambda spec: "others could connect").run(
            LaunchPlan(spec, RunPaths(tmp_path / "run"), tmp_path)
        )
    assert list(tmp_path.iterdir()) == []
