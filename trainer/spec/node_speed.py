"""How a spec writes the speeds of its nodes: a list, or a mapping of the nodes that are slower."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

MAX_NODES = 16_384
ALLOWED = "one speed for each node, as in [1, 1, 0.5]; {node: speed}, as in {2: 0.5}; or null"
_SPEED = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}


def _checked(value: Any) -> list[float] | dict[int, float] | None:
    """The speeds in the form in which they are written, if each one is possible."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_speed(speed, node) for node, speed in enumerate(value)]
    if isinstance(value, dict):
        numbers = [_number(node) for node in value]
        if len(set(numbers)) == len(numbers):
            return {node: _speed(speed, node) for node, speed in zip(numbers, value.values(), strict=True)}
    raise _error(f"not the speeds of nodes; allowed: {ALLOWED}")


def _number(node: Any) -> int:
    """A node's number. In JSON, keys are strings."""
    text = str(node)
    if isinstance(node, bool) or not text.removeprefix("-").isdecimal() or len(text) > 5:
        raise _error(f"{text:.20} is not the number of a node; allowed: {ALLOWED}")
    return int(text)


def _speed(speed: Any, node: int) -> float:
    if isinstance(speed, bool) or not isinstance(speed, int | float) or not 0 < speed <= 1:  # nor nan
        raise _error(f"node {node} has speed {speed!r:.20}; allowed: > 0, at most 1")
    return float(speed)


def _error(text: str) -> PydanticCustomError:
    return PydanticCustomError("node_speed_form", "{text}", {"text": text})


NodeSpeed = Annotated[
    list[float] | dict[int, float] | None,
    PlainValidator(_checked),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "minItems": 1, "items": _SPEED},
                {"type": "object", "additionalProperties": _SPEED},
                {"type": "null"},
            ]
        }
    ),
]


def distinct_nodes(written: Iterable[int], nodes: int) -> list[int]:
    """The numbers of these nodes, from 0; a negative number counts from the last node.

    Raises ValueError if a node does not exist or is named twice.
    """
    named: dict[int, int] = {}
    for node in written:
        if not -nodes <= node < nodes:
            raise ValueError(
                f"node {node} does not exist; allowed: 0 to {nodes - 1}, or -1 (the last) to {-nodes}"
            )
        if (number := node % nodes) in named:
            other = named[number]
            raise ValueError(f"{other} and {node} are the same of {nodes} nodes; allowed: one of them")
        named[number] = node
    return [*named]


def speeds_by_node(written: list[float] | dict[int, float] | None, nodes: int) -> list[float]:
    """One speed for each node; a negative number counts from the last node. Raises ValueError."""
    if isinstance(written, list):
        if len(written) != nodes:
            raise ValueError(
                f"{len(written)} speeds for {nodes} nodes; allowed: {nodes}, or {{node: speed}} for those "
                "that are slower"
            )
        speeds = [*written]
    else:
        speeds = [1.0] * nodes
        slower = written or {}
        for node, speed in zip(distinct_nodes(slower, nodes), slower.values(), strict=True):
            speeds[node] = speed
    if max(speeds) < 1:
        raise ValueError(
            f"the fastest node has speed {max(speeds):g}; allowed: 1, because speeds are relative to the "
            "fastest node; lower cpus to slow all nodes"
        )
    return speeds


def normal_form(written: Any, nodes: Any) -> Any:
    """The same for equal speeds: one for each node, or None if all nodes are equally fast.

    What is not valid is returned as it is: its own checks report the error.
    """
    if not isinstance(nodes, int) or not 1 <= nodes <= MAX_NODES:
        return written
    try:
        speeds = speeds_by_node(_checked(written), nodes)
    except (PydanticCustomError, ValueError):
        return written
    return speeds if min(speeds) < 1 else None
