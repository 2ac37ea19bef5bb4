"""Mistakes in comparing results directories: which runs match, what is claimed, limits, escapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.commands.compare import check_page, compared, lines_of
from orchestrator.errors import InputError
from orchestrator.report.directory_comparison.differences import Directories
from orchestrator.report.directory_comparison.limits import Limits
from orchestrator.report.directory_comparison.pages import Change, page_of, remarks
from orchestrator.report.render import html, markdown
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, write_atomic
from tests.unit.report_support import a_record, a_run, around, repeated

SERIAL = repeated("serial", around(8.0, 0.05))
EVIL = "<script>alert(1)</script>|`"


def shared(times: Sequence[float], accuracy: float = 0.9, **fields: object) -> list[RunResult]:
    accuracies = around(accuracy, 0.001, len(times))
    return [
        a_run("all_reduce", nodes=2, seed=seed, train_s=one, accuracy=other, **fields)  # type: ignore[arg-type]
        for seed, (one, other) in enumerate(zip(times, accuracies, strict=True))
    ]


def net(code: str, **parameters: object) -> dict[str, object]:
    """A user's model of mine.py, whose code has this digest."""
    known = {"code": code, "folder": "there", "module": "mine.py", "attribute": "Net", "blocks": ["model"]}
    return {"name": "./somewhere/mine.py:Net", **parameters, "imported": known}


def comparing(folder: Path, *directories: Sequence[RunResult], cpus: Sequence[str] = ()) -> Directories:
    paths = [folder / f"results-{number}" for number in range(len(directories))]
    for at, (path, results) in enumerate(zip(paths, directories, strict=True)):
        environment = {"cpu": cpus[at] if cpus else "one", "cores": 2}
        record = a_record(results, environment=environment)
        write_atomic(SweepPaths(path).record, record.model_dump_json())
        for result in results:
            write_atomic(SweepPaths(path).run(result.key).result, result.model_dump_json())
    return compared(paths)


def effects(found: Directories, at: int = -1) -> dict[str, tuple[str, str]]:
    """By configuration, what is shown of time and accuracy in a directory."""
    return {
        each.name.split(" ")[0].rstrip(","): (Change.of(each.time).effect, Change.of(each.accuracy).effect)
        for each in found.differences
        if each.directory == found.names[at]
    }


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Directories:
    """A reference and three directories: one equal to it, one slower and less accurate, one faster."""
    others = (shared(around(4.0, 0.02)), shared(around(5.0, 0.02), 0.8), shared(around(3.0, 0.02)))
    runs = [[*SERIAL, *each] for each in (shared(around(4.0, 0.02)), *others)]
    return comparing(tmp_path_factory.mktemp("compared"), *runs)


def test_each_directory_is_compared_with_the_first_by_intervals(several: Directories) -> None:
    expected = [("", ""), ("worse", "worse"), ("better", "")]
    assert [effects(several, at) for at in (1, 2, 3)] == [
        {"serial": ("", ""), "all_reduce": each} for each in expected
    ]
    # Of each directory, a line, and three of each configuration.
    assert len([*lines_of(several)]) == 3 * (1 + 2 * 3)
    times = [each.time for each in several.differences if each.time]
    assert {each.together for each in times} == {0, 2}  # what is claimed of two directories
    (slower,) = [each for each in times if each.verdict == "more"]
    assert slower.values == (pytest.approx(5.0, rel=0.01), pytest.approx(4.0, rel=0.01))
    assert slower.interval is not None
    low, high = slower.interval
    assert low < 1.25 < high


def test_a_limit_is_broken_by_losses_that_are_claimed_and_above_it(several: Directories) -> None:
    for limits, broken in (
        ("slower=10%", 1),
        ("slower=22%", 1),  # of the time of the reference
        ("slower=30%", 0),
        ("accuracy=1pt", 1),
        ("accuracy=20pt", 0),
        ("slower=10%,accuracy=1pt", 2),
        ("slower=0%", 1),
    ):
        assert len(Limits.parse(limits).broken(several)) == broken, limits


