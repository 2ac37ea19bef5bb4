"""Results directories side by side: what they have in common, what is claimed, and what fails a check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.commands.compare import Comparing, check_page
from orchestrator.errors import InputError
from orchestrator.report.directory_comparison.limits import Limits
from orchestrator.report.directory_comparison.pages import lines_of, markdown, page
from orchestrator.results.records import RunResult
from tests.unit.report_support import a_run, around, repeated, write_page

SERIAL = repeated("serial", around(8.0, 0.05))
EVIL = "<script>alert(1)</script>|`"


def shared(times: Sequence[float], accuracy: float = 0.9, **fields: object) -> list[RunResult]:
    accuracies = around(accuracy, 0.001, len(times))
    return [
        a_run("all_reduce", nodes=2, seed=seed, train_s=one, accuracy=other, **fields)  # type: ignore[arg-type]
        for seed, (one, other) in enumerate(zip(times, accuracies, strict=True))
    ]


def own(attribute: str, facts: dict[str, object], **parameters: object) -> dict[str, object]:
    """A user's component of mine.py, of which this is known."""
    facts = {"code": "same", "folder": "there", "module": "mine.py", "attribute": attribute, **facts}
    return {"name": f"./somewhere/mine.py:{attribute}", **parameters, "imported": facts}


def net(code: str, **parameters: object) -> dict[str, object]:
    """A user's model whose code has this digest."""
    return own("Net", {"code": code, "blocks": ["model"]}, **parameters)


def points(data: str) -> dict[str, object]:
    """A user's dataset whose samples have this digest."""
    sizes = {"train_samples": 600, "test_samples": 100, "shape": [4], "input_type": "float32"}
    return own("points", {**sizes, "class_count": 10, "data": data})


def comparing(folder: Path, *directories: Sequence[RunResult]) -> Comparing:
    paths = [folder / f"results-{number}" for number in range(len(directories))]
    for path, results in zip(paths, directories, strict=True):
        write_page(path, *results)
    return Comparing.of(paths)


def effects(found: Comparing) -> dict[str, tuple[str, str]]:
    """By configuration, what is shown of time and accuracy in the last directory."""
    lines = lines_of(found.differences, found.matches.directories[-1])
    return {line.name.split(" ")[0].rstrip(","): (line.time.effect, line.accuracy.effect) for line in lines}


@pytest.mark.slow
def test_runs_are_matched_by_configuration_and_compared_with_intervals(tmp_path: Path) -> None:
    found = comparing(
        tmp_path,
        [*SERIAL, *shared(around(4.0, 0.02))],
        [*SERIAL, *shared(around(5.0, 0.02), accuracy=0.8)],
    )
    assert effects(found) == {"serial": ("", ""), "all_reduce": ("worse", "worse")}
    difference = found.differences[-1]
    assert difference.time is not None
    assert difference.time.values == (pytest.approx(5.0, rel=0.01), pytest.approx(4.0, rel=0.01))
    assert difference.time.interval is not None
    low, high = difference.time.interval
    assert low < 1.25 < high


@pytest.mark.slow
def test_three_directories_are_each_compared_with_the_first(tmp_path: Path) -> None:
    first, same, slow = (shared(around(seconds, 0.02)) for seconds in (4.0, 4.0, 6.0))
    found = comparing(tmp_path, first, same, slow)
    verdicts = [each.time.verdict for each in found.differences if each.time]
    assert verdicts == ["equal", "more"]
    # All times are corrected together, whichever directory they are from.
    assert {each.time.together for each in found.differences if each.time} == {0, 1}
    assert len({each.match.directory for each in found.differences}) == 2


@pytest.mark.slow
def test_what_only_one_directory_has_is_named(tmp_path: Path) -> None:
    other = repeated("ddp", around(3.0), nodes=2)
    found = comparing(tmp_path, [*SERIAL, *shared(around(4.0))], [*SERIAL, *other])
    assert [*effects(found)] == ["serial"]
    first, second = found.matches.directories
    assert [name.split(" ")[0] for name in found.matches.alone[first]] == ["all_reduce"]
    assert [name.split(" ")[0] for name in found.matches.alone[second]] == ["ddp"]
    assert sum("only in" in line for line in found.remarks()) == 2


