"""Check the claims of a report against its results.csv, with SciPy's tests instead of our own.

python -m tests.check_findings results/quickstart
"""

from __future__ import annotations

import csv
import json
import sys
from math import exp, isclose, log
from pathlib import Path
from statistics import fmean
from typing import Any

from scipy import stats

CHECKED = (
    "accuracy",
    "train_s",
    "elapsed_s",
    "step_s",
    "exchange_s_per_step",
)  # quantities that are columns of results.csv
IN_CLUSTER_TIME = {
    "train_s": "cluster_s",
    "step_s": "cluster_step_s",
    "exchange_s_per_step": "cluster_exchange_s_per_step",
}  # their columns for runs that are compared in cluster time


def main(directory: Path) -> int:
    with open(directory / "results.csv", newline="", encoding="utf-8") as file:
        rows = {row["key"]: row for row in csv.DictReader(file)}
    findings = json.loads((directory / "findings.json").read_text(encoding="utf-8"))
    compared = [
        (finding, each)
        for finding in findings
        if finding["kind"] != "conditions_differ"  # its `compared` says whether its runs are
        for each in finding["data"].get("compared", ())
    ]
    known = [(finding, each) for finding, each in compared if each["quantity"] in CHECKED and each["right"]]
    wrong = [
        f"{finding['kind']}, {each['quantity']} of {each['left'][0]}: {trouble}"
        for finding, each in known
        for trouble in troubles(each, rows)
    ]
    print("\n".join(wrong) or f"{len(known)} of {len(compared)} comparisons checked; all hold")
    return 1 if wrong or not known else 0


def value_of(row: dict[str, str], quantity: str) -> float:
    """The value that the report compares."""
    column = IN_CLUSTER_TIME.get(quantity, quantity) if row["clock"] == "cluster" else quantity
    return float(row[column])


def troubles(compared: dict[str, Any], rows: dict[str, dict[str, str]]) -> list[str]:
    """What does not follow from the rows."""
    ratio, found = compared["scale"] == "ratio", []
    sides = [
        [value_of(rows[key], compared["quantity"]) for key in compared[side]] for side in ("left", "right")
    ]
    scaled = [[log(value) if ratio else value for value in side] for side in sides]
    means = [exp(fmean(side)) if ratio else fmean(side) for side in scaled]
    if not all(isclose(*pair, rel_tol=1e-9) for pair in zip(means, compared["values"], strict=True)):
        found.append(f"means {means}, not {compared['values']}")
    if compared["interval"] is None:
        few = min(map(len, sides)) < 3
        if compared["decision"] != ("equal" if sides[0] == sides[1] else "too_few_seeds"):
            found.append(f"{compared['decision']} without an interval")
        return found if few or sides[0] == sides[1] else [*found, "no interval"]
    low, high = compared["interval"]
    least = compared["least_claimed"] or (1.0 if ratio else 0.0)
    most_below = 1 / least if ratio else -least
    decision = "more" if low > least else "less" if high < most_below else "undecided"
    if decision != compared["decision"]:
        found.append(f"{compared['decision']}, but the interval is {low} to {high}")
    test = stats.ttest_rel if compared["paired"] else stats.ttest_ind
    options = {} if compared["paired"] else {"equal_var": False}
    uncorrected = float(test(*scaled, **options).pvalue)
    if compared["p"] < uncorrected * (1 - 1e-6):
        found.append(f"the corrected p-value {compared['p']} is below the uncorrected {uncorrected}")
    return found


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
