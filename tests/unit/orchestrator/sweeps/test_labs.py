"""Mistakes in labs: quick forms, multiples of epochs, published figures of other runs, which labs run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator import cli
from orchestrator.commands import labs
from orchestrator.errors import InputError
from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.sweeps.expand import matches
from orchestrator.sweeps.load import load_sweep

FILE = """
name: mine
lab:
  title: About averaging
  source: a lab sheet
  differs: ['{epochs} of {dataset}']
  ablations:
    - measure: accuracy
      nodes: [2]
      steps:
        - {block: as published}
        - {block: fixed, fixes: "{nodes} different beginnings"}
        - {block: alone, runs: {nodes: 1}, fixes: averaging}
base: {epochs: 4, dataset: mnist}
quick: {epochs: 1, nodes: [2]}
blocks:
  - name: alone
    base: {strategy: serial}
  - name: as published
    base: {strategy: {name: one_shot, init: independent}}
    axes: {nodes: [1, 2, 3]}
    published:
      - {runs: {nodes: 1}, time_s: 30, accuracy: 0.9}
      - {runs: {nodes: 3}, time_s: 10.5, accuracy: 0.2}
  - name: fixed
    base: {strategy: one_shot}
    axes: {nodes: [2, 3]}
    quick: {epochs: 2}
