import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.errors import BadInput
from luthier.layers import (
    AllExperts,
    Capacity,
    GatedMlp,
    Groups,
    Linear,
    LoraLinear,
    Mlp,
    Normal,
    Ones,
    QuantizedProduct,
    RMSNorm,
    Zeros,
    create,
)
from luthier.layers.experts import RoutedExperts, apply_each, create_each
from luthier.layers.experts.dispatch import GroupedLinear, collect, grouped, inverse, spread

E, D = 3, 4


@pytest.fixture(scope="module")
def experts():
    template = functools.partial(Mlp, hidden_dim=5)
    return create_each(template, E, 2, nnx.Rngs(params=0), dim=D)


def _choice(experts_BLK):
    experts_BLK = jnp.asarray(experts_BLK, jnp.int32)
    weights_BLK = 1 / (1 + jnp.arange(experts_BLK.size, dtype=jnp.float32))
    zeros_BLE = jnp.zeros((*experts_BLK.shape[:2], E))
    return RoutedExperts(experts_BLK, weights_BLK.reshape(experts_BLK.shape), zeros_BLE, zeros_BLE)


def _expected(experts, x_BLD, choice, kept_BLK):
    """Apply every expert that is chosen and kept, one choice at a time."""
    graphdef, state = nnx.split(experts)
    y_BLD = np.zeros(x_BLD.shape)
    for b, l, k in np.argwhere(kept_BLK):
        number = int(choice.experts_BLK[b, l, k])
        expert = nnx.merge(graphdef, jax.tree.map(lambda x, e=number: x[e], state))
        y_BLD[b, l] += choice.weights_BLK[b, l, k] * expert(x_BLD[b : b + 1, l : l + 1])[0, 0]
    return y_BLD


# Row 0: expert 0 is wanted by four tokens. Row 1: a token of padding, of expert 3, which is none.
CHOSEN = [[[0, 1], [0, 2], [1, 0], [0, 1]], [[2, 1], [3, 3], [2, 0], [1, 2]]]


@pytest.mark.full
def test_all_experts_weigh_the_chosen(experts, draw):
    x_BLD, choice = draw(2, 4, D), _choice(CHOSEN)
    y_BLD, dropped = jax.jit(AllExperts())(experts, x_BLD, choice)
    expected = _expected(experts, x_BLD, choice, np.array(CHOSEN) < E)
    np.testing.assert_allclose(y_BLD, expected, atol=1e-6)
    assert float(dropped) == 0


@pytest.mark.parametrize(
    ("factor", "places", "kept"),
    [
        (1.5, 4, np.array(CHOSEN) < E),
        # ceil(0.75 * 2 * 4 / 3) = 2 places: first choices before second ones, then in order.
        (
            0.75,
            2,
            [[[1, 1], [1, 1], [1, 0], [0, 0]], [[1, 1], [0, 0], [1, 1], [1, 0]]],
        ),
        (0.1, 1, [[[1, 0], [0, 1], [1, 0], [0, 0]], [[1, 0], [0, 0], [0, 1], [1, 0]]]),
    ],
)
def test_capacity_drops_what_finds_no_place(experts, draw, factor, places, kept):
    x_BLD, choice, kept_BLK = draw(2, 4, D), _choice(CHOSEN), np.array(kept, bool)
    y_BLD, dropped = jax.jit(Capacity(factor))(experts, x_BLD, choice)
    np.testing.assert_allclose(y_BLD, _expected(experts, x_BLD, choice, kept_BLK), atol=1e-6)
    assert float(dropped) == (np.array(CHOSEN) < E).sum() - kept_BLK.sum()
    for row in range(2):
        loads = np.bincount(np.array(CHOSEN)[row][kept_BLK[row]], minlength=E)
        assert loads.max() <= places


def test_a_row_does_not_depend_on_other_rows(experts, draw):
    x_BLD, choice = draw(2, 4, D), _choice(CHOSEN)
    dispatch = jax.jit(Capacity(0.75))
    both, _ = dispatch(experts, x_BLD, choice)
    alone, _ = dispatch(experts, x_BLD[1:], jax.tree.map(lambda x: x[1:], choice))
    np.testing.assert_allclose(both[1:], alone, atol=1e-6)


