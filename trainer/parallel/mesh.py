"""Device mesh: the place of each rank in data, pipeline and tensor parallelism. Pure, without torch."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field

Dimension = Literal["data", "pipeline", "tensor"]
Degree = Annotated[int, Field(ge=1, le=2**16)]


class Position(NamedTuple):
    """The coordinates of a rank, each from 0: its replica, its stage, and its shard of the stage."""

    data: int
    pipeline: int
    tensor: int


class Mesh(BaseModel):
    """How many ranks there are in each dimension.

    The order of ranks is that of their coordinates, tensor innermost: rank = (d·S + s)·T + t with S stages
    and T shards. Ranks of a tensor group exchange most, so they are neighbours, as in Megatron-LM (Shoeybi
    et al. 2019; Narayanan et al. 2021, Sec. 2). Its code puts the stages outermost, and here it is the
    replicas.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    data: Degree = Field(default=1, description="replicas of the model")
    pipeline: Degree = Field(default=1, description="ranks of a pipeline")
    tensor: Degree = Field(default=1, description="ranks that share the layers of a stage")

    def __str__(self) -> str:
        """As a sweep file has it: `{data: 2, tensor: 2}`."""
        degrees = {each: self.degree(each) for each in self.dimensions if self.degree(each) > 1}
        return f"{{{', '.join(f'{name}: {degree}' for name, degree in degrees.items())}}}"

    def degree(self, dimension: Dimension) -> int:
        """The number of ranks in a group of this dimension."""
        degree: int = getattr(self, dimension)
        return degree

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions, the outermost first."""
        return get_args(Dimension)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.data * self.pipeline * self.tensor

    def position(self, rank: int) -> Position:
        """The coordinates of a rank."""
        chain, tensor = divmod(rank, self.tensor)
        data, pipeline = divmod(chain, self.pipeline)
        return Position(data, pipeline, tensor)

    def group(self, rank: int, dimension: Dimension) -> range:
        """The ranks whose coordinates differ from those of `rank` in this dimension at most, in order."""
        strides: dict[Dimension, int] = {
            "data": self.pipeline * self.tensor,
            "pipeline": self.tensor,
            "tensor": 1,
        }
        stride = strides[dimension]
        first = rank - getattr(self.position(rank), dimension) * stride
        return range(first, first + stride * self.degree(dimension), stride)


def meshes(ranks: int) -> list[Mesh]:
    """All meshes of so many ranks, those with little tensor and pipeline parallelism first."""
    divisors = [each for each in range(1, ranks + 1) if ranks % each == 0]
    return [
        Mesh(data=ranks // (tensor * pipeline), pipeline=pipeline, tensor=tensor)
        for tensor in divisors
        for pipeline in divisors
        if ranks % (tensor * pipeline) == 0
    ]
