"""Foreign tensors put into a model by a family's map, for tests against goldens."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from luthier.checkpoint.foreign import Stacked, is_stacked
from luthier.layers import AXES


def filled(model, family, tensors):
    """Return the (abstract) model with foreign tensors; every one of them must have its place."""
    graphdef, state = nnx.split(model)
    flat = {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(state)}
    stacked = {
        name: Stacked(variable.shape, is_stacked(variable.get_metadata().get(AXES)))
        for name, variable in flat.items()
    }
    places = family.places(stacked)
    resolved = family.resolve(places, {})
    assert not resolved.unknown
    assert not resolved.broken
    assert resolved.shapes == {name: tensor.shape for name, tensor in tensors.items()}
    values = {name: np.full(variable.shape, np.nan) for name, variable in flat.items()}
    for name, view in resolved.views.items():
        whole = tuple(slice(0, size) for size in view.shape)
        part = (slice(None),) * view.axis + (slice(view.offset, None),)  # of what is joined
        fetch = tensors[view.foreign][part].__getitem__
        array = view.layout.read(fetch, view.shape, whole, {})
        places[name].take(values[places[name].parameter])[...] = array  # a view
    for name, variable in flat.items():
        variable.set_value(jnp.asarray(values[name], variable.dtype))
    return nnx.merge(graphdef, state)
