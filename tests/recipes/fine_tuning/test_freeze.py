import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import optim
from luthier.errors import BadInput
from luthier.recipes import freeze, train_only

NAMES = ("embedding.table", "blocks.attention.query.kernel", "blocks.mlp.up.kernel", "norm.scale")


@pytest.fixture
def experiment():
    return graphs.resolve("configs.lm.quickstart")


def _trained(experiment):
    mask = graphs.build(experiment.training.trainable)
    return {name for name in NAMES if mask(name)}


def test_what_is_frozen_is_not_trained(experiment):
    assert _trained(freeze(experiment, r"^embedding\.")) == set(NAMES[1:])
    assert experiment.training.trainable is None


def test_freezing_twice_freezes_both(experiment):
    twice = freeze(freeze(experiment, r"^embedding\."), r"mlp\.")
    assert _trained(twice) == {NAMES[1], NAMES[3]}


def test_freezing_narrows_what_is_trained(experiment):
    assert _trained(freeze(train_only(experiment, r"^blocks\."), r"mlp\.up")) == {NAMES[1]}
    assert _trained(freeze(train_only(experiment, r"kernel$"), r"^blocks\.mlp")) == {NAMES[1]}


def test_masks_of_ones_own_and_broken_patterns_are_refused(experiment):
    experiment.training.trainable = fdl.Partial(str.islower)
    with pytest.raises(BadInput, match="cannot be narrowed"):
        freeze(experiment, "x")
    for change in (freeze, train_only):
        with pytest.raises(BadInput, match="not a regular expression"):
            change(graphs.resolve("configs.lm.quickstart"), "(")


def test_masks_are_nodes_that_can_be_overridden(experiment):
    frozen = freeze(experiment, "x")
    assert frozen.training.trainable.__fn_or_cls__ is optim.NotMatching
    graphs.validate(frozen)