@pytest.mark.full
def test_a_traced_factor_is_rejected(experts, draw):
    choice = _choice(CHOSEN)
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.jit(lambda factor: Capacity(factor)(experts, draw(2, 4, D), choice))(1.0)


# Moving tokens to places and back.

# Five tokens of two choices each, seven places: choice 0 of token 1 and both of token 4 have none,
# and places 2 and 5 stay empty; a token may have two places.
PLACES_TK = np.array([[3, 0], [7, 1], [6, 4], [7, 7], [7, 7]], np.int32)
SOURCES_M = np.array([1, 3, 10, 0, 5, 10, 4], np.int32)


def test_the_inverse_of_the_places_are_the_sources():
    np.testing.assert_array_equal(inverse(jnp.asarray(PLACES_TK), 7), SOURCES_M)


def test_places_hold_their_tokens_and_choices_get_what_is_there(draw):
    x_TD, y_MD = draw(5, 3), draw(7, 3)
    spread_MD = np.zeros((7, 3), np.float32)
    collected_TKD = np.zeros((5, 2, 3), np.float32)
    for t, k in np.ndindex(5, 2):
        if PLACES_TK[t, k] < 7:
            spread_MD[PLACES_TK[t, k]] = x_TD[t]
            collected_TKD[t, k] = y_MD[PLACES_TK[t, k]]
    np.testing.assert_array_equal(spread(x_TD, SOURCES_M, PLACES_TK), spread_MD)
    np.testing.assert_array_equal(collect(y_MD, SOURCES_M, PLACES_TK), collected_TKD)


@pytest.mark.parametrize(("move", "size"), [(spread, 5), (collect, 7)])
def test_the_derivative_is_that_of_a_gather(move, size, draw, distance):
    array, rows = draw(size, 3), SOURCES_M // 2 if move is spread else PLACES_TK

    def gathered(array):
        return array.at[rows].get(mode="fill", fill_value=0)

    def loss(function, array):
        return jnp.sum(jnp.sin(function(array)) * jnp.arange(3.0))

    found = jax.grad(lambda x: loss(lambda x: move(x, SOURCES_M, PLACES_TK), x))(array)
    assert distance(found, jax.grad(lambda x: loss(gathered, x))(array)) < 1e-6


def test_what_is_not_finite_at_an_empty_place_goes_nowhere():
    y_MD = jnp.ones((7, 1)).at[jnp.array([2, 5])].set(jnp.nan)
    assert np.isfinite(collect(y_MD, SOURCES_M, PLACES_TK)).all()
    gradient = jax.vjp(lambda x: spread(x, SOURCES_M, PLACES_TK), jnp.ones((5, 1)))[1](y_MD)[0]
    assert np.isfinite(gradient).all()


# Experts as one module with a leading axis.

BIASED = functools.partial(Linear, bias=Zeros())


def _gated_experts(num=3):
    template = functools.partial(GatedMlp, hidden_dim=5, down=BIASED)
    return create_each(template, num, 2, nnx.Rngs(params=0), dim=4)


def test_parameters_have_an_axis_of_experts_and_know_their_active_share():
    experts = _gated_experts()
    assert experts.up.kernel.shape == (3, 4, 5)
    assert experts.down.bias.shape == (3, 4)
    metadata_by_name = {n: v.get_metadata() for (n, *_), v in nnx.to_flat_state(nnx.state(experts))}
    assert metadata_by_name["up"]["logical_axes"] == ("experts", "embed", "mlp")
    assert metadata_by_name["up"]["num_inputs"] == 1
    assert {metadata["active_share"] for metadata in metadata_by_name.values()} == {2 / 3}


def test_every_expert_has_a_draw_of_its_own_which_others_do_not_change():
    few, many = _gated_experts(2).up.kernel[...], _gated_experts(3).up.kernel[...]
    np.testing.assert_array_equal(few, many[:2])
    assert not np.array_equal(many[0], many[1])


