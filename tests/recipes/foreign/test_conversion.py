import json
import re
import tempfile
from pathlib import Path

import fiddle as fdl
import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from luthier import graph as graphs
from luthier import layers
from luthier.checkpoint import Restoration, Safetensors, Target, foreign
from luthier.errors import BadInput, CheckpointError
from luthier.program import split
from luthier.program.materialize import limits
from luthier.recipes import decoders, encoders
from luthier.recipes.foreign import config_of, model_of

GOLDENS = Path(__file__).parents[1] / "goldens"
SIZES = {"vocab_size": 11, "width": 2, "depth": 3, "tied": False, "pad": 1}


def _targets(model):
    structure, parameters, _ = split(model)
    axes = structure.axes()
    return {
        name: Target(array.shape, array.dtype, None, axes[name][0] == "layers")
        for name, array in parameters.items()
    }


def _random(targets, sizes, seed=0):
    """Return parameters whose padding is zero, as that of trained ones is."""
    rng = np.random.default_rng(seed)
    found = {n: rng.normal(size=t.shape).astype(t.dtype) for n, t in targets.items()}
    found["embedding.table"][sizes["vocab"] :] = 0
    if "unembedding.kernel" in found:
        found["unembedding.kernel"][:, sizes["vocab"] :] = 0
    return found


def _write(folder, graph, model, arrays, **options):
    name, config = config_of(graph)
    tensors = foreign.foreign_tensors(
        foreign.families.named(name),
        arrays,
        {n: target.stacked for n, target in _targets(model).items()},
        limits(model),
    )
    foreign.write(folder, tensors, config=config, metadata={"format": "pt"}, **options)


@pytest.mark.full
@given(
    vocab_size=st.integers(3, 20),
    width=st.integers(1, 3),
    depth=st.integers(1, 5),
    tied=st.booleans(),
    pad=st.sampled_from([1, 8]),
    unrolled=st.booleans(),
    shard_bytes=st.sampled_from([300, 10**9]),
)
@settings(
    max_examples=2,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_what_is_written_comes_back_to_the_last_bit(
    family, families, abstract, unrolled, shard_bytes, **sizes
):
    graph = families[family](**sizes)
    model = abstract(graph)
    arrays = _random(_targets(model), limits(model))
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "out"
        _write(folder, graph, model, arrays, shard_bytes=shard_bytes)
        again = model_of(folder)
        if unrolled:
            again.stack = fdl.Config(layers.Unrolled)
        other = abstract(again)
        with Restoration(Safetensors(str(folder)), _targets(other), limits(other)) as restoration:
            found = {name: np.asarray(array) for name, array in restoration.read().items()}
        # Written once more, from another stack and without padding, the files are the same.
        second = Path(directory) / "second"
        _write(second, again, other, found, shard_bytes=shard_bytes)
        files = sorted(path.name for path in folder.iterdir())
        assert files == sorted(path.name for path in second.iterdir())
        for name in files:
            if name.endswith(".safetensors"):
                assert (folder / name).read_bytes() == (second / name).read_bytes()
    if not unrolled and sizes["pad"] == 1:
        assert set(found) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)


