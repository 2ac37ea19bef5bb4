"""Labs: their fields in a sweep file, the shipped labs, and the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator import cli
from orchestrator.commands import labs
from orchestrator.commands.sweep import SelectedRuntime
from orchestrator.errors import InputError
from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.shipped import IMPORT_ROOT
from orchestrator.sweeps.expand import matches
from orchestrator.sweeps.load import Sweep, load_sweep

FILE = """
name: mine
lab:
  title: About averaging
  source: a lab sheet
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yml"
    path.write_text(FILE)
    return path


def reported(sweep: Sweep) -> list[tuple[str, int, int]]:
    return [(run.name_of("strategy"), run.nodes, run.epochs) for run in sweep.runs]


def test_named_blocks_have_runs_and_published_figures(path: Path) -> None:
    sweep = load_sweep(path)
    assert [(block.name, len(block.keys), len(block.published)) for block in sweep.blocks] == [
        ("alone", 1, 0),
        ("as published", 3, 2),
        ("fixed", 2, 0),
    ]
    assert sweep.blocks[1].keys == [
        run.key for run in sweep.runs if matches(run, {"strategy.init": "independent"})
    ]


def test_quick_form_overrides_values_and_is_recorded(path: Path) -> None:
    sweep = load_sweep(path, quick=True)
    assert reported(sweep) == [("serial", 1, 1), ("one_shot", 2, 1), ("one_shot", 2, 2)]
    assert sweep.overrides == ["--quick"]
    assert sweep.blocks[1].published == load_sweep(path).blocks[1].published


def test_options_override_the_quick_form(path: Path) -> None:
    sweep = load_sweep(path, ["epochs=3"], "3", quick=True)
    assert reported(sweep) == [("serial", 1, 3), ("one_shot", 3, 3), ("one_shot", 3, 6)]


LONGER = "  - {name: longer, base: {strategy: one_shot, nodes: 5, epochs: 6}}\n"  # 3/2 of the base's epochs


def epochs_of(path: Path, *sets: str) -> set[tuple[int, int]]:
    return {(run.nodes, run.epochs) for run in load_sweep(path, sets).runs if run.nodes in (1, 5)}


def test_epochs_option_keeps_the_multiple_of_a_block(path: Path) -> None:
    path.write_text(FILE + LONGER)
    assert epochs_of(path) == {(1, 4), (5, 6)}
    assert epochs_of(path, "epochs=2") == {(1, 2), (5, 3)}
    assert epochs_of(path, "epochs=2", "epochs=8") == {(1, 8), (5, 12)}


def test_epochs_option_without_a_whole_multiple_is_an_error(path: Path) -> None:
    path.write_text(FILE + LONGER)
    with pytest.raises(InputError) as caught:
        load_sweep(path, ["epochs=3"])
    assert str(caught.value).startswith("--set epochs=3: ")
    assert "blocks[3]" in str(caught.value)
    assert "allowed: multiples of 2" in str(caught.value)


def test_invalid_epochs_are_an_error_of_the_option(path: Path) -> None:
    path.write_text(FILE + LONGER)
    with pytest.raises(InputError, match=r"^--set epochs=0: 0 is not allowed"):
        load_sweep(path, ["epochs=0"])


def test_epochs_option_keeps_the_ablation_of_parallel_sgd() -> None:
    sweep = load_sweep(labs.LABS / "parallel_sgd.yml", ["epochs=3"])
    by_block = {block.name: set(block.keys) for block in sweep.blocks}
    longer = {
        run.nodes: run.epochs for run in sweep.runs if run.key in by_block["as many updates as one node"]
    }
    assert longer == {nodes: 3 * nodes for nodes in (2, 3, 4, 5)}
    assert not by_block["as many updates as one node"] & by_block["common initial weights"]


def test_value_of_the_file_that_an_option_makes_invalid_is_reported_with_the_option() -> None:
    with pytest.raises(InputError) as caught:
        load_sweep(labs.LABS / "torchrun_ddp.yml", ["epochs=1"])
    assert "torchrun_ddp.yml: base.checkpoint_epochs: " in str(caught.value)
    assert "--set epochs=1" in str(caught.value)


def test_differences_have_the_values_of_the_runs(path: Path) -> None:
    path.write_text(
        FILE.replace("  source: a lab sheet", "  source: a lab sheet\n  differs: ['{epochs} of {dataset}']")
    )
    sweep = load_sweep(path, ["epochs=1", "dataset=digits"])
    assert sweep.spec.lab
    assert sweep.spec.lab.differences(sweep.runs) == ["1 of digits"]


@pytest.mark.parametrize("name", labs.names())
def test_listing_and_page_of_a_lab_name_what_differs(name: str, tmp_path: Path) -> None:
    sweep = load_sweep(labs.LABS / f"{name}.yml")
    assert sweep.spec.lab
    page = (IMPORT_ROOT / "docs" / "labs" / f"{name}.md").read_text()
    listed = " ".join(" ".join(labs.listing(tmp_path, 100)).split())
    for fact in sweep.spec.lab.differences(sweep.runs) or [labs.NONE_KNOWN]:
        assert f"- {fact}\n" in page
        assert fact in listed


