"""Mistakes in the places of ranks in a mesh: the inner dimension, groups, which meshes there are."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from trainer.parallel.mesh import Mesh, meshes
from trainer.strategies.hybrid import Hybrid

DEGREES = st.integers(1, 4)


@given(DEGREES, DEGREES, DEGREES)
def test_tensor_is_the_innermost_of_the_coordinates_of_ranks(data: int, pipeline: int, tensor: int) -> None:
    mesh = Mesh(data=data, pipeline=pipeline, tensor=tensor)
    positions = [*product(range(data), range(pipeline), range(tensor))]
    assert [tuple(mesh.position(rank)) for rank in range(mesh.size)] == positions
    assert mesh.dimensions == ("data", "pipeline", "tensor")
    for rank, place in enumerate(positions):
        for at, dimension in enumerate(mesh.dimensions):
            line = [(*place[:at], each, *place[at + 1 :]) for each in range(mesh.degree(dimension))]
            assert [positions[other] for other in mesh.group(rank, dimension)] == line


def test_meshes_of_so_many_ranks_begin_with_replicas() -> None:
    shapes = [(each.data, each.pipeline, each.tensor) for each in meshes(12)]
    every = [each for each in product(range(1, 13), repeat=3) if each[0] * each[1] * each[2] == 12]
    assert shapes == sorted(every, key=lambda each: (each[2], each[1]))
    assert [str(each) for each in meshes(2)] == ["{data: 2}", "{pipeline: 2}", "{tensor: 2}"]


def test_the_shape_of_old_sweep_files_is_a_mesh() -> None:
    assert Hybrid.model_validate({"shape": [2, 4]}) == Hybrid(mesh=Mesh(data=2, pipeline=4))
    assert Hybrid.model_validate({"shape": None}) == Hybrid()
