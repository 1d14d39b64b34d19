"""Every task with a model of its kind: shrunk, it trains two steps on eight devices."""

import functools
import zlib

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier import layers, models, optim, parallel, planner, tasks
from luthier import program as programs
from luthier.contrib import series, state_space
from luthier.contrib.contrastive import Contrastive, InfoNCE
from luthier.contrib.mean_teacher import MeanTeacher
from luthier.errors import BadInput
from tests.compiling import quick_step

ROWS, LENGTH, VOCAB, DIM = 16, 8, 24, 16


class Fixed:
    """The same batch for ever."""

    num_rows = ROWS

    def __init__(self, batch):
        self.batch = batch

    def batch_spec(self, global_batch_size):
        return {n: ((global_batch_size, *x.shape[1:]), x.dtype) for n, x in self.batch.items()}


def _draw(name, *shape):
    return (
        np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)
    )


def _rows(**entries):
    examples = np.arange(1, ROWS + 1, dtype=np.int32)
    return {"weights": np.ones(ROWS, np.float32), "examples": examples, **entries}


def _tokens(prefix=""):
    ids = np.random.default_rng(0).integers(0, VOCAB, (ROWS, LENGTH + 1), np.int32)
    positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (ROWS, LENGTH))
    documents = np.broadcast_to(np.arange(1, ROWS + 1, dtype=np.int32)[:, None], (ROWS, LENGTH))
    entries = {
        "inputs": ids[:, :-1],
        "targets": ids[:, 1:],
        "weights": np.ones((ROWS, LENGTH), np.float32),
        "segments": np.ones((ROWS, LENGTH), np.int32),
        "positions": positions,
        "documents": documents,
        "target_bytes": np.ones((ROWS, LENGTH), np.int32),
    }
    return {prefix + name: array for name, array in entries.items()}


def _mlp():
    return fdl.Partial(layers.Mlp, hidden_dim=32)


def _attention():
    core = fdl.Config(layers.EinsumAttention, mask=fdl.Config(layers.SameDocument))
    return fdl.Partial(layers.Attention, num_heads=4, core=core)


def _decoder(attention):
    norm = fdl.Partial(layers.RMSNorm)
    dropout = fdl.Partial(layers.Dropout, rate=0.1)
    block = fdl.Partial(
        layers.PreNormBlock, attention=attention, mlp=_mlp(), norm=norm, dropout=dropout
    )
    return fdl.Partial(
        models.Decoder, vocab_size=VOCAB, dim=DIM, num_layers=2, block=block, norm=norm
    )


def _resnet(norm, last_norm=None):
    return fdl.Partial(
        models.ResNet,
        num_classes=8,
        stage_sizes=(1, 1),
        width=8,
        block=fdl.Partial(layers.BasicBlock, norm=norm, last_norm=last_norm or norm),
        stem=fdl.Partial(layers.SmallStem, norm=norm),
    )


def _images():
    labels = np.arange(ROWS, dtype=np.int32) % 8
    return _rows(inputs=_draw("images", ROWS, 8, 8, 3), labels=labels)


def resnet():
    return _resnet(fdl.Partial(layers.BatchNorm)), fdl.Config(tasks.Classification), _images()


def mean_teacher():
    model = _resnet(fdl.Partial(layers.GroupNorm, num_groups=2))
    return (
        fdl.Partial(models.WithCopy, model=model),
        fdl.Config(MeanTeacher),
        _images(),
    )


def contrastive():
    model = _resnet(fdl.Partial(layers.GroupNorm, num_groups=2))
    images = _draw("images", ROWS, 8, 8, 3)
    batch = _rows(inputs=images, others=images + 0.5 * _draw("others", *images.shape))
    objective = fdl.Config(InfoNCE, temperature=0.5)
    return model, fdl.Config(Contrastive, objective=objective), batch


def s5():
    attention = fdl.Partial(state_space.S5, num_states=4)
    return _decoder(attention), fdl.Config(tasks.LanguageModelling), _tokens()


def s4d():
    attention = fdl.Partial(state_space.S4D, num_states=4)
    return _decoder(attention), fdl.Config(tasks.LanguageModelling), _tokens()


def conformer():
    norm = fdl.Partial(layers.LayerNorm)
    block = fdl.Partial(
        layers.ConformerBlock,
        attention=_attention(),
        mlp=_mlp(),
        convolution=fdl.Partial(layers.ConvolutionModule, kernel_size=3),
        norm=norm,
    )
    model = fdl.Partial(
        models.Encoder,
        vocab_size=VOCAB,
        dim=DIM,
        num_layers=2,
        block=block,
        embedding=fdl.Partial(layers.TypedEmbedding, num_types=1, norm=norm),
        head=fdl.Partial(layers.MaskedHead, norm=norm),
    )
    task = fdl.Config(tasks.MaskedModelling, mask_token=0, vocab_size=VOCAB, rate=0.5)
    return model, task, _tokens()


def patch_transformer():
    block = fdl.Partial(
        layers.PostNormBlock,
        attention=_attention(),
        mlp=_mlp(),
        norm=fdl.Partial(layers.LayerNorm),
        dropout=fdl.Partial(layers.Dropout, rate=0.1),
    )
    model = fdl.Partial(
        series.PatchTransformer,
        length=12,
        horizon=4,
        dim=DIM,
        num_layers=2,
        block=block,
        patch_length=4,
        stride=2,
    )
    batch = _rows(
        inputs=_draw("series", ROWS, 12, 2),
        targets=_draw("next", ROWS, 4, 2),
        weights=np.ones((ROWS, 4, 2), np.float32),
    )
    return model, fdl.Config(series.Forecasting), batch