@pytest.mark.parametrize(
    ("was", "wrong", "message"),
    [
        ("{nodes: 3}, time_s", "{nodes: 4}, time_s", '[1].runs: no run matches {"nodes": 4}'),
        ("{nodes: 3}, time_s", "{node: 3}, time_s", "blocks[1].published[1].runs: unknown key 'node'"),
        ("accuracy: 0.2}", "accuracy: 20}", "blocks[1].published[1].accuracy: 20 is not allowed"),
        ("accuracy: 0.2}", "acc: 0.2}", "published[1].acc: unknown key; allowed: runs, time_s, accuracy"),
        ("time_s: 30, accuracy: 0.9", "", "published[0]: "),
        ("{block: fixed", "{block: fix", "steps[1].block: 'fix' is not the name of a block; allowed: "),
        ("{block: fixed, fixes: \"{nodes} different beginnings\"}", "{block: fixed}", "ablations[0]: "),
        ("nodes: [2]\n      steps", "nodes: [4]\n      steps", "steps[0].runs: no run matches"),
        ("name: as published\n    base", "base", "blocks[1]: has published figures and needs a name"),
        ("{nodes: 3}, time_s", "{strategy: one_shot}, time_s", "differ in more than the seed"),
        ("time_s: 30", "time_s: .inf", "published[0].time_s: inf is not allowed"),
        ("a lab sheet", "a lab sheet\n  differs: ['{epoch} here']", "lab.differs: "),
        ("accuracy: 0.2}", "accuracy: 0.2, derived: [coverage]}", "published[1]: "),
        ("title: About averaging", "subject: x", "lab.title: is missing"),
        ("title: About averaging", "titel: x", "lab.titel: unknown key (did you mean 'title'?)"),
    ],
)  # fmt: skip
def test_errors_name_the_key(path: Path, was: str, wrong: str, message: str) -> None:
    assert was in FILE
    path.write_text(FILE.replace(was, wrong))
    with pytest.raises(InputError) as caught:
        load_sweep(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("was", "wrong", "message"),
    [
        ("quick: {epochs: 1, nodes: [2]}", "quick: {epoch: 1}", "mine.yml: quick: unknown key 'epoch'"),
        ("quick: {epochs: 2}", "quick: {epoch: 2}", "blocks[2].quick: unknown key 'epoch'"),
        ("quick: {epochs: 2}", "quick: {epochs: 0}", "blocks[2].quick.epochs: 0 is not allowed"),
    ],
)
def test_errors_in_the_quick_form_name_the_key(path: Path, was: str, wrong: str, message: str) -> None:
    path.write_text(FILE.replace(was, wrong))
    with pytest.raises(InputError) as caught:
        load_sweep(path, quick=True)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("was", "wrong", "message"),
    [
        ("{nodes: 3}, time_s", "{node: 3}, time_s", "published[1].runs: unknown key 'node'"),
        ("{block: fixed", "{block: fix", "'fix' is not the name of a block"),
        ("name: as published\n    base", "base", "has published figures and needs a name"),
    ],
)
def test_options_do_not_hide_errors_in_the_file(path: Path, was: str, wrong: str, message: str) -> None:
    path.write_text(FILE.replace(was, wrong))
    with pytest.raises(InputError) as caught:
        load_sweep(path, ["lr=0.01"])
    assert message in str(caught.value)


def test_blocks_with_the_same_name_are_merged_and_may_be_omitted_from_the_quick_form(path: Path) -> None:
    more = "  - {name: fixed, base: {strategy: one_shot, nodes: 5, epochs: 9}, quick: null}\n"
    path.write_text(FILE + more)
    (fixed,) = [block for block in load_sweep(path).blocks if block.name == "fixed"]
    assert len(fixed.keys) == 3
    quick = load_sweep(path, quick=True)
    assert 5 not in {run.nodes for run in quick.runs}
    assert [len(block.keys) for block in quick.blocks if block.name == "fixed"] == [1]


def test_file_without_quick_values_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "s.yml"
    path.write_text("{name: s, blocks: [{base: {strategy: serial}}]}")
    with pytest.raises(InputError, match="has no `quick` values"):
        load_sweep(path, quick=True)


# Shipped labs


@pytest.mark.parametrize("name", labs.names())
def test_shipped_lab_has_figures_a_source_and_a_quick_form(name: str) -> None:
    path = labs.LABS / f"{name}.yml"
    sweep = load_sweep(path)
    assert sweep.spec.name == name
    assert sweep.spec.lab
    assert "# Source: " in path.read_text()
    assert any(run.strategy.trains for run in sweep.runs)
    quick = load_sweep(path, quick=True)
    trained = [sum(run.epochs * run.dataset.train_samples for run in each.runs) for each in (quick, sweep)]
    assert trained[0] < trained[1]


