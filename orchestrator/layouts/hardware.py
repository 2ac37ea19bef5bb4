"""The catalogue of machines and links that a plan can ask about: hardware.yml."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from orchestrator.errors import InputError
from trainer.core.registry import suggestion
from trainer.time_model.cluster import Link

_LINK = re.compile(r"([\d.]+)(bit|kbit|mbit|gbit)/([\d.]+)(us|ms|s)")
_BITS_PER_S = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class Machine(NamedTuple):
    """A machine. flops: its peak. efficiency: the share that training reaches, (low, high)."""

    name: str
    flops: float
    memory: str
    efficiency: tuple[float, float]
    source: str


class NamedLink(NamedTuple):
    name: str
    link: Link
    source: str


@cache
def _catalogue() -> dict[str, Any]:
    text = Path(__file__).with_name("hardware.yml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def machine_of(name: str) -> Machine:
    """Raises InputError for an unknown name."""
    machines = _catalogue()["machines"]
    if name not in machines:
        raise InputError(
            f"--hardware {name}: unknown{suggestion(name, machines)}; allowed: {', '.join(machines)}"
        )
    fields = machines[name]
    low, high = map(float, fields["efficiency"])
    return Machine(name, float(fields["flops"]), fields["memory"], (low, high), fields["source"])


def links() -> list[NamedLink]:
    """The links of the catalogue, the slowest first."""
    entries = _catalogue()["links"].items()
    return [NamedLink(name, parse_link(each["link"]), each["source"]) for name, each in entries]


def link_of(text: str) -> Link:
    """A name of the catalogue, or a bandwidth and a latency: `1gbit`, `1000mbit/1ms`. Raises InputError."""
    known = {each.name: each.link for each in links()}
    if text not in known and "/" not in text:
        raise InputError(
            f"--link {text}: unknown{suggestion(text, known)}; allowed: {', '.join(known)}, and a "
            "bandwidth with a latency, such as 1000mbit/1ms"
        )
    return known[text] if text in known else parse_link(text)


def parse_link(text: str) -> Link:
    """`1000mbit/1ms` as a link. Raises InputError."""
    found = _LINK.fullmatch(text.strip().lower())
    try:
        if found is None:
            raise ValueError
        rate, rate_unit, latency, latency_unit = found.groups()
        return Link(
            bytes_per_s=float(rate) * _BITS_PER_S[rate_unit] / 8,
            latency_s=float(latency) * _SECONDS[latency_unit],
        )
    except ValueError:
        raise InputError(
            f"--link {text}: must be a bandwidth above 0 and a latency, such as 1000mbit/1ms; units are "
            f"{', '.join(_BITS_PER_S)} and {', '.join(_SECONDS)}"
        ) from None