"""
LONGER = "  - {name: fixed, base: {strategy: one_shot, nodes: 5, epochs: 6}, quick: null}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yml"
    path.write_text(FILE + LONGER)
    return path


def test_named_blocks_have_runs_and_published_figures_and_those_of_one_name_are_merged(path: Path) -> None:
    sweep = load_sweep(path)
    named = [(block.name, len(block.keys), len(block.published)) for block in sweep.blocks]
    assert named == [("alone", 1, 0), ("as published", 3, 2), ("fixed", 3, 0)]
    assert sweep.blocks[1].keys == [
        run.key for run in sweep.runs if matches(run, {"strategy.init": "independent"})
    ]
    assert sweep.blocks[1].published == load_sweep(path, quick=True).blocks[1].published
    assert sweep.spec.lab
    changed = load_sweep(path, ["epochs=2", "dataset=digits"]).runs
    assert sweep.spec.lab.differences(changed) == ["2, 3 of digits"]


def test_quick_forms_and_options_keep_the_multiples_of_epochs(path: Path) -> None:
    for sets, nodes, quick, expected in (
        ([], None, True, [(1, 1), (2, 1), (2, 2)]),
        (["epochs=3"], "3", True, [(1, 3), (3, 3), (3, 6)]),
        ([], "2", False, [(1, 4), (2, 4), (2, 4), (5, 6)]),
        (["epochs=2"], "2", False, [(1, 2), (2, 2), (2, 2), (5, 3)]),  # of a block 3/2 of those of the base
        (["epochs=2", "epochs=8"], "2", False, [(1, 8), (2, 8), (2, 8), (5, 12)]),
    ):
        sweep = load_sweep(path, sets, nodes, quick)
        assert [(run.nodes, run.epochs) for run in sweep.runs] == expected
        assert ("--quick" in sweep.overrides) is quick
    for epochs, message in ((3, "blocks[3] has 3/2 times the base's epochs"), (0, "0 is not allowed")):
        with pytest.raises(InputError) as caught:
            load_sweep(path, [f"epochs={epochs}"])
        assert str(caught.value).startswith(f"--set epochs={epochs}: ")
        assert message in str(caught.value)


def test_errors_name_the_key(path: Path) -> None:
    for was, wrong, message in (
        ("{nodes: 3}, time_s", "{nodes: 4}, time_s", '[1].runs: no run matches {"nodes": 4}'),
        ("accuracy: 0.2}", "accuracy: 20}", "blocks[1].published[1].accuracy: 20 is not allowed"),
        ("accuracy: 0.2}", "acc: 0.2}", "published[1].acc: unknown key; allowed: runs, time_s, accuracy"),
        ("time_s: 30, accuracy: 0.9", "", "published[0]: "),
        ("{block: fixed, fixes: \"{nodes} different beginnings\"}", "{block: fixed}", "ablations[0]: "),
        ("nodes: [2]\n      steps", "nodes: [4]\n      steps", "steps[0].runs: no run matches"),
        ("{nodes: 3}, time_s", "{strategy: one_shot}, time_s", "differ in more than the seed"),
        ("{epochs} of", "{epoch} of", "lab.differs: "),
        ("accuracy: 0.2}", "accuracy: 0.2, derived: [coverage]}", "published[1]: "),
        ("title: About averaging", "titel: x", "lab.titel: unknown key (did you mean 'title'?)"),
        # Also with options, which may exclude what is selected.
        ("{nodes: 3}, time_s", "{node: 3}, time_s", "blocks[1].published[1].runs: unknown key 'node'"),
        ("{block: fixed", "{block: fix", "steps[1].block: 'fix' is not the name of a block; allowed: "),
        ("name: as published\n    base", "base", "blocks[1]: has published figures and needs a name"),
        ("quick: {epochs: 1, nodes: [2]}", "quick: {epoch: 1}", "mine.yml: quick: unknown key 'epoch'"),
        ("quick: {epochs: 2}", "quick: {epoch: 2}", "blocks[2].quick: unknown key 'epoch'"),
    ):  # fmt: skip
        assert was in FILE
        path.write_text(FILE.replace(was, wrong))
        by_option = any(part in message for part in ("'node'", "'fix'", "needs a name"))
        for options in ([], ["lr=0.01"]) if by_option else ([],):
            with pytest.raises(InputError) as caught:
                load_sweep(path, options, quick="quick" in was)
            assert message in str(caught.value)


def test_listing_describes_each_lab_within_the_width(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labs, "LABS", path.parent)
    monkeypatch.chdir(path.parent)
    lines = list(labs.listing(Path("data"), 60))
    assert lines[:3] == ["mine", "    About averaging", "    Source: a lab sheet."]
    assert lines[3] == "    Differs: 4, 6 of mnist."
    assert lines[4] == "    7 runs on mnist (will be downloaded to data/)."
    assert max(map(len, lines[:-1])) <= 60


LABS = {"a": "foo: 1", "b": "", "c": "", "d": "runtime: virtual"}
WRONG = "error: lab a: DIRECTORY/a.yml: foo: unknown key"
KNOWN = "known labs: a, b, c, d"


def test_labs_run_on_the_runtime_of_their_file_and_one_that_is_refused_stops_no_other_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(loaded: Any, paths: Any, selected: Any, *options: Any) -> int:
        if loaded.spec.name == "b":
            raise InputError("refused")
        found.append(f"{loaded.spec.name} {selected.name}{' strict' * options[-1].strict}")
        return int(options[-1].strict)

    for name, more in LABS.items():
        text = f"name: {name}\n{more}\nblocks: [{{base: {{strategy: serial}}}}]"
        (tmp_path / f"{name}.yml").write_text(text)
    monkeypatch.setattr(labs, "LABS", tmp_path)
    monkeypatch.setattr("orchestrator.commands.options.run_sweep", run)
    monkeypatch.setattr(DockerRuntime, "unavailable_reason", lambda self: "no engine answers")
    for arguments, code, ran, errors in (
        ("--all", 1, ["c local", "d virtual"], [WRONG, "error: lab b: refused"]),
        ("--all --fail-fast", 1, [], [WRONG]),
        ("c d", 0, ["c local", "d virtual"], []),
        ("d c --runtime local", 0, ["d local", "c local"], []),
        ("c d --strict", 1, ["c local strict", "d virtual strict"], []),
        # The command ends, because a lab that was named is refused, or for what was named.
        ("c b d", None, ["c local"], ["refused"]),
        ("c yours", None, [], [f"lab yours: unknown lab; {KNOWN}"]),
        ("", None, [], [f"lab: a name or --all is required; {KNOWN}"]),
        ("c --all", None, [], ["lab c --all: use either names or --all"]),
    ):
        found: list[str] = []
        command = ["lab", "--out", str(tmp_path / "results"), *arguments.split()]
        done = CliRunner(env={"SHARDYARD_RUNTIME": None}).invoke(cli.app, command)
        assert found == ran
        assert code in (done.exit_code, None)
        lines = done.stderr.splitlines() if code is not None else [str(done.exception)]
        starts = [error.replace("DIRECTORY", str(tmp_path)) for error in errors]
        assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts
