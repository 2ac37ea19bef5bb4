"""The sentences of findings: a template over the data of each kind, so that text and data cannot differ.

topics/NAME.j2 has a block for each kind of finding of the topic, and verdict/NAME.j2 those of a verdict, in
the words that a report shows. A block reads its data and nothing else. Lines are joined by a space, and by
none before a punctuation mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.runtime import LoopContext

from orchestrator.report import formats
from orchestrator.report.formats import percent, ratio
from orchestrator.report.quantities import QUANTITIES
from orchestrator.report.statistics.contrasts import MIN_SEEDS
from orchestrator.report.statistics.spread import span

REPORT = Path(__file__).parent.parent

Data = Mapping[str, Any]
_BEFORE_MARKS = re.compile(r"[ \n]*\n[ \n]*(?=[,;:.)]+(?:\s|$))")


def sentence(kind: str, data: Data) -> str:
    """The text of a finding. Raises UndefinedError if the data lacks what its template reads."""
    template, render = _blocks()[kind]
    text = "".join(render(template.new_context(dict(data))))
    return re.sub(r"[ \n]+", " ", _BEFORE_MARKS.sub("", text)).strip()


@cache
def environment() -> Environment:
    """The templates, without escapes: the writers of a page escape."""
    found = Environment(
        loader=FileSystemLoader([REPORT / "topics", REPORT / "verdict"]),
        undefined=StrictUndefined,
        autoescape=False,
        extensions=["jinja2.ext.do"],
    )
    found.filters |= FILTERS
    found.globals["zip"] = zip
    return found


@cache
def _blocks() -> dict[str, tuple[Any, Any]]:
    """The templates by kind, and how to render the block of the kind."""
    names = environment().list_templates(extensions=["j2"])
    templates = [environment().get_template(name) for name in names]
    return {kind: (template, block) for template in templates for kind, block in template.blocks.items()}


def written(compared: Data) -> str:
    """`+0.6 points (+0.2 to +1.0: likely)`: the difference, its interval and how sure it is."""
    return f"{QUANTITIES[compared['quantity']].write_difference(*compared['values'])}{remark(compared)}"


def aside(compared: Data) -> str:
    """`, +0.6 points (+0.2 to +1.0)`; with too few seeds no difference, since it would be a claim."""
    return f", {written(compared)}" if compared["interval"] else remark(compared)


def remark(compared: Data) -> str:
    """` (+0.2 to +1.0: likely)`, ` (−0.3 to +1.0: undecided)`: the interval and how sure it is."""
    if compared["decision"] == "equal":
        return " (equal in every seed)"
    if compared["interval"] is None:
        return f" (fewer than {MIN_SEEDS} seeds)"
    low, high = map(QUANTITIES[compared["quantity"]].write_bound, compared["interval"])
    return f" ({low} to {high}{certainty(compared)})"


def certainty(compared: Data) -> str:
    """`: likely`, `: undecided`, or that the difference does not matter; empty if it is shown."""
    if compared["decision"] in ("more", "less"):
        return "" if compared["level"] == "shown" else ": likely"
    return ": equal within the tolerance" if compared["within_tolerance"] else ": undecided"


def numbered(group: Data) -> str:
    """`all_reduce on 4 nodes (0.264 s, 88.3%)`: a speed never appears without its accuracy."""
    time = "" if group["train_s"] is None else f"{formats.seconds(group['train_s'])}, "
    return f"{group['name']} ({time}{percent(group['accuracy'])})"


def left_out(reasons: Mapping[str, Sequence[str]]) -> str:
    """The configurations that cannot be chosen, and why."""
    parts = [f"{formats.first_few([*names], 2)} ({reason})" for reason, names in reasons.items()]
    return f"Cannot be chosen: {'; '.join(parts)}." if parts else ""


def effect(change: Data) -> str:
    """`averaging (−1.2 points, likely)`: a change, with the difference between without and with it."""
    compared = change["compared"]
    quantity, (after, before) = QUANTITIES[compared["quantity"]], compared["values"]
    without = " without" if quantity.ratio else ""
    likely = compared["level"] == "likely" and compared["decision"] in ("more", "less")
    by = quantity.write_difference(after, before)
    return f"{change['fixes']} ({by}{without}{', likely' if likely else ''})"


def cause(change: Data) -> str:
    """The same, if the difference is claimed and matters; else empty."""
    compared = change["compared"]
    matters = compared["decision"] in ("more", "less") and not compared["within_tolerance"]
    return effect(change) if matters else ""


def of_accuracy(accuracy: float | None) -> str:
    """` (88.3%)`: a speed never appears without its accuracy."""
    return "" if accuracy is None else f" ({percent(accuracy)})"


def reached(accuracy: float | None) -> str:
    """` and reached 88.3%`."""
    return "" if accuracy is None else f" and reached {percent(accuracy)}"


def in_unit(value: float, quantity: str) -> str:
    return QUANTITIES[quantity].write(value)


def used(samples: Data) -> str:
    """`used 68.4% of the training set in epoch 1, 26.1% on several nodes`."""
    if samples["coverage"] is None or samples["overlap"] is None:
        return "did not report their samples"
    uneven = []
    if samples["skew_bits"] is not None:
        uneven.append(f"a label divergence of {samples['skew_bits']:.2f} bits")
    if samples["sizes"]:
        uneven.append(f"{' to '.join(map(formats.whole, samples['sizes']))} samples per rank")
    several = percent(samples["overlap"]) if samples["overlap"] else "none"
    text = f"used {percent(samples['coverage'])} of the training set in epoch 1, {several} on several nodes"
    return f"{text}, with {formats.listed(uneven)}" if uneven else text


def share(value: float | None) -> str:
    return "an unknown share" if value is None else percent(value)


def measured(name: str, accuracy: Data, train_s: Data, bytes_sent: Data) -> str:
    """`one_shot over mpi (94.1%, 2.31 s, 1.20 MB sent per rank)`: its numbers in these."""
    sent = f", {formats.size(bytes_sent[name])} sent per rank" if bytes_sent.get(name) else ""
    return f"{name} ({percent(accuracy[name])}, {formats.seconds(train_s[name])}{sent})"


def are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def between(ends: Sequence[float], write: str = "seconds") -> str:
    """`4.00–4.20 s`: two values as the named filter writes them, or one if both look equal."""
    return span(ends[0], ends[1], FILTERS[write])


def comma(loop: LoopContext, last: str = "and") -> str:
    """What stands after an item of an enumeration: `a, b and c`."""
    return "" if loop.last else f" {last} " if loop.revindex == 2 else ", "


FILTERS: dict[str, Callable[..., str]] = {"span": between} | {
    each.__name__: each
    for each in (
        *(are, aside, cause, certainty, comma, effect, in_unit, left_out, measured, numbered, of_accuracy),
        *(reached, share, used, written),
        *(formats.by_value, formats.count, formats.first_few, formats.listed, percent, formats.points),
        *(formats.probability, ratio, formats.seconds, formats.short, formats.significant, formats.size),
        formats.whole,
    )
}
