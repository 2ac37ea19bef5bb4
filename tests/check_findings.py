"""Check the claims of a report against its results.csv: means, intervals, decisions, and least p-values.

python -m tests.check_findings results/quickstart
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from math import exp, isclose, log
from pathlib import Path
from statistics import fmean
from typing import Any

from scipy import stats

from orchestrator.report.findings.decide import FALSE_SHOWN, LIKELY_LEVEL
from orchestrator.report.statistics.contrasts import MIN_SEEDS

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
    shifts = {key: shift for finding in findings for key, shift in shifts_of(finding, rows)}
    wrong = [
        f"{finding['kind']}, {each['quantity']} of {each['left'][0]}: {trouble}"
        for finding, each in known
        for trouble in troubles(each, rows, shifts if each["quantity"] == "accuracy" else {})
    ]
    wrong += several_values(compared)
    print("\n".join(wrong) or f"{len(known)} of {len(compared)} comparisons checked; all hold")
    return 1 if wrong or not known else 0


def value_of(row: dict[str, str], quantity: str) -> float:
    """The value that the report compares."""
    column = IN_CLUSTER_TIME.get(quantity, quantity) if row["clock"] == "cluster" else quantity
    return float(row[column])


def shifts_of(finding: dict[str, Any], rows: dict[str, dict[str, str]]) -> Iterator[tuple[str, float]]:
    """What was added to mean accuracies over other seeds than those of all, by the first run."""
    if finding["kind"] == "common_seeds":
        data = finding["data"]
        for keys, mean in zip(data["runs"], data["accuracy"], strict=True):
            yield keys[0], mean - fmean(value_of(rows[key], "accuracy") for key in keys)


def several_values(compared: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    """The configurations that have two values of a quantity."""
    found: dict[tuple[str, str], set[float]] = {}
    for _, each in compared:
        for side, value in zip(("left", "right"), each["values"], strict=True):
            if each[side]:
                found.setdefault((each["quantity"], each[side][0]), set()).add(round(value, 9))
    return [f"{name} of {key}: {values}" for (name, key), values in found.items() if len(values) > 1]


def troubles(
    compared: dict[str, Any], rows: dict[str, dict[str, str]], shifts: Mapping[str, float]
) -> list[str]:
    """What does not follow from the rows. shifts: of means, by the first run.

    Shifts that change no mean as it is written are not known.
    """
    ratio, found = compared["scale"] == "ratio", []
    sides = [
        [value_of(rows[key], compared["quantity"]) for key in compared[side]] for side in ("left", "right")
    ]
    scaled = [[log(value) if ratio else value for value in side] for side in sides]
    means = [
        exp(fmean(side)) if ratio else fmean(side) + shifts.get(compared[name][0], 0.0)
        for name, side in zip(("left", "right"), scaled, strict=True)
    ]
    apart = 1e-3 if shifts else 0.0
    if not all(isclose(*pair, abs_tol=apart) for pair in zip(means, compared["values"], strict=True)):
        found.append(f"means {means}, not {compared['values']}")
    if compared["interval"] is None:
        few = min(map(len, sides)) < MIN_SEEDS
        if compared["decision"] != ("equal" if sides[0] == sides[1] else "too_few_seeds"):
            found.append(f"{compared['decision']} without an interval")
        return found if few or sides[0] == sides[1] else [*found, "no interval"]
    low, high = compared["interval"]
    none = 1.0 if ratio else 0.0
    decision = "more" if low > none else "less" if high < none else "undecided"
    if decision != compared["decision"]:
        found.append(f"{compared['decision']}, but the interval is {low} to {high}")
    if between := compared["between_sessions"]:
        distance = abs(fmean(scaled[0]) - fmean(scaled[1]))
        least = 2 * float(stats.norm.sf(distance / between))
        if compared["p"] < least - 1e-9:
            found.append(f"p is {compared['p']}, and by differences between sessions alone {least}")
    decided = compared["decision"] != "undecided"
    level = LIKELY_LEVEL if compared["level"] == "likely" else FALSE_SHOWN
    if (compared["p"] < level) is not decided and (compared["level"] == "likely" or decided):
        found.append(f"{compared['decision']} at a corrected p-value of {compared['p']}")
    return found


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
