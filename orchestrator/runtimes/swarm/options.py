"""Options of runs on a Docker Swarm: `swarm:` in a sweep file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

# Those of Swarm by which machines are chosen; of labels, a machine may have any.
Constraint = Annotated[
    str,
    StringConstraints(
        pattern=r"^(node\.(id|hostname|role|labels\.[\w.-]+)|engine\.labels\.[\w.-]+) ?(==|!=) ?[\w./-]+$"
    ),
]


class SwarmOptions(BaseModel):
    """Where Swarm places the nodes of the runs of a sweep."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    nodes_per_machine: int | None = Field(
        default=None,
        ge=1,
        description="most nodes of a run on one machine; default: no limit, spread evenly",
    )
    constraints: list[Constraint] = Field(
        default=[], description="machines to use, such as node.labels.rack==3 or node.hostname!=login"
    )
