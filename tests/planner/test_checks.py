from __future__ import annotations

import dataclasses

import fiddle as fdl
import jax
import jax.numpy as jnp
import pytest

from luthier import data, metrics, planner, study
from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.planner import plan_here, targets

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


def _three_classes():
    """The experiment on digits with images of three classes instead."""
    graph = graphs.resolve("configs.vision.digits")
    for examples in (graph.data, graph.evaluations["held_out"].data):
        images = fdl.Config(jnp.zeros, (120, 8, 8, 1))
        classes = fdl.Config(jnp.zeros, (120,), jnp.int32)
        examples.source = fdl.Config(data.Arrays, images, classes, num_classes=3)
    graph.model.num_classes = 3
    return graph


def test_a_top_k_accuracy_of_k_classes_is_noted_and_selects_nothing():
    graph = _three_classes()
    note = "top_5_accuracy is always 1 with 3 classes"
    assert note in plan_here(graph, targets.read("v5e-1"), level="shapes").notes
    instead = "choose one of: accuracy, loss, nats_per_example"
    selector = fdl.Config(metrics.Selector, "held_out", "top_5_accuracy", "higher")
    graph.checkpoints.keep_best = selector
    with pytest.raises(BadInput) as caught:
        planner.make(graph, jax.devices()[:1])
    (problem,) = caught.value.problems
    assert str(dataclasses.replace(problem, origin="")) == (
        f"checkpoints.keep_best.metric: {note}; {instead}"
    )
    objective = fdl.Config(study.Measured, selector)
    chosen = fdl.Config(
        study.Study,
        name="s",
        base=_three_classes(),
        space=fdl.Config(study.Space, {"optimizer.weight_decay": study.Log(1e-3, 1e-1)}),
        objectives=[objective],
        sampler=study.sampler("random"),
        budget=fdl.Config(study.Budget, trials=2),
    )
    with pytest.raises(BadInput, match=rf"objectives\[0\].metric: {note}; {instead}"):
        study.check_study(chosen, study.Editing())
    graph.model.num_classes = 6  # of which the data has three: the metric may vary
    assert planner.make(graph, jax.devices()[:1])


def test_a_rule_for_an_axis_that_no_parameter_has_is_refused():
    rules = "parallelism.rules.parameters"
    assert problems(f"{rules}.mpl:=tensor", f"{rules}.stages:=()") == [
        f"{rules}.mpl: no parameter has a logical axis 'mpl'; did you mean mlp?",
        f"{rules}.stages: no parameter has a logical axis 'stages'; remove it; the parameters have "
        "embed, head_dim, heads, kv_heads, layers, mlp, vocab",
    ]
    assert problems(f"{rules}.experts=()") == []  # of the default rules, which fit any model
    # A layer of the user may constrain activations by names of its own: noted, not refused.
    rules = "parallelism.rules.activations"
    graph = graphs.apply(graphs.resolve("quickstart"), [f"{rules}.mpl:=tensor"])
    note = f"{rules}.mpl: neither a parameter nor the batch has this axis; did you mean mlp?"
    assert note in plan_here(graph, targets.read("v5e-1"), level="shapes").notes
