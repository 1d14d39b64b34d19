"""Parameters are counted by abstract evaluation, for any number of devices, on none."""

import inspect
import json
from pathlib import Path

import fiddle as fdl
import jax
import pytest

from luthier import graph as graphs
from luthier.cli import find_experiments, main
from luthier.errors import ValidationError
from luthier.planner import count_parameters, model_parameters
from luthier.recipes import decoders, encoders, vision

CONFIGS = Path(__file__).parents[2] / "configs"

# As counted in the published weights; active parameters as the papers of the models with experts.
PUBLISHED = {
    "llama_7b": 6_738_415_616,
    "llama31_405b": 405_853_388_800,
    "gpt2_small": 124_439_808,
    "mixtral_8x7b": 46_702_792_704,
    "qwen3_30b_a3b": 30_532_122_624,
    "t5_small": 60_506_624,
    "vit_b16": 86_567_656,
    "resnet50": 25_557_032,
}
ACTIVE = {"mixtral_8x7b": 12.9e9, "qwen3_30b_a3b": 3.3e9}


def recipes():
    """Return every recipe of a model that needs no argument, by name."""
    found = {}
    for package in (decoders, encoders, vision):
        for name in getattr(package, "__all__", dir(package)):
            recipe = getattr(package, name)
            if not inspect.isfunction(recipe):
                continue
            arguments = inspect.signature(recipe).parameters.values()
            if all(argument.default is not argument.empty for argument in arguments):
                found[name] = recipe
    return found


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_are_those_of_the_published_weights(name):
    counts = count_parameters(model_parameters(recipes()[name]()))
    assert counts.total == sum(counts.by_part.values()) == PUBLISHED[name]
    if name in ACTIVE:
        assert counts.active == pytest.approx(ACTIVE[name], rel=0.02)
    else:
        assert counts.active == counts.total


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(set(recipes()) - set(PUBLISHED)))
def test_every_recipe_is_counted(name):
    counts = count_parameters(model_parameters(recipes()[name]()))
    assert counts.total == counts.trained > 1e6
    assert 0 < counts.active <= counts.total
    assert 0 <= counts.embedding < counts.total


@pytest.mark.full
@pytest.mark.parametrize(
    "reference", [e.reference for e in find_experiments(CONFIGS) if not e.arguments]
)
def test_every_shipped_experiment_is_counted_without_its_devices(reference):
    counts = count_parameters(model_parameters(graphs.resolve(reference)))
    assert counts.total == sum(counts.by_part.values()) > 1e3


def test_a_model_for_hundreds_of_devices_is_shown_on_one(capsys):
    assert main(["show", "configs.pax.gpt3", "--params", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert 1.7e11 < report["scalars"] == report["trained_scalars"] < 1.8e11
    assert {parameter["spec"] for parameter in report["parameters"]} == {""}
    scalars = report["scalars"]
    assert report["by_dtype"] == {"float32": {"count": scalars, "bytes": 4 * scalars}}


@pytest.mark.parametrize("reference", ["decoders:mixtral_8x7b", "encoders:t5_small"])
def test_a_recipe_is_shown_by_its_name(reference, capsys):
    assert main(["show", f"luthier.recipes.{reference}", "--params"]) == 0
    *_, parts, vocabulary, total = capsys.readouterr().out.splitlines()
    assert "%)" in parts
    assert vocabulary.startswith("with a dimension for the vocabulary: ")
    assert f"{PUBLISHED[reference.partition(':')[2]]:,} scalars" in total


def test_frozen_parameters_and_embeddings_are_counted_apart():
    graph = graphs.resolve("configs.lm.quickstart")
    graph = graphs.apply(graph, ["fiddler:lora(rank=2)"], shelves=("luthier.recipes",))
    found = model_parameters(graph)
    counts = count_parameters(found)
    assert 0 < counts.trained < counts.total
    assert counts.trained == sum(p.scalars for p in found if "lora" in p.name)
    table = next(p for p in found if p.name == "embedding.table")
    assert counts.embedding == counts.by_part["embedding"] == table.scalars


def test_no_array_is_made():
    before = len(jax.live_arrays())
    model_parameters(decoders.llama_7b())
    assert len(jax.live_arrays()) == before


def test_a_part_that_is_no_model_is_refused_in_one_line():
    optimizer = graphs.resolve("configs.lm.quickstart").optimizer
    with pytest.raises(ValidationError, match="is neither an experiment nor a model; give an exp"):
        model_parameters(fdl.cast(fdl.Config, optimizer))
