import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.errors import BadInput
from luthier.layers import Groups, Linear, LoraLinear, MatrixProduct, QuantizedProduct
from luthier.parallel import AxisType, Mesh, Rules, activation_rules, activation_rules_table

SIZES = {
    "inputs": (6,),
    "outputs": (2, 4),
    "input_axes": ("embed",),
    "output_axes": ("heads", "head_dim"),
}


class Doubled(MatrixProduct):
    """A product of one's own."""

    def __call__(self, x_TI, kernel_IO):
        return 2 * super().__call__(x_TI, kernel_IO)


def test_it_is_the_product_to_the_last_bit(draw):
    x_TI, kernel_IO = draw(5, 6), draw(6, 8)
    np.testing.assert_array_equal(MatrixProduct()(x_TI, kernel_IO), x_TI @ kernel_IO)
    kernel_EIO, sizes_E = draw(2, 6, 8), jnp.array([2, 3])
    found = MatrixProduct().grouped(x_TI, kernel_EIO, Groups(sizes_E, active=5))
    np.testing.assert_array_equal(found, jax.lax.ragged_dot(x_TI, kernel_EIO, sizes_E))


@pytest.mark.parametrize("kind", [Linear, LoraLinear])
def test_a_linear_map_multiplies_by_its_product(kind, draw):
    x = draw(3, 5, 6)
    plain, doubled = (
        kind(product=p, **SIZES, rngs=nnx.Rngs(0)) for p in (MatrixProduct(), Doubled())
    )
    np.testing.assert_array_equal(doubled(x), 2 * plain(x))


def test_products_other_than_the_plain_one_are_refused_where_axes_are_explicit(draw):
    linear = Linear(product=QuantizedProduct(), **SIZES, rngs=nnx.Rngs(0))
    mesh = Mesh(axis_type=AxisType.EXPLICIT).arrange(jax.devices()[:2])
    message = "parallelism.mesh.axis_type: QuantizedProduct is for meshes with automatic axes; set "
    with (
        activation_rules(mesh, Rules(activations=activation_rules_table())),
        pytest.raises(BadInput) as raised,
    ):
        jax.eval_shape(linear, draw(2, 5, 6))
    assert str(raised.value) == message + "parallelism.mesh.axis_type=AUTO"