ENCODERS = {
    "bert": encoders.bert(vocab_size=11, dim=8, num_layers=3, num_heads=2, hidden_dim=6),
    "albert": encoders.albert(
        vocab_size=11, embed_dim=4, dim=8, num_layers=4, num_heads=2, hidden_dim=6, num_groups=2
    ),
    "t5": encoders.t5(
        vocab_size=11, dim=8, num_layers=2, num_decoder_layers=3, num_heads=2, hidden_dim=6
    ),
    "t5_gated": encoders.t5_gated(vocab_size=11, dim=8, num_layers=2, num_heads=2, hidden_dim=6),
    "vit": encoders.vit(dim=8, num_layers=2, num_heads=2, hidden_dim=6, image_size=(32, 16)),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_come_back_to_the_last_bit(name, abstract, tmp_path):
    graph = ENCODERS[name]
    assert config_of(graph)[0] == name
    model = abstract(graph)
    rng = np.random.default_rng(0)
    targets = _targets(model)
    arrays = {n: rng.normal(size=t.shape).astype(t.dtype) for n, t in targets.items()}
    _write(tmp_path / "out", graph, model, arrays)
    again = abstract(model_of(tmp_path / "out"))
    source = Safetensors(str(tmp_path / "out"))
    with Restoration(source, _targets(again), limits(again)) as restoration:
        found = {n: np.asarray(array) for n, array in restoration.read().items()}
    assert set(found) == set(arrays)
    for parameter, array in arrays.items():
        np.testing.assert_array_equal(found[parameter], array)


# Those of Pax have no config.json.
OF_OTHERS = [p.stem for p in sorted(GOLDENS.glob("*.npz")) if not p.stem.startswith("pax_")]


@pytest.mark.parametrize("name", OF_OTHERS)
def test_a_config_of_others_gives_a_model_with_their_logits(name, assert_equals_golden):
    with np.load(GOLDENS / f"{name}.npz") as golden:
        config = json.loads(str(golden["config"]))
    model = model_of(config)
    assert_equals_golden(name, model)
    found, written = config_of(model)
    assert config["model_type"] == foreign.families.named(found).model_types[0]
    same = (
        "hidden_size",
        "n_embd",
        "vocab_size",
        "num_hidden_layers",
        "sliding_window",
        "head_dim",
    )
    assert {k: written[k] for k in same if k in written and k in config} == {
        k: config[k] for k in same if k in written and k in config
    }


def test_how_a_model_is_run_and_started_does_not_matter(family, families):
    graph = families[family](**SIZES)
    graph.stack = fdl.Config(layers.Unrolled)
    graph.dtype = graph.param_dtype = jax.numpy.bfloat16
    graph.embedding.table = fdl.Config(layers.Zeros)
    assert config_of(graph)[0] == family


@pytest.mark.parametrize(
    "change",
    [
        "norm.epsilon=0.5",
        "block.mlp.activation=jax.nn.relu",
        "block.attention.rotary.fraction=0.5",
        "block.attention.projection:=luthier.layers.Linear(bias=luthier.layers.Zeros())",
        "unembedding.cap=3.0",
    ],
)
def test_what_no_config_can_say_is_refused_with_the_difference(change, families):
    model = families["llama"](**SIZES)
    for block_norm in ("block.norm",):
        model = graphs.apply(model, [f"{block_norm}:=luthier.layers.RMSNorm()"])
    graph = graphs.apply(model, [change])
    with pytest.raises(BadInput) as caught:
        config_of(graph, "llama")
    assert any(problem.path.startswith("model.") for problem in caught.value.problems)
    assert "--family luthier" in str(caught.value)


def test_the_nearest_family_is_named():
    with pytest.raises(BadInput, match="of no family"):
        config_of(decoders.pax(vocab_size=11, dim=8, num_layers=2, num_heads=2, head_dim=4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "lama"}, "'lama', which belongs to no known family"),
        ({"hidden_size": None, "vocab_size": None}, "no hidden_size"),
        ({"hidden_act": "relu2"}, "hidden_act to 'relu2'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type to 'yarn'"),
    ],
)
def test_a_config_that_is_not_understood_is_refused(change, message, families):
    config = config_of(families["llama"](**SIZES))[1]
    with pytest.raises((BadInput, CheckpointError), match=message) as caught:
        model_of(config | change)
    assert len(caught.value.problems) == sum(value is None for value in change.values()) or 1


def test_old_names_of_rotary_settings_are_understood(families):
    config = config_of(families["llama"](**SIZES))[1]
    del config["rope_parameters"]
    config |= {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    rotary = model_of(config).block.attention.rotary
    assert rotary.base == 500.0
    assert rotary.scaling.factor == 2.0


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(BadInput) as caught:
        model_of(tmp_path)
    assert str(caught.value) == f"{tmp_path} has no config.json; give its folder"


def test_a_family_that_does_not_exist_is_refused_with_the_nearest(families):
    with pytest.raises(CheckpointError, match="no family 'lama'; did you mean llama"):
        config_of(families["llama"](**SIZES), "lama")


def _family_or_refusal(model, name):
    try:
        return config_of(model, name)[0]
    except BadInput as refusal:
        return str(refusal)


def test_every_family_has_a_config_or_the_model_differs_from_it(families):
    model = families["llama"](**SIZES)
    for name in foreign.families.names():
        found = _family_or_refusal(model, name)
        line = f"model: the model is not a {name}; use --family luthier to write luthier's own"
        assert found == name or found.startswith(line)


def test_of_many_differences_the_first_are_shown_and_the_rest_counted(families):
    with pytest.raises(BadInput) as caught:
        config_of(families["gpt2"](**SIZES), "llama")
    first, *shown, last = [problem.what for problem in caught.value.problems]
    assert first == "the model is not a llama"
    assert all(line.endswith(" in a llama") for line in shown)
    assert re.fullmatch(r"and \d+ more differences", last)
