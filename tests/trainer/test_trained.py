import jax
import numpy as np
import pytest

from luthier import planner, trainer
from luthier.errors import BadInput
from luthier.program import Weights
from luthier.trainer import can_generate, final_sample, module_of, sample_text


def _where(finished):
    return {"run": finished.directory.name, "root": str(finished.directory.parents[1])}


def test_a_run_evaluates_to_what_it_recorded(finished):
    trained, metrics = trainer.evaluate_run(**_where(finished))
    assert trained.step == 12
    assert metrics == finished.metrics


@pytest.mark.full
def test_the_moving_average_is_another_model(finished):
    _, metrics = trainer.evaluate_run(**_where(finished), weights=Weights.EMA)
    assert metrics["held_out"] != finished.metrics["held_out"]


@pytest.mark.full
def test_an_earlier_checkpoint_can_be_named(finished):
    trained, _ = trainer.evaluate_run(**_where(finished), step=10)
    assert trained.step == 10
    with pytest.raises(BadInput, match=r"no checkpoint 11; it has 10, 12"):
        trainer.load_run(**_where(finished), step=11)


def test_an_unknown_set_is_named_with_those_there_are(finished):
    with pytest.raises(BadInput, match="did you mean held_out"):
        trainer.evaluate_run(**_where(finished), evaluations=["held_ot"])


@pytest.mark.full
def test_sampling_is_reproducible_by_seed(finished):
    options = {"max_new_tokens": 12, "temperature": 1.0, "seed": 3}
    first = trainer.sample_run(**_where(finished), prompts=["To be"], options=options)
    assert first == trainer.sample_run(**_where(finished), prompts=["To be"], options=options)
    other = trainer.sample_run(**_where(finished), prompts=["To be"], options=options | {"seed": 4})
    assert first != other


def test_an_unknown_run_is_one_line(finished):
    with pytest.raises(BadInput, match="no run"):
        trainer.load_run("nothing", root=str(finished.directory.parents[1]))


@pytest.fixture(scope="module")
def made(tiny, tmp_path_factory):
    program = planner.make(tiny(tmp_path_factory.mktemp("runs")), jax.devices()[:1]).program
    return program, program.init(program.values())


@pytest.mark.full
def test_the_module_holds_the_arrays_of_the_state(made):
    program, leaves = made
    module = module_of(program, leaves)
    table = program.named(leaves)["parameters/embedding.table"]
    np.testing.assert_array_equal(module.embedding.table[...], table)


@pytest.mark.full
def test_text_stops_at_the_stop(made):
    program, leaves = made
    options = {"max_new_tokens": 30, "seed": 0}
    (whole,) = sample_text(program, leaves, ["To"], **options)
    stop = whole[3]
    (cut,) = sample_text(program, leaves, ["To"], stop=stop, **options)
    assert cut == whole.partition(stop)[0]


def test_language_models_over_text_can_generate(made):
    program, leaves = made
    assert can_generate(program)
    assert final_sample(program, leaves)


@pytest.mark.full
def test_results_and_loaded_runs_have_the_model_with_the_trained_arrays(finished):
    trained = trainer.load_run(**_where(finished))
    table = trained.program.named(trained.leaves)["parameters/embedding.table"]
    np.testing.assert_array_equal(finished.model.embedding.table[...], table)
    np.testing.assert_array_equal(trained.model.embedding.table[...], table)
    assert trained.model is trained.model
