import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from luthier.layers import AllExperts, Capacity, Dropless, Experts, GatedMlp, TopK
from luthier.parallel import Mesh, Rules, activation_rules, stand_ins_for
from luthier.planner import flops_by_dtype
from luthier.tasks import Flops
from luthier.tasks import count_flops as count

E, K, D, F, B, L = 4, 2, 8, 16, 3, 10


def _jaxpr(dispatch, rows=B):
    layer = Experts(
        E,
        functools.partial(TopK, K),
        functools.partial(GatedMlp, hidden_dim=F),
        dispatch,
        dim=D,
        rngs=nnx.Rngs(params=0),
    )
    graphdef, state = nnx.split(layer)
    return jax.make_jaxpr(lambda s, x: nnx.merge(graphdef, s)(x))(state, jnp.ones((rows, L, D)))


def _flops(dispatch, rows=B):
    return count(_jaxpr(dispatch, rows))


EXPERTS = 3 * 2 * D * F  # of one token in one expert
ROUTER = 2 * D * E * B * L
ACTIVE = EXPERTS * K * B * L + ROUTER


@pytest.mark.parametrize(
    ("dispatch", "idle"),
    [
        (AllExperts(), EXPERTS * (E - K) * B * L),
        (Capacity(1.5), EXPERTS * (E * 8 - K * L) * B),  # ceil(1.5 * 2 * 10 / 4) places
        (Capacity(1.0), 0),
        (Dropless(), EXPERTS * (88 - K * B * L)),  # 11 tiles of 8 places
    ],
)
def test_what_nobody_chose_is_idle(dispatch, idle):
    found = _flops(dispatch)
    # Weights of the choices, one-hot, and weighted sums of the results.
    sums = E * K + E * D if isinstance(dispatch, AllExperts) else K * D
    assert found == Flops(weights=ACTIVE, idle=idle + 2 * B * L * sums)
    assert found.active == ACTIVE


def test_places_that_are_too_few_are_all_active():
    assert _flops(Capacity(0.5)).weights == EXPERTS * E * 3 * B + ROUTER
    assert _flops(Capacity(0.5)).idle == 2 * B * L * K * D  # the weighted sums


@pytest.mark.full
def test_the_gradient_of_grouped_products_costs_twice_the_products():
    x_NI, kernels_EIO, sizes_E = jnp.ones((6, 3)), jnp.ones((4, 3, 5)), jnp.array([1, 2, 3, 0])

    def product(x_NI, kernels_EIO):
        return jnp.square(jax.lax.ragged_dot(x_NI, kernels_EIO, sizes_E)).sum()

    forward = Flops(weights=2 * 6 * 3 * 5)
    assert count(jax.make_jaxpr(product)(x_NI, kernels_EIO)) == forward
    both = jax.make_jaxpr(jax.grad(product, argnums=(0, 1)))(x_NI, kernels_EIO)
    assert count(both) == forward * 3


@pytest.mark.full
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("sizes", [{"expert": 4}, {"expert": 2, "fsdp": 2}, {"fsdp": 4}])
def test_devices_that_split_experts_each_need_a_part(sizes, platform):
    mesh = Mesh(data=1, **sizes).arrange(jax.devices()[:4])
    with activation_rules(mesh, Rules()), stand_ins_for(platform):
        jaxpr = _jaxpr(Dropless(), rows=4)
    found, active = count(jaxpr), _flops(Dropless(), rows=4).active
    assert found.active == active
    # Every device computes the weighted sums of all tokens, but the experts of its own only. The
    # rows of others, which `ragged_dot` skips, count as idle, and not in the roofline.
    sums = 4 * 2 * 4 * L * K * D
    if "expert" in sizes:
        assert sum(flops_by_dtype(jaxpr).values()) <= active + sums
        assert found.idle <= sums or platform == "tpu"


@pytest.mark.full
def test_rounds_that_a_balanced_load_does_not_need_are_not_counted():
    mesh = Mesh(data=1, expert=4).arrange(jax.devices()[:4])
    with activation_rules(mesh, Rules()):
        jaxpr = _jaxpr(Dropless(factor=1.0), rows=16)  # 80 choices of a device, 32 places for each
    assert "unbalanced_only" in jaxpr.pretty_print(name_stack=True)
    assert count(jaxpr).active == _flops(Dropless(), rows=16).active
