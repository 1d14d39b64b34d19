"""The first words that people type, and what they are answered."""

from __future__ import annotations

import dataclasses
import pathlib

import hypothesis
import jax.numpy as jnp
import pytest
from hypothesis import strategies as st

from luthier import data
from luthier import graph as graphs
from luthier.errors import BadInput, OverrideError

FIRST_WORDS = pathlib.Path(__file__).with_name("first_words.txt").read_text().splitlines()
# Values that the settings of these names take; 2 for all others.
VALUES = {
    "model.dtype": "bf16",
    "model.param_dtype": "bf16",
    "model.stack.remat": "FullRemat()",
    "model.block.mlp.activation": "jax.nn.relu",
    "data.source": "Shakespeare()",
    "data.tokenizer": "Bytes()",
    "records.directory": "out",
    "records.wandb.project": "mine",
    "name": "mine",
    "restore": "'run:mine'",
    "optimizer.b1": "0.8",
    "optimizer.b2": "0.8",
    "parallelism.rules.activations.residual_length": "[tensor]",
}


@pytest.fixture(scope="module")
def quickstart():
    return graphs.resolve("configs.lm.quickstart")


def hints(graph, word):
    """Return what is suggested for a word that cannot be applied, as whole words."""
    with pytest.raises(OverrideError) as caught:
        graphs.apply(graph, [word])
    (problem,) = caught.value.problems
    value = word[word.index("=") :]
    return [near if "=" in near else near + value for near in problem.nearest]


@pytest.mark.parametrize("line", FIRST_WORDS)
def test_first_words_lead_to_the_setting_and_the_hint_works(quickstart, line):
    meant, names = line.split(": ")
    value = VALUES.get(meant, "2")
    expected = meant if "=" in meant else f"{meant}={value}"
    for name in names.split():
        assert graphs.is_alias(name)
        assert hints(quickstart, f"{name}={value}")[0] == expected, name
    graphs.apply(quickstart, [expected])


def test_there_are_enough_of_them():
    assert sum(len(line.split(": ")[1].split()) for line in FIRST_WORDS) >= 150


def test_a_name_below_a_setting_that_exists(quickstart):
    assert hints(quickstart, "optimizer.lr=1e-3") == ["optimizer.learning_rate.peak=1e-3"]
    assert hints(quickstart, "model.n_heads=2") == ["model.block.attention.num_heads=2"]


def test_a_value_that_the_place_does_not_take(quickstart):
    expected = ["model.block.dropout=Dropout(0.1)"]
    assert hints(quickstart, "model.block.dropout=0.1") == expected
    graphs.apply(quickstart, expected)
    assert hints(quickstart, "optimizer.eps=${optimizer.b1}") == ["optimizer.eps=ref:optimizer.b1"]


def test_a_name_of_a_layer_and_of_a_number_is_followed_to_the_layer(quickstart):
    """`any:dropout` matches dropout layers, and the probabilities of attention cores."""
    (hint,) = hints(quickstart, "any:dropout=0.1")
    assert hint == "model.block.dropout=Dropout(0.1)"
    changed = graphs.apply(quickstart, [hint])
    assert graphs.get(changed, "model.block.dropout.rate") == 0.1


def test_a_recipe_is_called(quickstart):
    with pytest.raises(OverrideError, match=r"for a node, write sgd\(learning_rate=\.\.\.\)"):
        graphs.apply(quickstart, ["optimizer=sgd"])
    graphs.apply(quickstart, ["optimizer=sgd(learning_rate=Constant(0.1))"])


def test_a_key_is_added_as_in_hydra(quickstart):
    added = graphs.apply(
        quickstart, ["+parallelism.rules.parameters.mine=[fsdp]", "++data.length=64"]
    )
    assert tuple(added.parallelism.rules.parameters["mine"]) == ("fsdp",)
    # A shared value stays shared.
    assert graphs.get(added, "evaluations.held_out.data.length") is added.data.length
    with pytest.raises(OverrideError, match=r"is a WarmupCosine node, which 0.0003 cannot replace"):
        graphs.apply(quickstart, ["++optimizer.learning_rate=3e-4"])


def make_data() -> data.Packed:
    """A function of the user's that makes what a protocol asks for."""


def test_a_function_where_a_protocol_is_wanted_is_called(quickstart):
    with pytest.raises(
        OverrideError, match=r"make_data is not .*; for a node, write make_data\(\)"
    ):
        graphs.apply(quickstart, [("data", make_data)])