def test_undecided_losses_break_no_limit_and_too_few_seeds_cannot_tell(tmp_path: Path) -> None:
    found = comparing(tmp_path / "a", shared(around(4.0, 1.0)), shared(around(4.6, 1.0)[::-1]))
    assert Limits.parse("slower=1%").broken(found) == []
    few = comparing(tmp_path / "b", shared([4.0, 4.1]), shared([8.0, 8.1]))
    with pytest.raises(InputError, match="5 seeds"):
        Limits.parse("slower=10%").broken(few)


def test_what_only_one_directory_has_is_named_and_what_does_not_finish_breaks_limits(
    tmp_path: Path,
) -> None:
    failed = shared(around(4.0), status="failed", cause="killed")
    alone = [repeated(name, around(3.0), nodes=2) for name in ("ddp", "gossip")]
    runs = [*SERIAL, *shared(around(4.0)), *alone[0]], [*SERIAL, *failed, *alone[1]]
    found = comparing(tmp_path, *runs)
    names = [found.alone[each][0].split(" ")[0] for each in found.names]
    assert names == ["ddp", "gossip"]
    assert sum("only in" in line for line in remarks(found)) == 2
    assert f"  no run finished in {tmp_path / 'results-1'}" in map(str, lines_of(found))
    broken = [line.split(": ") for line in Limits.parse("slower=10%,accuracy=1pt").broken(found)]
    assert [each[-1] for each in broken] == ["it has no run", "no run finished"]
    assert {each[0] for each in broken} == {str(tmp_path / "results-1")}


def test_machines_that_differ_are_named_and_escaped(tmp_path: Path) -> None:
    found = comparing(tmp_path, shared(around(4.0)), shared(around(4.0)), cpus=[EVIL, "other"])
    assert found.facts == {"cpu": (EVIL, "other")}
    assert any("other" in line for line in remarks(found))
    shown, text = (writer.render(page_of(found)) for writer in (html, markdown))
    assert ("<script" in shown, "&lt;script&gt;" in shown, EVIL in text) == (False, True, False)


def test_own_components_match_by_name_and_differences_of_their_code_are_named(tmp_path: Path) -> None:
    runs = [shared(around(seconds), model=net(code)) for seconds, code in ((4.0, "old0"), (5.0, "new1"))]
    found = comparing(tmp_path / "a", *runs, runs[0])
    assert [each.time.verdict for each in found.differences if each.time] == ["more", "equal"]
    assert found.facts == {"code of model mine.py:Net": ("old0", "new1", "old0")}
    assert not found.alone
    for text in (html.render(page_of(found)), *remarks(found)):
        assert all(part in text for part in ("model mine.py:Net", "old0", "new1"))


def test_own_components_of_other_parameters_differ_and_versions_match_by_their_code(tmp_path: Path) -> None:
    old, new, third, wide = (
        shared(around(4.0), model=model)
        for model in (net("old0"), net("new1"), net("else"), net("old0", width=16))
    )
    found = comparing(tmp_path, [*old, *new], new)
    (match,) = found.differences
    assert {row.canonical["model"]["imported"]["code"] for row in match.reference.rows} == {"new1"}
    assert len(found.alone[found.names[0]]) == 1
    with pytest.raises(InputError, match=r"results-0 has 2 versions of the code of model mine\.py:Net"):
        comparing(tmp_path, [*old, *new], third)
    with pytest.raises(InputError, match="no finished configuration in common"):
        comparing(tmp_path / "other", old, wide)


def test_simulated_times_are_not_compared_with_wall_times(tmp_path: Path) -> None:
    real = [*SERIAL, *shared(around(4.0, 0.02))]
    info = replace(real[0].runtime_info, simulates_time=True)
    virtual = [each.model_copy(update={"runtime": "virtual", "runtime_info": info}) for each in real]
    assert all(difference.time is None for difference in comparing(tmp_path, real, virtual).differences)


def test_bad_directories_and_pages_are_refused(several: Directories, tmp_path: Path) -> None:
    first = Path(several.names[0])
    for directories, message in (
        ([first], "at least two"),
        ([first, first], "named twice"),
        ([first, tmp_path], r"no sweep\.json"),
    ):
        with pytest.raises(InputError, match=message):
            compared(directories)
    with pytest.raises(InputError, match=r"\.html or \.md"):
        check_page(tmp_path / "page.pdf")
