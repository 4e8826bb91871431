"""Mesh arithmetic."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distperf.errors import MeshError
from distperf.recipe.mesh import MeshShape, fit_mesh

SIZES = st.integers(1, 4)
MESHES = st.builds(MeshShape, SIZES, SIZES, SIZES, SIZES, SIZES)


@settings(max_examples=40)
@given(MESHES)
def test_coordinates_are_row_major_and_unique(mesh: MeshShape):
    """Ranks 0, 1, ... enumerate the coordinates in lexical order: every place once, tp fastest."""
    places = [tuple(mesh.coordinates(rank).values()) for rank in range(mesh.product)]
    assert places == sorted(set(places))
    assert list(mesh.coordinates(0)) == ["pp", "dp_replicate", "dp_shard", "cp", "tp"]
    assert all(
        place < size for values in places for place, size in zip(values, mesh.sizes().values(), strict=True)
    )


@given(MESHES)
def test_auto_takes_what_is_left(mesh: MeshShape):
    """Leaving out dp_shard of a mesh that fits gives it back."""
    sizes = mesh.sizes()
    del sizes["dp_shard"]
    assert fit_mesh(mesh.product, **sizes) == mesh
    assert fit_mesh(mesh.product, dp_shard=mesh.dp_shard, **sizes) == mesh
    assert mesh.data_parallel_size == mesh.dp_replicate * mesh.dp_shard


def test_a_misfit_names_the_product_and_every_factor():
    """And the value that would do, where there is one."""
    with pytest.raises(MeshError) as caught:
        fit_mesh(8, dp_shard=3, tp=2)
    assert str(caught.value) == (
        "the mesh takes 6 ranks (pp 1 x dp_replicate 1 x dp_shard 3 x cp 1 x tp 2), but there are 8; "
        "dp_shard: 4 (or auto) would fit"
    )
    with pytest.raises(MeshError, match=r"7 ranks are not a multiple of 4 \(pp 2 .* tp 2 without dp_shard\)"):
        fit_mesh(7, pp=2, tp=2)
    with pytest.raises(MeshError, match="not a multiple of 4"):
        fit_mesh(2, pp=2, tp=2)


@pytest.mark.parametrize("size", [0, -1])
def test_an_axis_has_at_least_one_rank(size: int):
    """The axis is named."""
    with pytest.raises(MeshError, match="axis cp has size"):
        MeshShape(cp=size)
