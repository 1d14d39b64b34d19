import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.errors import BadInput
from luthier.layers import GatedMlp, Linear, LoraLinear, Normal, RMSNorm
from luthier.layers.experts.dispatch import create_each, grouped
from luthier.layers.parameters import create

E, D = 3, 4


def _experts(template):
    return create_each(template, E, 1, nnx.Rngs(params=0), dim=D)


@pytest.mark.full
@pytest.mark.parametrize("sizes", [(2, 0, 4), (0, 6, 0), (1, 1, 1)])
def test_sorted_rows_meet_their_own_expert(sizes, draw, distance):
    biased = functools.partial(Linear, bias=Normal(1.0))
    experts = _experts(functools.partial(GatedMlp, hidden_dim=5, up=biased, down=biased))
    x_1ND = draw(1, 6, D)
    found = grouped(experts, jnp.array(sizes, jnp.int32))(x_1ND)[0]
    graphdef, state = nnx.split(experts)
    rows = np.repeat(np.arange(E), sizes)
    for row, e in enumerate(rows):
        expert = nnx.merge(graphdef, jax.tree.map(lambda x, e=e: x[e], state))
        assert distance(found[row], expert(x_1ND[:, row : row + 1])[0, 0]) < 1e-6


def test_the_experts_themselves_stay_as_they_are():
    experts = _experts(functools.partial(GatedMlp, hidden_dim=5))
    grouped(experts, jnp.array([1, 1, 1]))
    assert type(experts.up) is Linear


class Normed(GatedMlp):
    def __init__(self, hidden_dim, *, dim, rngs):
        lora = functools.partial(LoraLinear, rank=2)
        super().__init__(hidden_dim, down=lora, dim=dim, rngs=rngs)
        self.norm = create(RMSNorm, dim=dim, dtype=jnp.float32, param_dtype=jnp.float32, rngs=rngs)


@pytest.mark.full
def test_other_parameters_are_refused_all_at_once():
    experts = _experts(functools.partial(Normed, 5))
    with pytest.raises(BadInput) as refused:
        grouped(experts, jnp.array([1, 1, 1]))
    assert [problem.what for problem in refused.value.problems] == [
        "Dropless knows the products of Linear only, and experts have down",
        "Dropless knows the products of Linear only, and experts have norm.scale",
    ]
    assert [problem.remedy for problem in refused.value.problems] == [
        "use Capacity, or Linear for LoraLinear",
        "use Capacity",
    ]
