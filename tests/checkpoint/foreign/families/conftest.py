"""Slots of one layer of a decoder, by name."""

import pytest

from luthier.checkpoint.foreign.layers import Slot

D, H, G, K, F, V = 8, 4, 2, 3, 5, 7


@pytest.fixture
def resolve():
    """Return a function from a family and shapes by name to foreign shapes."""

    def run(family, shapes):
        slots = {name: Slot(name, None, shape) for name, shape in shapes.items()}
        found = family.resolve(slots, {})
        assert not found.unknown
        assert not found.broken
        return found.shapes

    return run


@pytest.fixture
def layer():
    """The parameters of a gated layer without norms and biases."""
    return {
        "blocks.1.attention.query.kernel": (D, H, K),
        "blocks.1.attention.key.kernel": (D, G, K),
        "blocks.1.attention.output.kernel": (H, K, D),
        "blocks.1.mlp.gate.kernel": (D, F),
        "blocks.1.mlp.down.kernel": (F, D),
    }


@pytest.fixture
def foreign_layer():
    """The same as Llama and those near to it call them."""
    return {
        "model.layers.1.self_attn.q_proj.weight": (H * K, D),
        "model.layers.1.self_attn.k_proj.weight": (G * K, D),
        "model.layers.1.self_attn.o_proj.weight": (D, H * K),
        "model.layers.1.mlp.gate_proj.weight": (F, D),
        "model.layers.1.mlp.down_proj.weight": (D, F),
    }
