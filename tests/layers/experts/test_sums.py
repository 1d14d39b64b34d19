import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import FullRemat, Normal, Scanned, Shared, Unrolled, vector
from luthier.layers.experts import RoutingSums, by_site, observing, report

E = 3


def _sums(x):
    scalar = jnp.sum(x)
    return RoutingSums(scalar, jnp.full(E, scalar), jnp.arange(E) * scalar, scalar, scalar, scalar)


class Layer(nnx.Module):
    def __init__(self, rngs):
        self.scale = vector(Normal(1.0), (4,), ("embed",), jnp.float32, rngs)

    def __call__(self, x):
        x = x + self.scale[...]
        report(_sums(x))
        return x


class Quiet(Layer):
    def __call__(self, x):
        return x * self.scale[...]


def _run(stack, makers, num_layers=4):
    layers = stack.create(makers, num_layers, nnx.Rngs(params=0))
    graphdef, state = nnx.split(layers)

    def loss(state, x):
        function = lambda layer, index, x, own: (layer(x), index)
        with observing() as seen:
            x, given = stack.apply(nnx.merge(graphdef, state), function, x)
        return sum(jnp.sum(jnp.square(s.probabilities_E)) for s in seen), (x, given, seen)

    return jax.jit(jax.grad(loss, has_aux=True))(state, jnp.ones(4))


def test_reports_are_dropped_where_nobody_observes():
    report(_sums(jnp.ones(2)))
    with observing() as seen:
        report(_sums(jnp.ones(2)))
    report(_sums(jnp.ones(2)))
    assert len(seen) == 1


@pytest.mark.parametrize("remat", [None, FullRemat()])
@pytest.mark.parametrize("kind", [Scanned, Unrolled])
def test_a_stack_carries_out_what_its_layers_report(kind, remat):
    stack = kind() if remat is None else kind(remat)
    _, (x, given, seen) = _run(stack, Layer)
    (sums,) = [by_site(each) for each in seen]
    assert sums.probabilities_E.shape == (4, E)
    assert sums.tokens.shape == (4,)
    assert float(sums.tokens[-1]) == pytest.approx(float(x.sum()), rel=1e-6)
    np.testing.assert_array_equal(given, np.arange(4))


def test_the_derivative_passes_through_what_is_reported():
    found = [jax.tree.leaves(_run(stack, Layer)[0]) for stack in (Scanned(), Unrolled())]
    np.testing.assert_allclose(found[0][0], jnp.stack(found[1]), rtol=1e-5)
    assert float(jnp.abs(found[0][0]).min()) > 0


def test_layers_by_turns_report_each_for_themselves():
    _, (_, given, seen) = _run(Scanned(), [Quiet, Layer], 5)
    assert [by_site(sums).tokens.shape for sums in seen] == [(2,)]
    np.testing.assert_array_equal(given.cycle[1], [1, 3])
    assert int(given.rest[0]) == 4
    _, (_, _, seen) = _run(Scanned(), [Layer, Quiet], 5)
    assert [by_site(sums).tokens.shape for sums in seen] == [(2,), (1,)]


def test_layers_that_share_parameters_report_each_for_themselves():
    _, (_, _, seen) = _run(Shared(2), Layer)
    assert [by_site(sums).choices_E.shape for sums in seen] == [(4, E)]
