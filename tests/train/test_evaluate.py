import jax
import numpy as np
import pytest

from luthier import plan as plans
from luthier.metrics import NATS_PER_TOKEN, PERPLEXITY
from luthier.train.evaluate import Evaluator


@pytest.fixture(scope="module")
def program(tiny, tmp_path_factory):
    return plans.make(tiny(tmp_path_factory.mktemp("runs")), jax.devices()[:1]).program


def _evaluate(program, batch_size, num_batches=None):
    import dataclasses

    evaluation = program.experiment.evaluations["held_out"]
    evaluation = dataclasses.replace(evaluation, global_batch_size=batch_size)
    values = program.values()
    return Evaluator(program, evaluation, "evaluations.held_out")(
        values, program.init(values), num_batches
    )


def test_every_row_counts_once_whatever_the_batch(program):
    """The last batch is padded: padding must count nothing."""
    sizes = {size: _evaluate(program, size) for size in (8, 7, 64)}
    for metric, value in sizes[8].items():
        for other in (sizes[7], sizes[64]):
            pair = other[metric], value
            if metric is PERPLEXITY:  # the exponential would amplify the rounding of the nats
                pair = np.log(pair)
            np.testing.assert_allclose(*pair, rtol=1e-6, err_msg=metric.name)


def test_fewer_batches_look_at_less(program):
    assert _evaluate(program, 8, 1)[NATS_PER_TOKEN] != _evaluate(program, 8)[NATS_PER_TOKEN]


def test_an_untrained_model_is_near_the_uniform_entropy(program):
    assert _evaluate(program, 8)[NATS_PER_TOKEN] == pytest.approx(np.log(258), abs=0.3)
