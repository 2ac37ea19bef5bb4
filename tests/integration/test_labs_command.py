"""The command lab, from its name to the page that sets published figures beside ours."""

from __future__ import annotations

from pathlib import Path

from tests.support.command_line import run_cli


def test_a_quick_look_at_a_lab_whose_data_is_not_there(tmp_path: Path) -> None:
    done = run_cli(
        *("lab", "rpc_split", "--quick", "--runtime", "local"),
        *("--data-dir", tmp_path / "data", "--out", tmp_path / "labs"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 runs ok" in done.stdout
    assert not (tmp_path / "data").exists(), "a quick look downloads nothing"
    page = (tmp_path / "labs" / "rpc_split" / "report.md").read_text()
    table = page[page.index("## Published and measured") :]
    (line,) = [line for line in table.splitlines() if line.startswith("| as published")]
    published = [cell.strip() for cell in line.strip("|").split("|")]
    assert published[:3] == ["as published", "3\N{NO-BREAK SPACE}nodes", "105\N{NO-BREAK SPACE}s"]
    assert "not run" not in line
    assert "by --quick, --set dataset=digits: these are not the runs" in table
    assert "- **Why**: At 3\N{NO-BREAK SPACE}nodes as published came to" in page


def test_the_list_of_labs() -> None:
    done = run_cli("labs")
    assert done.returncode == 0
    assert "parallel_sgd\n    Parallel SGD over MPI" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
