"""Check the report of the smoke sweep: `python -m tests.assert_report DIR`. CI runs it last."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from orchestrator.results.records import RunResult
from orchestrator.results.store import read_result
from trainer.spec.registries import STRATEGIES

# The accuracy that a run exceeds if it has learned. Every fifth character of the text is a space.
CHARACTERS, CLASSES = 0.25, 0.5


def main(directory: Path) -> None:
    with open(directory / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows, "the report has no rows"
    for row in rows:
        assert row["status"] == "ok", f"{row['key']}: {row['cause']}"
        least = CHARACTERS if row["dataset"].startswith("pydoc_text") else CLASSES
        assert float(row["accuracy"]) > least, f"{row['key']} learned nothing: accuracy {row['accuracy']}"
        partitioned = row["partitioner"] != "random_sampling"
        assert (float(row["coverage"]) == 1.0) is partitioned, f"{row['key']}: coverage {row['coverage']}"
        assert (float(row["overlap"]) == 0.0) is partitioned, f"{row['key']}: overlap {row['overlap']}"
        if row["strategy"] != "serial":
            assert float(row["speedup"]) > 0, f"{row['key']} has no speedup"
    strategies = {row["strategy"].partition(" ")[0] for row in rows}
    expected = {name for name in STRATEGIES.entries if STRATEGIES.load(name).trains}
    assert strategies == expected, strategies ^ expected

    results = [read_result(directory / row["key"] / "result.json") for row in rows]
    assert {result.topology for result in results if result} == {"single", "ddp", "mpi", "rpc"}
    for result in results:
        assert result
        if result.runtime == "docker":
            check_containers(result, directory / result.key)

    page = (directory / "report.html").read_text()
    for row in rows:
        assert row["key"] in page, f"{row['key']} is not in report.html"
    assert "<svg" in page
    assert 'src="http' not in page
    assert (directory / "report.md").stat().st_size > 0
    print(f"report of {len(rows)} runs passes all checks")


def check_containers(result: RunResult, directory: Path) -> None:
    """The row has the usage of every node, and every container has a log."""
    key, topology, count = result.key, result.topology, int(result.spec["nodes"])
    nodes = [usage for usage in result.usage if usage.ranks]
    assert len(nodes) == (1 if topology == "single" else count), f"{key}: usage of {len(nodes)} nodes"
    for usage in nodes:
        assert usage.cpu_s, f"{key}: no CPU time of {usage.name}"
        if topology != "single":
            assert (usage.sent_bytes or 0) > 1000, f"{key}: {usage.name} sent {usage.sent_bytes} bytes"
    logs = {path.stem for path in directory.glob("*.log")} - {"compose"}  # of a set's first run
    names = {f"node-{number}" for number in range(1 if topology == "single" else count)}
    expected = names | {"coordinator"} | ({"launcher"} if topology == "mpi" else set())
    assert logs == expected, f"{key}: logs {sorted(logs)}, expected {sorted(expected)}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
