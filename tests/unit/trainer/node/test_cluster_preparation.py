"""Mistakes in what a node needs before its ranks start: files that it does not see, missing data."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.cluster_support import assigned
from trainer.node.preparation import Refusal, prepared
from trainer.node.rank_assignment import RankAssignment
from trainer.node.site import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """One whose node sees the run's file, and has no data."""
    file = tmp_path / "run" / "spec.json"
    file.parent.mkdir()
    file.write_bytes(b"{}")
    return Site(data=str(tmp_path / "data"), seen={str(file): sha256(b"{}").hexdigest()})


def on(site: Site, **fields: Any) -> RankAssignment:
    return replace(assigned("ddp", 1, dataset="mnist", model="lenet", **fields), site=site)


def test_a_node_that_does_not_see_the_files_of_the_run_is_named(site: Site) -> None:
    """Or sees others: the directory has the same name on each node, and is not shared."""
    (path,) = map(Path, site.seen)
    for spoil in (lambda: path.write_bytes(b"other"), path.unlink):
        spoil()
        with pytest.raises(Refusal, match=f"does not see {path.parent}"):
            prepared(on(site))


def test_missing_data_are_downloaded_where_they_may_be(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    done = SimpleNamespace(returncode=0, stderr="")

    def run(argv: list[str], **_: Any) -> Any:
        asked.append(argv)
        return done

    monkeypatch.setattr(subprocess, "run", run)
    for option, end in (("", ""), ("x.directory", "; x.directory lets it download")):
        with pytest.raises(Refusal, match=f"does not see the dataset in {site.data}{end}$"):
            prepared(on(site.model_copy(update={"downloads_option": option})))
    downloads = site.model_copy(update={"downloads": str(tmp_path / "own")})
    found = prepared(on(downloads))
    assert (found.site.data, found.site.code) == (downloads.downloads, site.code)
    assert asked[0][-2:] == [found.spec.model_dump_json(), downloads.downloads]
    done.returncode, done.stderr = 1, f"{'x' * 999}: no network"
    with pytest.raises(Refusal, match=r"has no data: x+: no network") as refused:
        prepared(on(downloads))
    assert len(str(refused.value)) < 500


def test_data_that_are_there_are_used(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)  # nothing is downloaded
    assignment = on(site.model_copy(update={"downloads": str(tmp_path / "own")}))
    for name in assignment.spec.dataset.files:
        (Path(site.data) / name).parent.mkdir(parents=True, exist_ok=True)
        (Path(site.data) / name).touch()
    assert prepared(assignment) == assignment
    elsewhere = on(Site(data="/none"))  # a container has what is mounted
    assert prepared(elsewhere) == elsewhere
