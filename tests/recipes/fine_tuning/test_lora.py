import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import layers, trainer
from luthier.checkpoint import Init, Take
from luthier.errors import BadInput
from luthier.layers import merge_adapters
from luthier.program import split
from luthier.recipes import decoders, has_lora, lora, without_lora

SMALL = (
    "model.dim=16",
    "model.num_layers=2",
    "model.block.attention.num_heads=4",
    "model.block.attention.num_kv_heads=2",
    "model.block.mlp.hidden_dim=32",
    "data.length=32",
    "training.steps=3",
    "training.global_batch_size=8",
    "evaluations={}",
    "records.wandb=None",
    "records.console=None",
)


class Adapted(fdl.Tag):
    """What gets adapters."""


@pytest.fixture
def experiment(tmp_path):
    (tmp_path / "text.txt").write_text("to be or not to be\n" * 200)
    source = f"data.source:=luthier.data.TextFiles({str(tmp_path / 'text.txt')!r})"
    directory = f"records.directory={tmp_path / 'runs'}"
    return graphs.apply(graphs.resolve("configs.lm.quickstart"), [*SMALL, source, directory])


def _kinds(model):
    return {
        path
        for path, node in graphs.paths(model)
        if getattr(node, "__fn_or_cls__", node) is layers.LoraLinear
    }


def test_by_default_all_of_attention_has_adapters(experiment):
    changed = lora(experiment)
    assert _kinds(changed.model) == {"block.attention.projection", "block.attention.output"}
    assert not has_lora(experiment)
    assert has_lora(changed)
    assert changed.training.trainable.pattern == r"\.lora_[ab]$"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (r"mlp\.(up|gate)$", {"block.mlp.up", "block.mlp.gate"}),
        (layers.GatedMlp, {"block.mlp.up", "block.mlp.gate", "block.mlp.down"}),
    ],
)
def test_targets_are_patterns_or_classes(target, expected, experiment):
    assert _kinds(lora(experiment, target=target).model) == expected


def test_a_tag_selects(experiment):
    model = graphs.copy_graph(experiment.model)
    model.block.mlp.up = layers.Linear
    fdl.add_tag(model.block.mlp, "up", Adapted)
    assert _kinds(lora(model, target=Adapted)) == {"block.mlp.up"}


def test_one_override_moves_all_ranks_and_templates_keep_their_settings():
    model = decoders.gpt2(vocab_size=11, max_length=8, dim=8, num_layers=2, num_heads=2)
    changed = graphs.apply(lora(model, rank=2, target=""), ["block.mlp.up.rank=3"])
    for path in _kinds(changed):
        node = graphs.get(changed, path)
        assert graphs.evaluate(node.rank) == 3
        assert node.bias is not None
    plain = without_lora(changed)
    assert not has_lora(plain)
    assert not graphs.diff(plain.block.mlp.up, model.block.mlp.up)


def test_nothing_selected_is_an_error_with_what_there_is(experiment):
    with pytest.raises(BadInput, match=r"'atention' selects no linear map; the model has .*block"):
        lora(experiment, target="atention")
    with pytest.raises(BadInput, match="not a regular expression"):
        lora(experiment, target="(")


def test_rules_of_a_warm_start_initialize_adapters_first(experiment):
    graph = graphs.apply(experiment, ["restore=run:somewhere"])
    rules = graphs.build(lora(graph)).restore.rules
    assert list(rules) == [Init(r"\.lora_[ab]$"), Take()]


@pytest.mark.full
def test_adapters_learn_and_all_else_stays_to_the_last_bit(experiment, tmp_path):
    base = trainer.run(experiment)
    graph = graphs.apply(experiment, [f"restore=run:{base.directory}", "name=adapted"])
    graph = lora(graph, rank=3, alpha=6.0, target="")
    result = trainer.run(graph)
    before, after = (trainer.load_run(str(r.directory)) for r in (base, result))
    first, last = (t.program.named(t.leaves) for t in (before, after))
    adapters = {name for name in last if name.endswith(("lora_a", "lora_b"))}
    trained = {name for name in adapters if name.startswith("parameters/")}
    assert len(trained) == 2 * 7
    for name in trained:
        if name.endswith("lora_b"):
            assert np.abs(last[name]).max() > 0
    for name, array in first.items():
        if name.startswith("parameters/"):
            np.testing.assert_array_equal(last[name], array)
    moments = {name for name in last if name.startswith("optimizer/") and "." in name}
    assert moments
    assert moments <= adapters
    kinds = {row.parameter: row.source for row in result.restored}
    assert {name for name, source in kinds.items() if source == "init"} == {
        name.removeprefix("parameters/") for name in trained
    }
    _check_merged(after, tmp_path)


def _check_merged(trained, tmp_path):
    model = trainer.trained.module_of(trained.program, trained.leaves)
    template = graphs.build(without_lora(trained.program.graph.model))
    structure = split(jax.eval_shape(lambda: template(rngs=_rngs())))[0]
    plain = structure.merge(merge_adapters(model))
    inputs = jnp.arange(24).reshape(2, 12) % 258
    with jax.default_matmul_precision("highest"):
        expected = model(inputs)
        np.testing.assert_allclose(plain(inputs), expected, rtol=1e-5, atol=1e-5)
    run = str(trained.directory.path)
    with pytest.raises(BadInput, match="no family has adapters"):
        trainer.export_run(run, tmp_path / "out")
    exported = trainer.export_run(run, tmp_path / "out", merge=True)[1]
    assert exported.family == "llama"
    assert not list(tmp_path.glob(".out*"))


def _rngs():
    from flax import nnx

    return nnx.Rngs(0)
