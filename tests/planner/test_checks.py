from __future__ import annotations

import jax
import pytest

from luthier import graph as graphs
from luthier import planner
from luthier.errors import BadInput

REMAT = "model.stack.remat=luthier.layers.SaveNamed"
STOP = "training.early_stopping=luthier.program.EarlyStopping"


def problems(*overrides, reference="configs.lm.quickstart") -> list[str]:
    graph = graphs.apply(graphs.resolve(reference), list(overrides))
    try:
        graphs.validate(graph)
        planner.make(graph, jax.devices()[:1])
    except BadInput as error:
        return [str(p).replace(f" [set by {p.origin}]", "") for p in error.problems]
    return []


@pytest.mark.full
def test_a_name_that_claims_another_size_is_refused():
    assert problems("name=shakespeare_1b") == [
        "name: 'shakespeare_1b' says 1b, but the model has 821,376 parameters; "
        "change the name or the model"
    ]
    assert problems("name=shakespeare_0.8m") == []


@pytest.mark.full
def test_residuals_that_no_layer_has_are_refused():
    stack = "model.stack=luthier.layers.Scanned()"
    assert problems(stack, f"{REMAT}(names=['qurey', 'key'])") == [
        "model.stack.remat.names: no layer of the model has 'qurey'; did you mean query?"
    ]
    assert problems(stack, f"{REMAT}(names=['query', 'key'])") == []


def test_early_stopping_watches_what_is_evaluated_on_the_way():
    stop = f"{STOP}(metric=luthier.metrics.Selector('held_out', 'loss'), patience=2)"
    assert problems(stop) == []
    assert problems(
        stop, "evaluations.held_out.every=None", "reset:evaluations.held_out.num_batches"
    ) == [
        "training.early_stopping: can never stop anything: held_out is evaluated at the end only; "
        "set evaluations.held_out.every"
    ]


def test_a_model_needs_all_classes_of_the_data():
    assert problems("model.num_classes=9", reference="configs.vision.digits") == [
        "model.num_classes: 9 is smaller than the data's 10 classes; set model.num_classes=10"
    ]