@pytest.mark.slow
def test_different_machines_are_named(tmp_path: Path) -> None:
    runs = shared(around(4.0))
    write_page(tmp_path / "a", *runs, environment={"cpu": "one", "cores": 2})
    write_page(tmp_path / "b", *runs, environment={"cpu": "other", "cores": 2})
    found = Comparing.of([tmp_path / "a", tmp_path / "b"])
    assert found.matches.environments == {"cpu": ("one", "other")}
    assert any("other" in line for line in found.remarks())


@pytest.mark.slow
def test_own_components_match_by_name_and_the_difference_of_their_code_is_named(tmp_path: Path) -> None:
    found = comparing(
        tmp_path,
        shared(around(4.0, 0.02), model=net("old0")),
        shared(around(5.0, 0.02), model=net("new1")),
        shared(around(4.0, 0.02), model=net("old0")),
    )
    times = [each.time.verdict for each in found.differences if each.time]
    assert times == ["more", "equal"]
    assert found.matches.environments == {"code of model mine.py:Net": ("old0", "new1", "old0")}
    assert not found.matches.alone
    texts = [page(found.matches, found.differences), markdown(found.matches, found.differences)]
    for text in (*texts, *found.remarks()):
        assert "model mine.py:Net" in text
        assert "old0" in text
        assert "new1" in text


def test_samples_of_an_own_dataset_that_differ_are_named(tmp_path: Path) -> None:
    found = comparing(
        tmp_path, *(shared(around(4.0), model="mlp", dataset=points(data)) for data in ("one", "two"))
    )
    assert found.matches.environments == {"samples of dataset mine.py:points": ("one", "two")}


