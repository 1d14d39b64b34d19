"""Sizes that a mesh does not divide: padded by the layer, or refused with the remedy."""

import jax
import pytest

from luthier import program as programs
from luthier.errors import BadInput

DIVISIBLE = ("model.block.attention.num_heads=8", "model.block.attention.num_kv_heads=8")


@pytest.fixture
def make(shrunk):
    """Return a function from words to the program on eight devices."""

    def make(*words):
        words = [w.replace("fiddler:", "fiddler:luthier.recipes.") for w in words]
        return programs.make(shrunk(*words), jax.devices())

    return make


def test_a_vocabulary_is_padded_to_what_the_mesh_divides(make):
    words = (*DIVISIBLE, "model.vocab_size=50257", "fiddler:tensor(8)")
    program = make(*words, "model.embedding.pad_to_multiple=8")
    table = program.placements["parameters/embedding.table"]
    assert table.shape == (50264, 32)
    assert table.spec == jax.P("tensor", None)
    with pytest.raises(BadInput) as caught:
        make(*words, "model.embedding.pad_to_multiple=1")
    assert str(caught.value) == (
        "embedding.table: dimension 0 'vocab' (50257) is not divisible by mesh axis tensor=8 "
        "(rule vocab -> tensor); set its pad_to_multiple=8, or parallelism.mesh.tensor=1"
    )


def heads(name, dimension, size, other):
    return (
        f"blocks.attention.{name}.kernel: dimension {dimension} {size[0]!r} (7) is not divisible "
        f"by mesh axis tensor=4 (rule {size[0]} -> tensor), also in "
        f"blocks.attention.{other}.kernel; make {size[0]} a multiple of 4, "
        f"parallelism.mesh.tensor=1, or parallelism.rules.parameters.{size[0]}=()"
    )


REFUSED = [
    (
        (
            "model.block.attention.num_heads=7",
            "model.block.attention.num_kv_heads=7",
            "model.block.attention.head_dim=8",
            "fiddler:tensor(4)",
        ),
        [
            heads("key", 2, ["kv_heads"], "value"),
            heads("output", 1, ["heads"], "query"),
        ],
    ),
    (
        ("training.global_batch_size=12",),
        [
            "training.global_batch_size: 12 rows cannot be divided over 8 devices "
            "[set by argument 1: training.global_batch_size=12]; use a multiple of 8, or a mesh "
            "with fewer devices on the batch"
        ],
    ),
    (
        ("data.length=100", "fiddler:sequence(8)"),
        [
            f"{entry}: dimension 1 'length' (100) is not divisible by mesh axis sequence=8 "
            "(rule length -> sequence); make length a multiple of 8, parallelism.mesh.sequence=4, "
            "or parallelism.rules.activations.length=()"
            for entry in ("inputs",)
        ],
    ),
]


@pytest.mark.parametrize(("words", "lines"), REFUSED, ids=["heads", "batch", "length"])
def test_what_cannot_be_divided_is_refused(make, words, lines):
    with pytest.raises(BadInput) as caught:
        make(*words)
    assert str(caught.value).splitlines() == lines


def test_layers_that_the_stages_do_not_divide_are_refused(make):
    with pytest.raises(BadInput) as caught:
        make("model.num_layers=3", "parallelism.mesh.stage=2")
    lines = str(caught.value).splitlines()
    assert lines
    assert all("dimension 0 'layers' (3) is not divisible by mesh axis stage=2" in x for x in lines)


def test_experts_that_the_axis_does_not_divide_are_refused(make):
    experts = "Experts(num_experts=6, router=TopK(k=2), expert=GatedMlp(hidden_dim=32))"
    with pytest.raises(BadInput) as caught:
        make(f"model.block.mlp={experts}", "fiddler:expert(4)")
    line = str(caught.value).splitlines()[0]
    assert "dimension 1 'experts' (6) is not divisible by mesh axis expert=4 (rule experts -> " in (
        line
    )
    assert "make experts a multiple of 4, parallelism.mesh.expert=2, or" in line
