import pytest

from luthier.checkpoint.foreign import Family, Slot, joined, tensor

FAMILY = Family(
    name="toy",
    model_types=("toy",),
    architecture="Toy",
    ignored=(r"\.mask$",),
    tensors=(
        tensor("embed", "embedding.table", "vocab embed"),
        joined(
            "h.{layer}.qk",
            1,
            ("blocks.{layer}.q", "embed (heads head_dim) -> embed heads head_dim"),
            ("blocks.{layer}.k", "embed (heads head_dim) -> embed heads head_dim"),
        ),
        tensor("head", "head.kernel", "vocab embed -> embed vocab", copy_of="embed"),
    ),
)


def _slots(**shapes):
    return {name.replace("__", "."): Slot(name, None, shape) for name, shape in shapes.items()}


def test_names_and_shapes_of_both_sides():
    found = FAMILY.resolve(
        _slots(embedding__table=(8, 5), blocks__0__q=(5, 4, 3), blocks__0__k=(5, 2, 3)),
        {"vocab": 7},
    )
    assert found.shapes == {"embed": (7, 5), "h.0.qk": (5, 18)}
    assert found.views["blocks.0.k"].offset == 12
    assert found.copies == {"head": "embed"}
    assert not found.unknown
    assert found.ours_of("h.0.qk") == ["blocks.0.q", "blocks.0.k"]


def test_a_head_of_its_own_is_a_tensor_and_no_copy():
    found = FAMILY.resolve(_slots(embedding__table=(8, 5), head__kernel=(5, 8)), {})
    assert found.shapes["head"] == (8, 5)
    assert found.sources == {"head": "embed"}
    assert not found.copies


def test_parameters_without_a_tensor_and_half_a_tensor_are_reported():
    found = FAMILY.resolve(_slots(norm__scale=(5,), blocks__1__q=(5, 4, 3)), {})
    assert found.unknown == ["norm.scale"]
    (sentence,) = found.broken
    assert "h.1.qk holds blocks.{layer}.k beside blocks.1.q" in sentence


def test_another_number_of_dimensions_is_reported():
    (sentence,) = FAMILY.resolve(_slots(embedding__table=(8,)), {}).broken
    assert "embedding.table is [8], not 2 dimensions" in sentence


@pytest.mark.parametrize(
    ("foreign", "ours"),
    [("h.12.qk", ["blocks.12.q", "blocks.12.k"]), ("h.x.qk", []), ("embed", ["embedding.table"])],
)
def test_what_a_foreign_tensor_would_be(foreign, ours):
    assert FAMILY.ours_of(foreign) == ours


def test_buffers_are_ignored():
    assert FAMILY.is_ignored("h.0.mask")
    assert not FAMILY.is_ignored("h.0.qk")