def test_other_parameters_of_an_own_component_are_another_configuration(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no finished configuration in common"):
        comparing(
            tmp_path,
            shared(around(4.0), model=net("old0", width=8)),
            shared(around(4.0), model=net("new1", width=16)),
        )


@pytest.mark.slow
def test_two_versions_of_a_component_in_one_directory_match_by_their_code(tmp_path: Path) -> None:
    both = [*shared(around(4.0), model=net("old0")), *shared(around(5.0), model=net("new1"))]
    found = comparing(tmp_path, both, shared(around(5.0), model=net("new1")))
    (match,) = found.matches.found
    assert {row.canonical["model"]["imported"]["code"] for row in match.reference.rows} == {"new1"}
    assert len(found.matches.alone[found.matches.directories[0]]) == 1
    assert found.matches.environments == {"code of model mine.py:Net": ("new1, old0", "new1")}
    with pytest.raises(InputError, match=r"results-0 has 2 versions of the code of model mine\.py:Net"):
        comparing(tmp_path / "other", both, shared(around(5.0), model=net("else")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "seconds", "accuracy", "broken"),
    [
        ("slower=10%", 5.0, 0.9, 1),
        ("slower=30%", 5.0, 0.9, 0),
        ("accuracy=1pt", 4.0, 0.8, 1),
        ("accuracy=20pt", 4.0, 0.8, 0),
        ("slower=10%,accuracy=1pt", 5.0, 0.8, 2),
        ("slower=0%", 3.0, 0.9, 0),
    ],
)
def test_limits(tmp_path: Path, limits: str, seconds: float, accuracy: float, broken: int) -> None:
    found = comparing(tmp_path, shared(around(4.0, 0.02)), shared(around(seconds, 0.02), accuracy))
    assert len(found.broken(Limits.parse(limits))) == broken


def test_an_undecided_loss_does_not_break_a_limit(tmp_path: Path) -> None:
    found = comparing(tmp_path, shared(around(4.0, 1.0)), shared(around(4.6, 1.0)[::-1]))
    assert found.broken(Limits.parse("slower=1%")) == []


def test_a_configuration_that_no_longer_finishes_breaks_every_limit(tmp_path: Path) -> None:
    failed = shared(around(4.0), status="failed", cause="killed")
    found = comparing(tmp_path, [*SERIAL, *shared(around(4.0))], [*SERIAL, *failed])
    assert f"  no run finished in {tmp_path / 'results-1'}" in map(str, found.lines())
    assert [line.rpartition(": ")[2] for line in found.broken(Limits.parse("slower=10%"))] == [
        "no run finished"
    ]


def test_a_configuration_that_is_missing_breaks_every_limit(tmp_path: Path) -> None:
    found = comparing(tmp_path, [*SERIAL, *shared(around(4.0))], SERIAL)
    (line,) = found.broken(Limits.parse("slower=10%,accuracy=1pt"))
    assert line.startswith(f"{tmp_path}/results-1: all_reduce")


def test_limits_need_enough_seeds(tmp_path: Path) -> None:
    found = comparing(tmp_path, shared([4.0, 4.1]), shared([8.0, 8.1]))
    with pytest.raises(InputError, match="5 seeds"):
        found.broken(Limits.parse("slower=10%"))


@pytest.mark.parametrize(
    "text", ["", "slower", "slower=10", "slower=-1%", "slower=1%,slower=2%", "fast=1%"]
)
def test_bad_limits_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--fail-on"):
        Limits.parse(text)


@pytest.mark.slow
def test_pages_escape_what_comes_from_files(tmp_path: Path) -> None:
    runs = shared(around(4.0))
    write_page(tmp_path / "a", *runs, environment={"cpu": EVIL})
    write_page(tmp_path / "b", *runs, environment={"cpu": "other"})
    found = Comparing.of([tmp_path / "a", tmp_path / "b"])
    shown = page(found.matches, found.differences)
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    text = markdown(found.matches, found.differences)
    assert EVIL not in text
    assert text.count("all_reduce") == 1


@pytest.mark.slow
def test_the_command_writes_pages_and_fails_above_a_limit(tmp_path: Path) -> None:
    names = [str(tmp_path / f"results-{number}") for number in range(2)]
    comparing(tmp_path, shared(around(4.0, 0.02)), shared(around(6.0, 0.02)))
    files = [tmp_path / "c.html", tmp_path / "c.md"]
    written = [option for file in files for option in ("--out", str(file))]
    done = CliRunner().invoke(app, ["compare", *names, *written, "--fail-on", "slower=10%"])
    assert done.exit_code == 1
    assert "--fail-on: " in done.output
    assert all(file.stat().st_size for file in files)
    assert CliRunner().invoke(app, ["compare", *names, "--fail-on", "slower=90%"]).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["results-0"], "at least two"),
        (["results-0", "results-0"], "named twice"),
        (["results-0", "none"], "no sweep.json"),
        (["results-0", "results-1"], "no finished configuration in common"),
    ],
)
def test_bad_directories_are_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    write_page(tmp_path / "results-0", *shared(around(4.0)))
    write_page(tmp_path / "results-1", *repeated("ddp", around(3.0), nodes=2))
    with pytest.raises(InputError, match=message):
        Comparing.of([tmp_path / name for name in arguments])


def test_a_page_needs_a_known_ending(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.html or \.md"):
        check_page(tmp_path / "page.pdf")


def virtual(results: Sequence[RunResult]) -> list[RunResult]:
    """The results as those of virtual nodes."""
    return [
        each.model_copy(
            update={
                "runtime": "virtual",
                "runtime_info": replace(each.runtime_info, simulates_time=True),
            }
        )
        for each in results
    ]


def test_simulated_times_are_not_compared_with_wall_times(tmp_path: Path) -> None:
    real = [*SERIAL, *shared(around(4.0, 0.02))]
    found = comparing(tmp_path, real, virtual([*SERIAL, *shared(around(1.0, 0.02))]))
    assert all(difference.time is None for difference in found.differences)
    assert effects(found)["all_reduce"][0] == ""