@pytest.mark.parametrize("name", labs.names())
def test_quick_form_needs_no_download(name: str, tmp_path: Path) -> None:
    assert not labs.absent(labs.load_lab(name, quick=True), tmp_path)


@pytest.mark.parametrize(
    ("asked", "everything", "message"),
    [
        (["mine", "yours"], False, "lab yours: unknown lab; known labs: mine"),
        ([], False, "lab: a name or --all is required; known labs: mine"),
        (["mine"], True, "lab mine --all: use either names or --all"),
    ],
)
def test_invalid_selection_of_labs_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str], everything: bool, message: str
) -> None:
    monkeypatch.setattr(labs, "LABS", path.parent)
    with pytest.raises(InputError) as caught:
        labs.names_wanted(asked, everything)
    assert str(caught.value) == message


def test_listing_describes_each_lab_within_the_width(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labs, "LABS", path.parent)
    monkeypatch.chdir(tmp_path)
    lines = list(labs.listing(Path("data"), 60))
    assert lines[:2] == ["mine", "    About averaging"]
    assert "    6 runs on mnist (will be downloaded to data/)." in lines
    assert max(map(len, lines[:-1])) <= 60


class Labs:
    """A directory of labs, and the command `lab` on them. ran: name and `strict` of each lab that ran."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[tuple[str, bool]] = []
        self.refusals: dict[str, InputError] = {}
        self.code = 0
        self.directory = directory
        monkeypatch.setattr(labs, "LABS", directory)
        monkeypatch.setattr(cli, "run_sweep", self._run)

    def add(self, name: str, text: str = "") -> None:
        text = text or "blocks: [{base: {strategy: serial}}]"
        (self.directory / f"{name}.yml").write_text(f"name: {name}\n{text}\n")

    def _run(self, loaded: Sweep, *options: Any) -> int:
        if error := self.refusals.get(loaded.spec.name):
            raise error
        self.ran.append((loaded.spec.name, options[-1].strict))
        return self.code

    def run(self, *arguments: str) -> Any:
        out = ["--out", str(self.directory / "results")]
        return CliRunner().invoke(cli.app, ["lab", "--runtime", "local", *out, *arguments])


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Labs:
    found = Labs(tmp_path, monkeypatch)
    for name in ("a", "b", "c"):
        found.add(name)
    return found


def test_all_labs_run_although_one_is_refused_when_it_runs(three: Labs) -> None:
    three.refusals["b"] = InputError("data/b.gz: is damaged")
    done = three.run("--all")
    assert [name for name, _ in three.ran] == ["a", "c"]
    assert done.exit_code == 1
    assert done.stderr.splitlines() == ["error: lab b: data/b.gz: is damaged"]


def test_all_labs_run_although_the_file_of_one_is_not_valid(three: Labs, tmp_path: Path) -> None:
    three.add("a", "blocks: [{base: {strategy: telepathy}}]")
    three.refusals["c"] = InputError("refused")
    done = three.run("--all")
    assert [name for name, _ in three.ran] == ["b"]
    assert done.exit_code == 1
    first, second = done.stderr.splitlines()
    assert first.startswith(f"error: lab a: {tmp_path}/a.yml: blocks[0].base.strategy")
    assert second == "error: lab c: refused"


def test_refused_lab_that_was_named_ends_the_command(three: Labs) -> None:
    three.refusals["a"] = InputError("refused")
    done = three.run("a", "b")
    assert (three.ran, done.exception) == ([], three.refusals["a"])


def test_fail_fast_stops_at_the_first_refused_lab(three: Labs) -> None:
    three.refusals["b"] = InputError("refused")
    done = three.run("--all", "--fail-fast")
    assert [name for name, _ in three.ran] == ["a"]
    assert (done.exit_code, done.stderr.splitlines()) == (1, ["error: lab b: refused"])


def test_each_lab_runs_on_the_runtime_that_its_file_names(
    three: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    three.add("b", "runtime: virtual\nblocks: [{base: {strategy: serial}}]")
    used: list[str] = []

    def run(loaded: Sweep, paths: Any, selected: SelectedRuntime, *_: Any) -> int:
        used.append(selected.name)
        return 0

    monkeypatch.setattr(cli, "run_sweep", run)
    monkeypatch.setattr(DockerRuntime, "unavailable_reason", lambda self: "no engine answers")
    runner = CliRunner(env={"SHARDYARD_RUNTIME": None})
    out = ["--out", str(three.directory / "results")]
    assert runner.invoke(cli.app, ["lab", "a", "b", *out]).exit_code == 0
    assert runner.invoke(cli.app, ["lab", "b", "--runtime", "local", *out]).exit_code == 0
    assert used == ["local", "virtual", "local"]


@pytest.mark.parametrize("strict", [False, True])
def test_labs_can_be_strict(three: Labs, strict: bool) -> None:
    three.code = 1
    assert three.run("a", "c", *(["--strict"] if strict else [])).exit_code == 1
    assert three.ran == [("a", strict), ("c", strict)]
