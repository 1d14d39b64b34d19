import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import models
from luthier.errors import BadInput
from luthier.recipes import decoders, scale_depth, scale_length, scale_width
from luthier.recipes.scale import GraphSizes

QUICKSTART = "configs.lm.quickstart"


def _changes(before, after):
    return {change.path: (change.before, change.after) for change in graphs.diff(before, after)}


def test_width_keeps_heads_whole_and_their_proportion():
    graph = graphs.resolve(QUICKSTART)
    before = graphs.to_json(graph)
    assert _changes(graph, scale_width(graph, 1.5)) == {
        "model.dim": (128, 192),
        "model.block.attention.num_heads": (4, 6),
        "model.block.attention.num_kv_heads": (2, 3),
        "model.block.mlp.hidden_dim": (384, 576),
    }
    assert graphs.to_json(graph) == before, "the original is untouched"


def test_depth_changes_nothing_else():
    graph = graphs.resolve(QUICKSTART)
    assert _changes(graph, scale_depth(graph, 0.5)) == {"model.num_layers": (4, 2)}


def test_a_width_that_is_a_shared_value_changes_once_and_what_follows_it_follows():
    graph = graphs.resolve("configs.lm.families:gemma")
    changed = scale_width(graph, 2.0)
    assert graphs.is_value_node(changed.model.dim)
    assert graphs.get(changed, "model.embedding.scale").left is changed.model.dim
    assert len([c for c in graphs.diff(graph, changed) if c.path.startswith("model.dim")]) == 1
    assert graphs.evaluate(changed.model.dim) == 256
    kinds = [graphs.get(changed, f"model.block[{i}].attention.num_heads") for i in range(3)]
    assert kinds[0] is kinds[1] is kinds[2], "sharing is kept"
    assert graphs.evaluate(graphs.get(changed, "model.block[0].attention.head_dim")) == 32


def test_half_as_wide_again_is_the_same():
    graph = graphs.resolve(QUICKSTART)
    assert graphs.equal(scale_width(scale_width(graph, 2.0), 0.5), graph)
    assert graphs.equal(scale_depth(scale_depth(graph, 2.0), 0.5), graph)
    assert graphs.equal(scale_width(graph, 1.0), graph)


def test_a_single_key_and_value_head_stays_one():
    model = decoders.gemma3(
        vocab_size=8,
        dim=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=1,
        head_dim=16,
        hidden_dim=128,
        query_scalar=16,
        locals_per_global=1,
        window=4,
    )
    changed = scale_width(model, 1.5)
    attention = changed.block[0].attention
    assert graphs.evaluate(attention.num_heads) == 6
    assert graphs.evaluate(attention.num_kv_heads) == 1
    assert graphs.evaluate(changed.dim) == 96


def test_without_heads_widths_stay_even():
    graph = graphs.resolve("configs.vision.digits:resnet")
    changed = scale_depth(scale_width(graph, 1.5), 2.0)
    assert _changes(graph, changed) == {
        "model.width": (16, 24),
        "model.stage_sizes": ((1, 1), (2, 2)),
    }
    series = scale_width(graphs.resolve("configs.series.ucr"), 2.0)
    assert series.model.block.attention.num_states == 32


def test_both_stacks_of_an_encoder_decoder_grow():
    graph = graphs.resolve("configs.seq2seq.translation")
    assert _changes(graph, scale_depth(graph, 2.0)) == {
        "model.encoder.num_layers": (2, 4),
        "model.decoder.num_layers": (2, 4),
    }


@pytest.mark.parametrize("factor", [1.2, 0.9])
def test_a_factor_that_is_rounded_away_is_refused(factor):
    graph = graphs.resolve(QUICKSTART)
    with pytest.raises(BadInput) as caught:
        scale_width(graph, factor)
    assert str(caught.value) == (
        f"the factor {factor:g} is rounded to 1, so that the width stays as it is; "
        "the nearest that change it: 0.5, 1.5"
    )


@pytest.mark.parametrize("scale", [scale_width, scale_depth])
@pytest.mark.parametrize("factor", [0.0, -2.0, float("nan")])
def test_a_factor_has_to_be_above_zero(scale, factor):
    with pytest.raises(BadInput, match="is not above zero"):
        scale(graphs.resolve(QUICKSTART), factor)


def test_a_width_that_does_not_follow_is_reported():
    graph = graphs.resolve(QUICKSTART)
    graph.model.block.mlp.hidden_dim = graphs.multiply(graphs.value(3, name="ratio"), 128)
    with pytest.raises(BadInput) as caught:
        scale_width(graph, 2.0)
    assert str(caught.value) == (
        "model.block.mlp.hidden_dim: is ratio * 128, which does not become 768 with the rest; "
        "set it to a number first: model.block.mlp.hidden_dim:=384"
    )


def test_a_model_without_sizes_is_refused():
    with pytest.raises(BadInput, match="WithCopy has no width that can be scaled"):
        GraphSizes(fdl.Partial(models.WithCopy))


def test_a_model_without_layers_to_count_is_refused():
    model = decoders.gpt2(vocab_size=8, max_length=4, dim=8, num_layers=2, num_heads=2)
    del model.num_layers
    with pytest.raises(BadInput, match="num_layers"):
        scale_depth(model, 2.0)


def test_length_scales_schedules_in_proportion_however_they_are_written():
    graph = graphs.resolve(QUICKSTART)
    short = scale_length(graph, 1 / 9)
    assert _changes(graph, short) == {
        # With which `training.steps` and the warmup share their value.
        "optimizer.learning_rate.total_steps": (900, 100),
    }
    assert graphs.evaluate(short.training.steps) == 100
    assert graphs.evaluate(short.optimizer.learning_rate.warmup_steps) == 8
    own = ["warmup_steps:=450", "total_steps:=900"]
    numbers = graphs.apply(graph, [f"optimizer.learning_rate.{word}" for word in own])
    assert _changes(numbers, scale_length(numbers, 1 / 9)) == {
        "training.steps": (900, 100),
        "optimizer.learning_rate.warmup_steps": (450, 50),
        "optimizer.learning_rate.total_steps": (900, 100),
    }
    join = "luthier.optim.Piecewise(values=[1e-3,1e-4,1e-5], boundaries=[300,600])"
    words = [f"optimizer.learning_rate:={join}", "training.stop=Steps(450)"]
    pieces = graphs.apply(graph, words)
    changed = scale_length(pieces, 0.01)
    assert graphs.get(changed, "optimizer.learning_rate.boundaries") == [3, 6]
    assert graphs.build(changed.training).stop.count == 5
    for length in (scale_length(numbers, 0.002), changed):
        graphs.validate(length)


def test_length_in_epochs_is_scaled_in_epochs():
    graph = graphs.apply(graphs.resolve(QUICKSTART), ["training.steps=Epochs(3)"])
    changed = scale_length(graph, 0.5)
    assert graphs.evaluate(changed.training.steps).count == 1.5
    with pytest.raises(BadInput, match="the length stays as it is"):
        scale_length(graphs.resolve(QUICKSTART), 1.0001)