def test_initializers_see_the_matrix_of_one_expert():
    kernel = create_each(
        functools.partial(GatedMlp, hidden_dim=64), 64, 1, nnx.Rngs(params=0), dim=256
    ).up.kernel[...]
    assert float(jnp.std(kernel)) == pytest.approx(1 / 16, rel=0.01)


def test_each_expert_maps_its_own_or_all_map_the_same(draw, distance):
    experts, own, shared = _gated_experts(), draw(3, 2, 6, 4), draw(2, 6, 4)
    graphdef, state = nnx.split(experts)
    alone = [nnx.merge(graphdef, jax.tree.map(lambda x, e=e: x[e], state)) for e in range(3)]
    expected = jnp.stack([expert(x) for expert, x in zip(alone, own, strict=True)])
    assert distance(apply_each(experts, own), expected) < 1e-6
    expected = jnp.stack([expert(shared) for expert in alone])
    assert distance(apply_each(experts, shared, same=True), expected) < 1e-6


# Products of groups of rows.


def _experts_of(template):
    return create_each(template, E, 1, nnx.Rngs(params=0), dim=D)


@pytest.mark.full
@pytest.mark.parametrize("sizes", [(2, 0, 4), (0, 6, 0), (1, 1, 1)])
def test_sorted_rows_meet_their_own_expert(sizes, draw, distance):
    biased = functools.partial(Linear, bias=Normal(1.0))
    experts = _experts_of(functools.partial(GatedMlp, hidden_dim=5, up=biased, down=biased))
    x_1ND = draw(1, 6, D)
    found = grouped(experts, Groups(jnp.array(sizes, jnp.int32), sum(sizes)))(x_1ND)[0]
    graphdef, state = nnx.split(experts)
    rows = np.repeat(np.arange(E), sizes)
    for row, e in enumerate(rows):
        expert = nnx.merge(graphdef, jax.tree.map(lambda x, e=e: x[e], state))
        assert distance(found[row], expert(x_1ND[:, row : row + 1])[0, 0]) < 1e-6


def test_the_experts_themselves_stay_as_they_are():
    experts = _experts_of(functools.partial(GatedMlp, hidden_dim=5))
    grouped(experts, Groups(jnp.array([1, 1, 1]), 3))
    assert type(experts.up) is Linear


class Normed(GatedMlp):
    def __init__(self, hidden_dim, *, dim, rngs):
        lora = functools.partial(LoraLinear, rank=2)
        super().__init__(hidden_dim, down=lora, dim=dim, rngs=rngs)
        self.norm = create(RMSNorm, dim=dim, dtype=jnp.float32, param_dtype=jnp.float32, rngs=rngs)


@pytest.mark.full
def test_other_parameters_are_refused_all_at_once():
    experts = _experts_of(functools.partial(Normed, 5))
    with pytest.raises(BadInput) as refused:
        grouped(experts, Groups(jnp.array([1, 1, 1]), 3))
    assert [problem.what for problem in refused.value.problems] == [
        "Dropless knows the products of Linear only, and experts have down",
        "Dropless knows the products of Linear only, and experts have norm.scale",
    ]
    assert [problem.remedy for problem in refused.value.problems] == [
        "use Capacity, or Linear for LoraLinear",
        "use Capacity",
    ]


def test_quantized_grouped_maps_leave_the_bias_alone(draw):
    sizes = {"inputs": (6,), "outputs": (4,), "input_axes": ("embed",), "output_axes": ("mlp",)}
    linear = Linear(bias=Ones(), product=QuantizedProduct(), **sizes, rngs=nnx.Rngs(0))
    linear.kernel.set_value(draw(2, 6, 4))
    linear.bias.set_value(draw(2, 4))
    found = GroupedLinear(linear, Groups(jnp.array([2, 3]), 5))(jnp.zeros((1, 5, 6)))[0]
    np.testing.assert_array_equal(found, linear.bias[...][np.array([0, 0, 1, 1, 1])])
