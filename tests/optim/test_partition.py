import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from luthier import planner
from luthier.errors import BadInput
from luthier.optim import (
    EVERYTHING,
    Constant,
    Matching,
    Part,
    WarmupLinear,
    adamw,
    lion,
    muon,
    partition,
    sgd,
)
from tests.optim.experiments import small_graph

PARAMETERS = {"a.kernel": jnp.ones((2, 3)), "a.bias": jnp.zeros(3), "b.kernel": 2 * jnp.ones(3)}
GRADIENTS = {"a.kernel": jnp.ones((2, 3)), "a.bias": jnp.ones(3), "b.kernel": jnp.ones(3)}


def _two():
    return partition(
        [
            Part("matrices", Matching(r"^a\."), sgd(0.1, clip_norm=None)),
            Part("rest", EVERYTHING, lion(WarmupLinear(0.5, 0, 10), weight_decay=0.0)),
        ]
    )


def test_every_parameter_goes_to_the_first_part_that_holds_it():
    optimizer = _two()
    state = optimizer.init(PARAMETERS)
    for step in range(2):
        updates, state = jax.jit(optimizer.update)(GRADIENTS, state, PARAMETERS)
        assert set(updates) == set(GRADIENTS)
        momentum = 1.0 if step == 0 else 1.9
        np.testing.assert_allclose(updates["a.kernel"], -0.1 * momentum, rtol=1e-6)
        np.testing.assert_allclose(updates["a.bias"], -0.1 * momentum, rtol=1e-6)
        np.testing.assert_allclose(updates["b.kernel"], -0.5 + 0.05 * step, rtol=1e-6)
    assert set(state.stages[1].parts) == {"matrices", "rest"}
    names = {path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(state.stages)
             if hasattr(path[-1], "key")}  # fmt: skip
    assert names == set(PARAMETERS)


@pytest.mark.full
def test_it_is_multi_transform_of_optax():
    parts = {"matrices": optax.adamw(0.1, 0.8, 0.97), "rest": optax.sgd(0.3, 0.5)}
    labels = {"a.kernel": "matrices", "a.bias": "rest", "b.kernel": "matrices"}
    theirs = optax.multi_transform(parts, labels)
    ours = partition(
        [
            Part("biases", Matching("bias$"), sgd(0.3, 0.5)),
            Part(
                "others",
                EVERYTHING,
                adamw(0.1, 0.8, 0.97, weight_decay=1e-4, clip_norm=None),
            ),
        ]
    )
    a = b = PARAMETERS
    a_state, b_state = ours.init(a), theirs.init(b)
    for _ in range(5):
        update, a_state = ours.update(GRADIENTS, a_state, a)
        a = optax.apply_updates(a, update)
        update, b_state = theirs.update(GRADIENTS, b_state, b)
        b = optax.apply_updates(b, update)
    for name in PARAMETERS:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-5)


def test_every_learning_rate_is_logged():
    optimizer = _two()
    assert optimizer.learning_rate == Constant(0.1)
    assert optimizer.learning_rates == {"rest": WarmupLinear(0.5, 0, 10)}
    nested = partition([Part("all", EVERYTHING, muon(0.1, adam_learning_rate=0.2))])
    assert nested.learning_rates == {"all/adam": Constant(0.2)}


def test_the_whole_gradient_can_be_clipped_first():
    part = Part("all", EVERYTHING, sgd(1.0, 0.0))
    optimizer = partition([part], clip_norm=0.5)
    updates, _ = optimizer.update(GRADIENTS, optimizer.init(PARAMETERS), PARAMETERS)
    np.testing.assert_allclose(optax.tree.norm(updates), 0.5, rtol=1e-6)


def test_parameters_that_no_part_takes_are_listed():
    optimizer = partition([Part("kernels", Matching("kernel"), sgd(0.1))])
    with pytest.raises(BadInput, match=r"no part takes a\.bias, c\.bias; widen a mask") as caught:
        optimizer.init(PARAMETERS | {"c.bias": jnp.ones(2)})
    assert len(caught.value.problems) == 1
    assert [p.path for p in optimizer.check(PARAMETERS)] == ["parts"]


def test_a_part_without_parameters_is_reported_with_the_masks_within_parts():
    parts = [
        Part("all", EVERYTHING, sgd(0.1, decay_mask=Matching("nothing"))),
        Part("biases", Matching("bias"), sgd(0.1)),
    ]
    paths = [problem.path for problem in partition(parts).check(PARAMETERS)]
    assert paths == ["parts[0].optimizer.decay_mask", "parts[1].mask"]


def test_parts_have_names_of_their_own():
    part = Part("same", EVERYTHING, sgd(0.1))
    with pytest.raises(BadInput, match="parts are called same, same"):
        partition([part, part])
    with pytest.raises(BadInput, match="no parts"):
        partition([])


PARTS = (
    "luthier.optim.partition([luthier.optim.Part('matrices', luthier.optim.Matching({!r}), "
    "luthier.optim.muon(0.02)), luthier.optim.Part('rest', luthier.optim.Matching({!r}), "
    "luthier.optim.adamw(0.001))])"
)


def test_a_plan_reports_masks_without_parameters():
    with pytest.raises(BadInput) as caught:
        planner.make(small_graph(PARTS.format("attention", "mlpp|norm")), jax.devices()[:1])
    assert "no part takes" in str(caught.value)
    assert "mlp.up.kernel" in str(caught.value)
    graph = small_graph("luthier.optim.adamw(0.1, decay_mask=luthier.optim.Matching('kernle'))")
    with pytest.raises(BadInput, match=r"optimizer\.decay_mask: Matching.*holds no"):
        planner.make(graph, jax.devices()[:1])


@pytest.mark.full
def test_an_experiment_trains_with_parts_and_logs_their_rates():
    plan = planner.make(small_graph(PARTS.format("attention|mlp", "")), jax.devices()[:1])
    names = plan.program.scalar_names
    assert {"learning_rate", "learning_rate/rest"} <= set(names)
    assert any("parts/matrices" in name for name in plan.program.names)
