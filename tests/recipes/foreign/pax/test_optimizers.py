import pytest

from luthier import optim
from luthier.recipes.foreign.pax.optimizers import average, optimizer

TRAIN = "task__train__learner__optimizer"


@pytest.fixture
def learner(dump):
    def make(name, **changes):
        found = dump(name, **{f"{TRAIN}__{path}": value for path, value in changes.items()})
        return found.task.get("train").get("learner")

    return make


@pytest.fixture
def alone(node):
    def make(kind, **settings):
        plain = {"learning_rate": 0.1, "lr_schedule": None}
        inner = {"class": f"praxis.optimizers.{kind}", "set": plain | settings}
        return node("Learner", optimizer=inner)

    return make


def test_adam_with_a_cap_on_updates(learner):
    found = optimizer(learner("gpt"))
    assert found.__fn_or_cls__ is optim.capped_adamw
    assert (found.b1, found.b2, found.eps, found.clip_norm) == (0.9, 0.99, 1e-6, 5.0)
    assert (found.max_update_rms, found.weight_decay, found.decay_mask.pattern) == (1.0, 1e-3, "")


def test_gpt3_has_no_cap(learner):
    found = optimizer(learner("c4"))
    assert found.max_update_rms is None
    assert (found.weight_decay, found.clip_norm) == (0.1, 1.0)


def test_adam_as_optax_has_it(learner):
    found = optimizer(learner("gpt", sharded_adam=False, decoupled_weight_decay=0.2))
    assert found.__fn_or_cls__ is optim.adamw
    assert found.weight_decay == 0.0  # Pax leaves it out there


def test_a_decoupled_decay_leaves_norms(learner):
    found = optimizer(learner("gpt", weight_decay=0.0, decoupled_weight_decay=0.2))
    assert found.weight_decay == 0.2
    mask = optim.Matching(found.decay_mask.pattern)
    chosen = [mask(name) for name in ("blocks.mlp.up.kernel", "blocks.mlp_norm.scale", "norm.bias")]
    assert chosen == [True, False, False]


def test_adafactor(alone):
    found = optimizer(
        alone(
            "ShardedAdafactor",
            decay_method="adam",
            decay_adam=0.98,
            beta1=0.9,
            clip_threshold=1.0,
            factored=True,
            epsilon1_grad_sq_reg=1e-30,
            weight_decay=1e-3,
        )
    )
    assert found.__fn_or_cls__ is optim.adafactor
    assert (found.decay.b2, found.momentum, found.least_parameter_rms) == (0.98, 0.9, None)
    assert found.factored_dims.__fn_or_cls__ is optim.LastDims


def test_momentum_and_lion(alone):
    assert optimizer(alone("Sgd", momentum=0.9, nesterov=True)).__fn_or_cls__ is optim.nesterov
    assert optimizer(alone("ShardedSgd", momentum=None)).momentum == 0.0
    assert optimizer(alone("Lion", beta1=0.9, beta2=0.98)).b2 == 0.98


def test_an_unknown_optimizer_is_reported(alone):
    learner = alone("ShardedDistributedShampoo")
    assert optimizer(learner) is None
    (leftover,) = learner.dump.leftovers
    assert str(leftover) == (
        "task.optimizer = ShardedDistributedShampoo (Learner): "
        "supported: Adam, ShardedAdafactor, Lion, Sgd, ShardedSgd; set optimizer"
    )
    assert not leftover.is_essential


def test_the_average_of_parameters(learner):
    assert average(learner("gpt")) is None
    assert average(learner("shared")).decay == 0.99


def test_other_regularizers_are_reported(learner):
    found = learner("gpt", l2_regularizer_weight=0.1, clip_gradient_single_norm_to_value=1.0)
    optimizer(found)
    fields = [one.field for one in found.dump.leftovers]
    assert fields == ["l2_regularizer_weight", "clip_gradient_single_norm_to_value"]