def preferences():
    model = fdl.Partial(models.WithCopy, model=_decoder(fdl.Partial(layers.Attention, num_heads=4)))
    batch = _rows()
    for side in ("chosen", "rejected"):
        ids = np.random.default_rng(len(side)).integers(0, VOCAB, (2, ROWS, LENGTH), np.int32)
        entries = {**_tokens(), "inputs": ids[0], "targets": ids[1]}
        kept = ("inputs", "targets", "segments", "positions", "weights")
        batch |= {f"{side}_{name}": entries[name] for name in kept}
    return model, fdl.Config(tasks.Preferences), batch


FAMILIES = [
    resnet,
    mean_teacher,
    contrastive,
    s5,
    s4d,
    conformer,
    patch_transformer,
    preferences,
]


def graph_of(family, accumulation=1, mesh=None, **training):
    model, task, batch = family()
    return fdl.Config(
        programs.Experiment,
        name="test",
        model=model,
        task=task,
        data=Fixed(batch),
        optimizer=fdl.Config(optim.adamw, learning_rate=1e-2, b1=0.9, b2=0.99, weight_decay=0.0),
        training=fdl.Config(
            programs.Training,
            steps=10,
            global_batch_size=ROWS,
            accumulation=accumulation,
            **training,
        ),
        parallelism=fdl.Config(parallel.Parallelism, mesh=mesh or fdl.Config(parallel.Mesh)),
    )


@functools.cache
def trained(family, num_devices):
    """Take two steps; return the program, the state before and after, and the losses."""
    mesh = fdl.Config(parallel.Mesh, data=2, fsdp=4) if num_devices == 8 else None
    made = programs.make(graph_of(family, mesh=mesh), jax.devices()[:num_devices])
    values, leaves, step = made.values(), made.init(made.values()), quick_step(made)
    before = {name: np.asarray(x) for name, x in made.named(leaves).items()}
    fixed = made.experiment.data.batch
    batch = {name: jax.device_put(fixed[name], x.sharding) for name, x in made.batch.items()}
    found = []
    for _ in range(2):
        leaves, vector = step(values, leaves, batch)
        found.append(float(vector[made.scalar_names.index("loss")]))
    after = {name: np.asarray(x) for name, x in made.named(leaves).items()}
    return made, before, after, found


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_two_steps_on_eight_devices(family):
    made, before, after, found = trained(family, 8)
    assert np.isfinite(found).all()
    moved = [n for n in before if n.startswith("parameters/") and (before[n] != after[n]).any()]
    parameters = [n for n in before if n.startswith("parameters/")]
    assert len(moved) >= 0.9 * len(parameters), set(parameters) - set(moved)
    assert all(np.isfinite(x).all() for x in after.values())
    assert any(any(p.spec) for n, p in made.placements.items() if n.startswith("parameters/"))


@pytest.mark.full
@pytest.mark.parametrize("family", [resnet, contrastive], ids=lambda family: family.__name__)
def test_coupled_rows_are_coupled_over_the_whole_mesh(family):
    _, _, many, found = trained(family, 8)
    _, _, one, expected = trained(family, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    for name in one:
        if name.startswith("variables/"):
            np.testing.assert_allclose(many[name], one[name], rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.full
def test_a_reference_stays_and_a_teacher_follows():
    _, before, after, _ = trained(preferences, 8)
    held = [n for n in before if n.startswith("variables/copy.")]
    assert held
    assert all((before[n] == after[n]).all() for n in held)
    _, before, after, _ = trained(mean_teacher, 8)
    followed = [n for n in before if n.startswith("variables/copy.")]
    assert any((before[n] != after[n]).any() for n in followed)


@pytest.mark.full
def test_statistics_of_batches_are_state():
    made, before, after, _ = trained(resnet, 8)
    names = [n for n in made.names if n.startswith("variables/")]
    assert any(n.endswith(".mean") for n in names)
    assert all((before[n] != after[n]).any() for n in names)


def _gradient(accumulation):
    graph = graph_of(contrastive, accumulation)
    graph.model.dtype = graph.model.param_dtype = jnp.float64
    made = programs.make(graph, jax.devices()[:1])

    def gradient(leaves, batch):
        with made.tracing(()) as experiment:
            return programs.gradient_of(experiment, made.named(leaves), batch)

    batch = {name: made.experiment.data.batch[name] for name in made.batch}
    return jax.jit(gradient)(made.init(made.values()), batch)


@pytest.mark.full
def test_a_contrastive_step_in_parts_is_that_of_the_whole_batch(relative, double):
    """In float64; tests/tasks holds it to a millionth in float32."""
    sums, expected = _gradient(1)
    found_sums, found = _gradient(4)
    assert found_sums.loss.host().value() == pytest.approx(sums.loss.host().value(), rel=1e-12)
    assert {array.dtype for array in expected.values()} == {jnp.dtype(double)}
    assert relative(found, expected) <= 1e-10


def test_batch_statistics_in_parts_are_refused_by_name():
    with pytest.raises(BadInput) as caught:
        planner.make(graph_of(resnet, accumulation=2), jax.devices()[:1])
    (problem,) = caught.value.problems
    assert problem.path == "training.accumulation"
    assert "batch statistics of" in problem.what
    assert "norm" in problem.what


def test_a_coupled_task_with_a_statistics_pass_is_not_refused():
    assert planner.make(graph_of(contrastive, accumulation=2), jax.devices()[:1]).parameters > 0
