"""What the tests of origins share: a model with the weights of a checkpoint."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier import graph as graphs
from luthier.checkpoint import Restoration, Target
from luthier.checkpoint.foreign import is_stacked
from luthier.layers import AXES


@pytest.fixture
def restored():
    """Return a function from a model's graph and a source to the model with its weights."""

    def make(recipe, source, limits=None):
        template = graphs.build(recipe)
        model = nnx.eval_shape(lambda: template(rngs=nnx.Rngs(0)))
        graphdef, state = nnx.split(model)
        leaves = {".".join(map(str, path)): v for path, v in nnx.to_flat_state(state)}
        targets = {
            name: Target(v.shape, v.dtype, None, is_stacked(v.get_metadata().get(AXES)))
            for name, v in leaves.items()
        }
        with Restoration(source, targets, limits or {}) as restoration:
            arrays = restoration.read()
            table = {row.parameter: row for row in restoration.table}
        assert set(arrays) == set(leaves)
        for name, variable in leaves.items():
            variable.set_value(jnp.asarray(np.asarray(arrays[name])))
        return nnx.merge(graphdef, state), table

    return make
