"""The container in which users' components are tried."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from orchestrator.runtimes.docker.inspection import inspection_sandbox
from orchestrator.sweeps.imports import Inspection


class Engine:
    """An engine that records what it is asked for, and starts nothing."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.client = SimpleNamespace(api=None, containers=self)

    def create(self, image: str, **settings: Any) -> None:
        self.asked = {"image": image, **settings}
        raise OSError


def asked(inspection: Inspection) -> dict[str, Any]:
    engine = Engine()
    sandbox = inspection_sandbox(cast("Any", engine), "sha256:1", inspection)
    try:
        sandbox.open()
    except Exception:
        return engine.asked
    raise AssertionError


def test_it_has_a_nodes_limits_and_sees_only_what_it_needs(tmp_path: Path) -> None:
    one, two, code, data = (tmp_path / name for name in ("one", "two", "code", "data"))
    data.mkdir()
    found = asked(Inspection([one, two], code, data, 700))
    assert (found["image"], found["entrypoint"]) == (
        "sha256:1",
        ["python", "-m", "trainer.component_trials"],
    )
    assert (found["mem_limit"], found["memswap_limit"], found["network_mode"]) == ("700m", "700m", "none")
    mounts = [(mount["Source"], mount["Target"], mount["ReadOnly"]) for mount in found["mounts"]]
    assert mounts == [(str(path), str(path), True) for path in (one, two, code, data)]


def test_a_data_directory_that_is_not_there_is_not_mounted(tmp_path: Path) -> None:
    found = asked(Inspection([tmp_path], tmp_path, tmp_path / "gone", 512))
    assert str(tmp_path / "gone") not in [mount["Source"] for mount in found["mounts"]]
