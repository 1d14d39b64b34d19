import fiddle as fdl
import jax.numpy as jnp
import pytest

from luthier import checkpoint, data, layers, optim, program, tasks
from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.recipes.foreign.pax import import_dump

GELU = {"class": "my.layers.MyGelu", "set": {}}
LM = "task__model__lm_tpl"
LAYER = "task__model__lm_tpl__stacked_transformer_tpl__block__transformer_layer_params_tpl"


def test_an_experiment_that_is_known_whole(written):
    found = import_dump(written("c4"), program)
    graph = found.graph
    assert found.name == "goldens.C4"
    assert graph.__fn_or_cls__ is program.Experiment
    assert (graph.name, graph.seed) == ("c4", 1234)
    assert graph.data.__fn_or_cls__ is data.Packed
    assert graph.evaluations["validation"].data.__fn_or_cls__ is data.Pretokenized
    assert graph.optimizer.__fn_or_cls__ is optim.capped_adamw
    assert (graph.training.steps, graph.training.global_batch_size) == (10_000_000, 1)
    assert (graph.checkpoints.every.count, graph.checkpoints.keep_latest) == (100, 10)
    assert isinstance(fdl.build(graph.optimizer), optim.Optimizer)
    assert not any(one.is_essential for one in found.leftovers)


@pytest.mark.parametrize("nothing", [None, 0])
def test_checkpoints_that_pax_leaves_open_keep_our_default(written, nothing):
    names = ("save_interval_steps", "save_max_to_keep")
    changes = {f"task__train__{name}": nothing for name in names}
    found = fdl.build(import_dump(written("gpt", **changes), program).graph.checkpoints)
    assert found == checkpoint.Checkpoints()


@pytest.mark.parametrize(
    ("name", "path", "value", "is_listed"),
    [
        ("gpt", "task__train__save_keep_interval_duration", "2h", True),
        ("gpt", "task__train__save_keep_interval_duration", None, False),
        ("gpt", f"{LM}__softmax_tpl__bias_init", 0.5, True),
        ("gpt", f"{LM}__softmax_tpl__bias_init", 0.0, False),
        ("post", f"{LM}__softmax_tpl__bias_init", 0.5, False),  # it has no bias
        ("shared", f"{LM}__softmax_tpl__bias_init", 0.5, True),
        ("gpt", f"{LAYER}__tr_fflayer_tpl__fflayer_tpl__bias_init", 0.5, True),
        ("glam", f"{LM}__softmax_tpl__use_tgt_labels_size_as_loss_denominator", True, True),
        ("glam", f"{LM}__softmax_tpl__use_tgt_labels_size_as_loss_denominator", False, False),
    ],
)
def test_what_has_no_counterpart_and_changes_no_forward_pass_is_listed(
    written, name, path, value, is_listed
):
    found = import_dump(written(name, **{path: value}), program)
    field = path.rpartition("__")[2]
    listed = [one for one in found.leftovers if one.field == field]
    assert [(one.value, one.is_essential) for one in listed] == [(str(value), False)] * is_listed


@pytest.mark.parametrize(("groups", "fan"), [(1, 32), (2, 32 * 2), (4, 32 * 4)])
def test_keys_and_values_of_groups_are_drawn_by_their_own_shape(written, groups, fan):
    init = {"class": "praxis.base_layer.WeightInit", "set": {"scale": 1.0}}
    init["set"]["method"] = "uniform_unit_scaling"
    changes = {f"{LAYER}__tr_atten_tpl__num_kv_heads": groups, "task__model__params_init": init}
    attention = import_dump(written("llama", **changes), program).graph.model.block.attention
    drawn = attention.projection, attention.projection
    if groups < 4:
        drawn = attention.projection.query, attention.projection.others
    limits = [linear.kernel.limit for linear in (*drawn, attention.output)]
    assert limits == pytest.approx([(3 / (32 * 4)) ** 0.5, (3 / fan) ** 0.5, (3 / (32 * 4)) ** 0.5])


@pytest.mark.parametrize(("interval", "expected"), [(250, 250), (None, 100), (0, 100)])
def test_evaluations_are_as_far_apart_as_in_pax(written, interval, expected):
    dump = import_dump(written("c4", task__train__eval_interval_steps=interval), program)
    assert dump.graph.evaluations["validation"].every.count == expected


def test_the_initial_checkpoint_knows_the_layout_of_weights(written):
    graph = import_dump(written("glam"), program, weights="weights").graph
    assert graph.restore.__fn_or_cls__ is checkpoint.Pax
    assert (graph.restore.directory, graph.restore.heads_first) == ("weights", True)


def test_experts_have_a_task_that_balances_them(written):
    graph = import_dump(written("glam"), program).graph
    assert graph.task.__fn_or_cls__ is tasks.Routed
    assert (graph.task.load_balance, graph.task.task.z_loss) == (0.01, 1e-4)


