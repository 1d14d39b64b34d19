from pathlib import Path

import fiddle as fdl
import jax
import pytest

from luthier import checkpoint, data, layers, parallel, trainer
from luthier import graph as graphs
from luthier.cli import find_experiments as find
from luthier.errors import BadInput
from luthier.recipes import decoders, fsdp, pipeline, tiny

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
REFERENCES = [listed.reference for listed in find(CONFIGS) if not listed.arguments]


def quickstart(**mesh):
    graph = graphs.resolve("configs.lm.quickstart")
    if mesh:
        mesh = fdl.Config(parallel.Mesh, **mesh)
        graph.parallelism = fdl.Config(parallel.Parallelism, mesh=mesh)
    return graph


def test_what_it_changes():
    graph = quickstart()
    before = graphs.to_json(graph)
    found = {c.path: c.after for c in graphs.diff(graph, tiny(graph))}
    assert found == {
        "name": "quickstart-tiny",
        "model.dim": 64,
        "model.num_layers": 2,
        "model.block.mlp.hidden_dim": 192,
        "data.length": 32,
        "evaluations.held_out.every.count": 5,
        "evaluations.held_out.global_batch_size": 8,
        "evaluations.held_out.num_batches": 1,
        "optimizer.learning_rate.total_steps": 10,  # shared with training.steps
        "checkpoints.every.count": 5,
        "records.wandb": None,
    }
    assert graphs.to_json(graph) == before, "the original is untouched"


@pytest.mark.parametrize("reference", REFERENCES)
def test_every_experiment_stays_valid_and_twice_is_like_once(reference):
    once = tiny(graphs.resolve(reference))
    graphs.validate(once)
    assert graphs.equal(tiny(once), once)


def test_axes_in_use_have_two_devices_and_others_one():
    across = fdl.Config(parallel.AcrossSlices, replica=8, fsdp=4)
    graph = quickstart(replica=3, data=1, fsdp=16, tensor=12, across_slices=across)
    mesh = graphs.build(tiny(graph).parallelism.mesh)
    assert mesh == parallel.Mesh(
        replica=2,
        data=-1,
        fsdp=2,
        tensor=2,
        across_slices=parallel.AcrossSlices(replica=2, fsdp=2),
    )
    four = graphs.build(tiny(graph, axis_size=4).parallelism.mesh)
    assert (four.replica, four.fsdp, four.tensor) == (3, 4, 4)


def test_an_axis_that_fills_still_fills():
    mesh = graphs.build(tiny(fsdp(quickstart())).parallelism.mesh)
    assert (mesh.data, mesh.fsdp) == (1, -1)


def test_copies_fill_the_devices_that_are_left():
    graph = tiny(quickstart(data=1, fsdp=64, tensor=4))
    assert graphs.build(graph.parallelism.mesh).sizes(8)["data"] == 2
    assert graph.training.global_batch_size == 8
    assert tiny(quickstart(data=16, fsdp=4)).parallelism.mesh.data == 2, "copies that are there"


def test_batches_and_microbatches_divide():
    graph = pipeline(quickstart(data=1, fsdp=4), stages=4, microbatches=64)
    graph.model.num_layers, graph.training.global_batch_size = 24, 512
    graph.training.accumulation = 8
    changed = tiny(graph)
    assert changed.model.stack.microbatches == 4  # two for each of two stages
    assert changed.model.num_layers == 2
    assert changed.training.accumulation == 2
    # Of four rows: two devices along `fsdp`, and two copies that fill eight devices.
    assert changed.training.global_batch_size == 2 * 4 * 4


def test_layers_fill_the_stages_as_often_as_they_are_visited():
    graph = pipeline(quickstart(), 4, 8, fdl.Config(layers.Circular, repeats=3))
    graph.model.num_layers = 24
    assert tiny(graph).model.num_layers == 2 * 3


def test_kinds_of_layers_all_stay():
    graph = graphs.resolve("configs.lm.families:gemma")
    assert graphs.evaluate(tiny(graph).model.num_layers) == 3


def test_heads_divide_over_the_devices_that_share_them_out():
    changed = tiny(graphs.resolve("configs.pax.c4:decoder_16b"), axis_size=8)
    attention = changed.model.block.attention
    assert (attention.num_heads.value, attention.head_dim.value) == (2, 16)
    graph = quickstart(tensor=4)
    graph.model.block.attention.num_heads = graph.model.block.attention.num_kv_heads = 32
    graph.model.dim = 4096
    attention = tiny(graph, axis_size=4).model.block.attention
    assert (attention.num_heads, attention.num_kv_heads) == (4, 4)


def test_experts_become_few_and_enough_for_the_mesh():
    graph = quickstart(expert=8)
    model = decoders.pax(vocab_size=258, dim=64, num_heads=4, head_dim=16)
    graph.model = decoders.with_experts(model, num_experts=64, k=2)
    assert tiny(graph).model.block.mlp.num_experts == 4
    assert tiny(graph, axis_size=8).model.block.mlp.num_experts == 8


def test_text_is_read_as_bytes():
    changed = tiny(graphs.resolve("configs.pax.gpu"))
    for node in (changed.data, changed.evaluations["validation"].data):
        assert graphs.equal(node.tokenizer, fdl.Config(data.Bytes))
        assert graphs.evaluate(node.length) == 32
    assert graphs.evaluate(changed.model.vocab_size) == 512
    assert changed.model.embedding.position.max_length == 32


def test_tokens_that_are_there_already_keep_their_vocabulary():
    changed = tiny(graphs.resolve("configs.pax.c4"))
    assert changed.data.tokenizer.__fn_or_cls__ is data.SentencePiece
    assert changed.model.vocab_size == 32_000


def test_a_learned_vocabulary_shrinks_with_the_models():
    changed = tiny(graphs.resolve("configs.lm.bpe"))
    assert changed.data.tokenizer.__fn_or_cls__ is data.TrainedBpe
    assert changed.model.vocab_size is changed.data.tokenizer.vocab_size
    assert graphs.evaluate(changed.model.vocab_size) == 512


def test_nothing_is_restored():
    graph = quickstart()
    graph.restore = fdl.Config(checkpoint.FromRun, directory="elsewhere")
    assert tiny(graph).restore is None


def test_a_model_alone_is_refused():
    with pytest.raises(
        BadInput, match="a model alone has no smoke-test config; give an experiment"
    ):
        tiny(quickstart().model)


@pytest.mark.slow
def test_it_trains_to_the_end(tmp_path):
    graph = graphs.apply(
        tiny(quickstart(data=1, fsdp=8, tensor=4)),
        [f"records.directory={tmp_path}", "records.console=None"],
    )
    result = trainer.run(graph, devices=jax.devices()[:8])
    assert (result.status, result.step) == ("finished", 10)
    assert result.directory.parent.name == "quickstart-tiny"
    assert list((result.directory / "checkpoints").iterdir())
