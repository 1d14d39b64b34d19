"""Maps of families, tried on models of any size and on single layers."""

import numpy as np
import pytest
from flax import nnx

from luthier import graph as graphs
from luthier.checkpoint import Restoration, Safetensors, Target
from luthier.checkpoint.foreign import Slot, foreign_tensors, is_stacked, write
from luthier.layers import AXES

D, H, G, K, F, V = 8, 4, 2, 3, 5, 7


def _targets(graph):
    """Return the parameters of a model's graph, without arrays."""
    template = graphs.build(graph)
    model = nnx.eval_shape(lambda: template(rngs=nnx.Rngs(0)))
    return {
        ".".join(map(str, path)): Target(
            variable.shape, variable.dtype, None, is_stacked(variable.get_metadata().get(AXES))
        )
        for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param))
    }


def _resolve(family, graph, limits):
    stacked = {name: target.stacked for name, target in _targets(graph).items()}
    return family.resolve(family.places(stacked), limits)


@pytest.fixture
def resolve():
    """Return a function from a family, a model's graph and limits to the family's map for it."""
    return _resolve


@pytest.fixture
def there_and_back(tmp_path):
    """Return a function: a model's random parameters come back from files to the last bit.

    It returns the shapes of the foreign tensors.
    """

    def check(family, graph, limits):
        targets, rng = _targets(graph), np.random.default_rng(0)
        arrays = {n: rng.normal(size=t.shape).astype(t.dtype) for n, t in targets.items()}
        for name, array in arrays.items():
            if name.endswith(".table") and limits and array.shape[0] > limits["vocab"]:
                array[limits["vocab"] :] = 0  # padding, which does not travel
        stacked = {name: target.stacked for name, target in targets.items()}
        tensors = foreign_tensors(family, arrays, stacked, limits)
        write(tmp_path / "weights", tensors, config=None, metadata={"format": "pt"})
        with Restoration(Safetensors(str(tmp_path / "weights"), family), targets, limits) as found:
            back = found.read()
        assert set(back) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(back[name], array, err_msg=name)
        resolved = _resolve(family, graph, limits)
        assert not resolved.unknown
        assert not resolved.broken
        assert resolved.shapes == {name: shape for name, (shape, *_) in tensors.items()}
        return resolved.shapes

    return check


@pytest.fixture
def shapes_of():
    """Return a function from a family and shapes of ours by name to foreign shapes."""

    def run(family, shapes):
        places = {name: Slot(name, None, shape) for name, shape in shapes.items()}
        found = family.resolve(places, {})
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