def test_averages_and_steps(written):
    graph = import_dump(written("shared"), program).graph
    assert (graph.training.ema.decay, graph.training.steps) == (0.99, 100)


def test_meshes_within_and_across_slices(written):
    shapes = {"task__model__ici_mesh_shape": [2, 4, 8], "task__model__dcn_mesh_shape": [1, 2, 1]}
    mesh = import_dump(written("gpt", **shapes), program).graph.parallelism.mesh
    assert (mesh.data, mesh.fsdp, mesh.tensor) == (2, 4, 8)
    assert dict(mesh.across_slices.__arguments__) == {"fsdp": 2}


def test_an_unknown_mesh_axis_is_reported(written):
    names = {
        "task__model__ici_mesh_shape": [2, 1, 1],
        "task__model__mesh_axis_names": ["other", "data", "mdl"],
    }
    found = import_dump(written("gpt", **names), program)
    (leftover,) = [one for one in found.leftovers if one.field == "mesh_axis_names"]
    assert leftover.why == "no axis here is like other; see parallelism.mesh"


def test_a_pipeline_keeps_its_stages_microbatches_and_mesh(written, content):
    inner = content("gpt")["task"]["set"]["model"]["set"]["lm_tpl"]["set"]
    pipeline = {
        "class": "praxis.layers.transformers.PipelinedTransformer",
        "set": {
            "num_pipeline_stages": 2,
            "circular_repeat": 3,
            "num_pipeline_microbatches": 4,
            "pipeline_stage": inner["stacked_transformer_tpl"],
        },
    }
    changes = {
        "task__model__ici_mesh_shape": [2, 1, 2, 2],
        "task__model__mesh_axis_names": ["stage", "replica", "data", "mdl"],
        "task__model__lm_tpl__stacked_transformer_tpl": pipeline,
    }
    found = import_dump(written("gpt", **changes), program)
    mesh, stack = found.graph.parallelism.mesh, found.graph.model.stack
    assert (mesh.stage, mesh.data, mesh.fsdp, mesh.tensor) == (2, 1, 2, 2)
    assert (stack.__fn_or_cls__, stack.microbatches) == (layers.Pipelined, 4)
    assert (stack.schedule.__fn_or_cls__, stack.schedule.repeats) == (layers.Circular, 3)
    assert found.graph.parallelism.rules.activations["batch"][0] == "stage"
    assert not [one for one in found.leftovers if "pipeline" in one.field or "mesh" in one.field]


def test_sixteen_bits(written):
    sixteen = {"task__model__fprop_dtype": {"dtype": "bfloat16"}}
    model = import_dump(written("gpt", **sixteen), program).graph.model
    assert model.dtype is jnp.bfloat16
    assert "param_dtype" not in model.__arguments__


def test_all_problems_are_reported_at_once(written):
    changes = {
        f"{LAYER}__tr_fflayer_tpl__activation_tpl": GELU,
        f"{LAYER}__tr_atten_tpl__attention_extra_logit": 0.0,
        f"{LAYER}__my_own_field": 3,
    }
    path = written("gpt", **changes)
    with pytest.raises(BadInput) as caught:
        import_dump(path, program)
    block = "task.model.lm_tpl.stacked_transformer_tpl.block.transformer_layer_params_tpl"
    known = "GELU, ReLU, ReLU6, ELU, Sigmoid, Tanh, SiLU, Swish, Softplus, Exp"
    assert str(caught.value).splitlines() == [
        f"{block}: my_own_field of Transformer is 3, which has no equivalent here; "
        "the importer does not know this setting",
        f"{block}.tr_atten_tpl: attention_extra_logit of DotProductAttention is 0.0, which has no "
        "equivalent here; supported: None",
        f"{block}.tr_fflayer_tpl: activation_tpl of TransformerFeedForward is MyGelu, which has no "
        f"equivalent here; supported: {known}",
    ]
    partial = import_dump(path, program, is_partial=True)
    assert sum(one.is_essential for one in partial.leftovers) == 3


def test_a_class_of_the_users_own_is_reported(written, content):
    path = written("gpt", task__model__my_metric=3)
    with pytest.raises(BadInput, match="my_metric of LanguageModel is 3"):
        import_dump(path, program)


def test_another_model_is_refused(written):
    classifier = {"class": "praxis.layers.models.ClassificationModel", "set": {}}
    path = written("gpt", task__model=classifier)
    with pytest.raises(BadInput) as caught:
        import_dump(path, program)
    assert str(caught.value) == (
        f"task.model: {path} holds a ClassificationModel; "
        "only language models with a TransformerLm can be imported"
    )


def test_python_that_is_written_is_the_same_graph(written):
    graph = import_dump(written("llama"), program).graph
    names: dict = {}
    exec(graphs.to_python(graph), names)
    assert graphs.equal(names["experiment"](), graph)
