"""No name of ours claims a size that the count of its parameters contradicts."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import re
from pathlib import Path

import jax
import pytest
from flax import nnx

from luthier import graph as graphs
from luthier import recipes
from luthier.cli import find_experiments as find
from luthier.planner import claimed, contradiction

CONFIGS = Path(__file__).parents[2] / "configs"


def named_recipes() -> dict[str, object]:
    """Every recipe whose name claims a size and that needs no argument."""
    found = {}
    for place in pkgutil.walk_packages(recipes.__path__, f"{recipes.__name__}."):
        module = importlib.import_module(place.name)
        for name, recipe in inspect.getmembers(module, inspect.isfunction):
            if recipe.__module__ == place.name and claimed(name):
                found[f"{place.name}.{name}"] = recipe
    return found


def parameters(template) -> int:
    """Count the scalars of a model, without making an array."""
    model = nnx.eval_shape(lambda: graphs.build(template)(rngs=nnx.Rngs(0)))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


@pytest.mark.parametrize("recipe", sorted(named_recipes().items()), ids=lambda item: item[0])
def test_a_recipe_has_the_size_of_its_name(recipe):
    name, make = recipe
    assert contradiction(name.rpartition(".")[2], parameters(make())) == ""


# Variants of Pax's recipes are counted by tests of their own.
EXPERIMENTS = [
    pytest.param(
        listed.reference,
        marks=pytest.mark.slow if ".pax." in listed.reference and ":" in listed.reference else (),
    )
    for listed in find(CONFIGS)
    if not listed.arguments
]


COUNTED = {
    listed.reference: listed.parameters
    for listed in find(CONFIGS)
    if re.fullmatch(r"[\d,]+", listed.parameters) and not listed.arguments
}


def test_headers_of_small_experiments_state_the_number_of_parameters():
    assert len(COUNTED) >= 18


@pytest.mark.parametrize("reference", COUNTED)
def test_the_number_of_parameters_in_a_header_is_right(reference):
    assert f"{parameters(graphs.resolve(reference).model):,}" == COUNTED[reference]


@pytest.mark.parametrize("reference", EXPERIMENTS)
def test_an_experiment_has_the_size_of_its_name(reference):
    graph = graphs.resolve(reference)
    names = [reference.rpartition(".")[2].replace(":", " "), graphs.evaluate(graph.name)]
    if any(map(claimed, names)):
        assert [contradiction(name, parameters(graph.model)) for name in names] == ["", ""]
