"""Check the report of the smoke sweep: `python -m tests.assert_report DIR`. CI runs it last."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from trainer.spec.registries import STRATEGIES


def main(directory: Path) -> None:
    with open(directory / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows, "the report has no rows"
    for row in rows:
        assert row["status"] == "ok", f"{row['key']}: {row['cause']}"
        assert float(row["accuracy"]) > 0.5, f"{row['key']} learned nothing: accuracy {row['accuracy']}"
        partitioned = row["partitioner"] != "random_sampling"
        assert (float(row["coverage"]) == 1.0) is partitioned, f"{row['key']}: coverage {row['coverage']}"
        assert (float(row["overlap"]) == 0.0) is partitioned, f"{row['key']}: overlap {row['overlap']}"
        if row["strategy"] != "serial":
            assert float(row["speedup"]) > 0, f"{row['key']} has no speedup"
    strategies = {row["strategy"].partition(" ")[0] for row in rows}
    expected = {name for name in STRATEGIES.entries if STRATEGIES.load(name).trains}
    assert strategies == expected, strategies ^ expected

    page = (directory / "report.html").read_text()
    for row in rows:
        assert row["key"] in page, f"{row['key']} is not in report.html"
    assert "<svg" in page
    assert 'src="http' not in page
    assert (directory / "report.md").stat().st_size > 0
    print(f"report of {len(rows)} runs passes all checks")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