PATHS = (
    *("model.num_layers", "model.dim", "optimizer.b2", "optimizer.weight_decay", "training.steps"),
    *("optimizer.learning_rate.peak", "model.block.attention.num_heads", "data.length", "seed"),
    *("checkpoints.every.count", "records.console.width", "parallelism.mesh.fsdp"),
)


@hypothesis.given(
    path=st.sampled_from(PATHS),
    edit=st.tuples(st.integers(0, 40), st.sampled_from(["", "x", "_", "s", "."])),
    value=st.sampled_from(["2", "0.5", "None", "True", "mine", "[1, 2]"]),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_every_hint_is_accepted_where_one_is(quickstart, path, edit, value):
    place = edit[0] % len(path)
    word = f"{path[:place]}{edit[1]}{path[place + 1 :]}={value}"
    try:
        graphs.apply(quickstart, [word])
    except OverrideError as error:
        (problem,) = error.problems
    else:
        return
    tried = []
    for near in problem.nearest:
        try:
            graphs.apply(quickstart, [near if "=" in near else f"{near}={value}"])
            tried.append(True)
        except OverrideError:
            tried.append(False)
    assert all(tried) or not any(tried), (word, problem.nearest)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("training.steps=training.steps*2", "training.steps*=2"),
        ("data.length=2*model.num_layers", "data.length=ref:2*model.num_layers"),
        ("optimizer.clip_norm=none", "optimizer.clip_norm=None"),
        (
            "optimizer=optax.adam(1e-3)",
            "optimizer=luthier.optim.assemble([optax.scale_by_adam()], 1e-3)",
        ),
    ],
)
def test_values_as_a_program_or_yaml_writes_them(quickstart, word, meant):
    (hint,) = hints(quickstart, word)
    assert hint == meant
    graphs.apply(quickstart, [meant])


@pytest.mark.parametrize(
    ("word", "meant"), [("precision=bf16", "bf16"), ("parallelism=fsdp", "fsdp")]
)
def test_the_name_of_a_fiddler_is_not_a_value(quickstart, word, meant):
    shelves = ("luthier.recipes",)
    with pytest.raises(OverrideError, match=rf"did you mean fiddler:{meant}\?"):
        graphs.apply(quickstart, [word], shelves=shelves)
    graphs.apply(quickstart, [f"fiddler:{meant}"], shelves=shelves)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["training.steps/=2"], "write training.steps*=0.5"),
        (["evaluations.held_out=null"], "to take it out, write ~evaluations.held_out"),
        (
            ["optimizer.b2=0.9,0.8"],
            "to try each, write `luthier sweep REF --space 'optimizer.b2=choice(0.9,0.8)'`",
        ),
        (
            ["optimizer=lion(1e-4)", "optimizer.eps=1e-3"],
            "optimizer has learning_rate, b1, b2, weight_decay, decay_mask, clip_norm",
        ),
        (["name=${oc.env:USER}"], "resolvers of Hydra are not run here: write the value"),
        (
            ["evaluations.b:=Evaluation(data=alias:data)"],
            "inside of a call write $PATH for a value; share a node afterwards, FIELD=alias:PATH",
        ),
    ],
)
def test_what_cannot_be_meant_gets_a_remedy(quickstart, words, remedy):
    with pytest.raises(OverrideError) as caught:
        graphs.apply(quickstart, words)
    (problem,) = caught.value.problems
    assert (problem.remedy, list(problem.nearest)) == (remedy, [])


def test_dtypes_may_be_quoted_and_keys_be_in_brackets(quickstart):
    changed = graphs.apply(quickstart, ['model.dtype="bfloat16"', "evaluations[*].every.count=7"])
    assert changed.model.dtype is jnp.bfloat16
    assert changed.evaluations["held_out"].every.count == 7


@pytest.mark.parametrize(
    "word",
    [
        *("fiddler:foo", "class:Foo.x=1", "optimizer=3", "optimizer.learning_rate=abc"),
        *("optimizer.learning_rate=None", "records.wandb=True", "model.block.mlp.up.biass=1"),
        *("model.block.mlp=Nothing()", "nothing=3", "training.steps=", "model.dim=12.5"),
        *("model.block.attention.num_heads=5", "training.global_batch_size=x"),
    ],
)
def test_the_answer_to_a_first_mistake_is_short(quickstart, word):
    with pytest.raises(BadInput) as caught:
        graphs.validate(graphs.apply(quickstart, [word]))
    for problem in caught.value.problems:
        assert len(str(dataclasses.replace(problem, origin=""))) <= 200
