"""Options of runs on a Ray cluster: `ray:` in a sweep file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

ADDRESS = r"^(auto|[A-Za-z0-9._-]{1,253}:[0-9]{1,5})$"
Address = Annotated[str, StringConstraints(pattern=ADDRESS)]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[\x20-\x7e]*$")]


class RayOptions(BaseModel):
    """The Ray cluster of a sweep."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    address: Address | None = Field(
        default=None,
        description="the cluster: auto for the one that this machine belongs to, or HOST:PORT of its head; "
        "default: that of RAY_ADDRESS, else one of local raylets that the sweep starts and stops",
    )
    raylets: int = Field(
        default=2, ge=1, le=16, description="raylets of a cluster that the sweep starts on this machine"
    )
    wait_s: float = Field(
        default=60.0,
        ge=3,
        le=86_400,
        description="how long a run waits for machines, CPUs, memory and GPUs; at least 3",
    )
    data_dir: AbsolutePath | None = Field(
        default=None,
        description="directory on each node for datasets that it downloads, once, if it does not see those "
        "of --data-dir; default: nodes must see them",
    )
