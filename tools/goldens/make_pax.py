"""Make the golden files of tests/recipes/decoders/test_pax_goldens.py and of tests/data/splitting.

Tiny twins of two experiments of Paxml, `C4SpmdAdam` and `C4SpmdGpt3AdamOrgHP`, with random weights
are run by Pax in float32: the logits of one batch, then twenty steps of its own training step. The
files hold the weights under luthier's parameter names, the batches, the logits, the losses, and by
how much each parameter has changed. A third file holds rows that the data pipeline of Pax packed.

Settings are those of the experiments but for sizes and the length of their schedules; the twin of
GPT-3 learns ten times as fast, so that twenty steps change the loss.

Needs Paxml 1.4.0, which luthier does not: run it in an environment of its own, of Python 3.10,

    pip install paxml==1.4.0 praxis==1.4.0 && pip install jaxlib==0.4.26
    JAX_PLATFORMS=cpu python tools/goldens/make_pax.py
"""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import numpy as np
import tensorflow as tf
from absl import flags
from jax import numpy as jnp
from paxml import seqio_input, trainer_lib
from paxml.tasks.lm.params import c4
from praxis import base_layer, pax_fiddle, py_utils
from t5.data import preprocessors

TESTS = Path(__file__).resolve().parents[2] / "tests"
LAYERS, DIM, HEADS, HIDDEN, VOCAB, LENGTH, POSITIONS = 2, 64, 4, 256, 256, 32, 48
BATCH, STEPS, WARMUP, END = 4, 20, 4, 16
ROWS = slice(None, None, 3)  # whose logits are kept: the last one has padding


class BaseA(c4.C4SpmdAdam):
    """`C4SpmdAdam`, tiny, its layers in one loop as the experiments of a size have them."""

    NUM_LAYERS, NUM_HEADS, MODEL_DIMS, HIDDEN_DIMS = LAYERS, HEADS, DIM, HIDDEN
    VOCAB_SIZE, MAX_SEQ_LEN = VOCAB, LENGTH
    USE_REPEATED_LAYER = True
    ICI_MESH_SHAPE = [1, 1, 1]
    LR_LRED_WARMUP, LR_LRED_DECAY_START, LR_LRED_DECAY_END = WARMUP, WARMUP + 1, END


class Gpt3(c4.C4SpmdGpt3AdamOrgHP):
    """`C4SpmdGpt3AdamOrgHP`, tiny."""

    NUM_LAYERS, NUM_HEADS, MODEL_DIMS, HIDDEN_DIMS = LAYERS, HEADS, DIM, HIDDEN
    VOCAB_SIZE, MAX_SEQ_LEN, TRAINABLE_PE_MAX_SEQ_LEN = VOCAB, LENGTH, POSITIONS
    ICI_MESH_SHAPE = [1, 1, 1]
    LEARNING_RATE = 6e-4
    LR_COS_WARMUP, LR_COS_DECAY_START, LR_COS_DECAY_END = WARMUP, WARMUP + 1, END


def batches() -> dict[str, np.ndarray]:
    """Draw packed rows of a skewed distribution; the last row ends in padding."""
    generator = np.random.default_rng(0)
    shape = (STEPS, BATCH, LENGTH)
    tokens = np.minimum(generator.geometric(0.03, (*shape[:2], LENGTH + 1)), VOCAB) - 1
    batch = {"ids": tokens[..., :-1], "labels": tokens[..., 1:]}
    batch["segment_ids"] = np.ones(shape, int)
    batch["segment_pos"] = np.tile(np.arange(LENGTH), (*shape[:2], 1))
    for step in range(STEPS):
        for row in range(1, BATCH):
            cut = int(generator.integers(1, LENGTH - 1))
            batch["segment_ids"][step, row, cut:] = 2
            batch["segment_pos"][step, row, cut:] -= cut
        for entry in batch.values():
            entry[step, -1, -5:] = 0
    return {name: entry.astype(np.int32) for name, entry in batch.items()}


def as_pax(batch: dict[str, np.ndarray]) -> py_utils.NestedMap:
    """Return a batch with what padding means for the loss and for attention."""
    weights = (batch["segment_ids"] > 0).astype(np.float32)
    return py_utils.NestedMap(**batch, weights=weights, paddings=1 - weights)


def flat(tree: dict) -> dict[str, np.ndarray]:
    return {".".join(path): leaf for path, leaf in walk(tree)}


def walk(tree, path=()):
    for name, child in tree.items():
        if hasattr(child, "items"):
            yield from walk(child, (*path, name))
        else:
            yield (*path, name), np.asarray(child)


def renamed(variables: dict) -> dict[str, np.ndarray]:
    """Return the parameters under luthier's names: kernels (in, out), queries, keys and values."""
    state = flat(variables["params"]["lm"])
    found = {
        "norm.scale": state.pop("final_ln.scale"),
        "norm.bias": state.pop("final_ln.bias"),
        "embedding.table": state.pop("softmax.logits_ffn.linear.w").T,
    }
    if "softmax.logits_ffn.bias.b" in state:
        found["unembedding.bias"] = state.pop("softmax.logits_ffn.bias.b")
    if "position_emb.emb_var" in state:
        found["embedding.position.table"] = state.pop("position_emb.emb_var")
    prefix = "transformer.repeat.sub.x_layers_0."
    take = lambda name: state.pop(prefix + name)  # noqa: E731
    for ours, theirs in (("attention_norm", "layer_norm"), ("mlp_norm", "ff_layer.layer_norm")):
        for part in ("scale", "bias"):
            found[f"blocks.{ours}.{part}"] = take(f"{theirs}.{part}")
    for ours, theirs in (("up", "ffn_layer1"), ("down", "ffn_layer2")):
        found[f"blocks.mlp.{ours}.kernel"] = take(f"ff_layer.{theirs}.linear.w")
        found[f"blocks.mlp.{ours}.bias"] = take(f"ff_layer.{theirs}.bias.b")
    # [layers, 3, D, N, H], and [layers, D, N, H] of the output.
    kernels = np.moveaxis(take("self_attention.combined_qkv.w"), 1, 0)
    for name, kernel in zip(("query", "key", "value"), kernels, strict=True):
        found[f"blocks.attention.{name}.kernel"] = kernel
    post = take("self_attention.post.w")
    found["blocks.attention.output.kernel"] = np.moveaxis(post, 1, -1)
    if prefix + "self_attention.post.b" in state:
        biases = np.moveaxis(take("self_attention.combined_qkv.b"), 1, 0)
        for name, bias in zip(("query", "key", "value"), biases, strict=True):
            found[f"blocks.attention.{name}.bias"] = bias
        found["blocks.attention.output.bias"] = take("self_attention.post.b")
    else:
        theta = take("self_attention.per_dim_scale.per_dim_scale")
        found["blocks.attention.query_key.theta"] = theta
    assert not state, sorted(state)
    return found


def randomize(variables: dict) -> dict:
    """Draw all weights, also those that start as zeros, of few values, so that files are small."""
    generator = np.random.default_rng(1)

    def draw(path, old):
        name = jax.tree_util.keystr(path)
        kernel = name.endswith("['w']") or "emb_var" in name
        scale = 0.3125 if kernel and "ff_layer" not in name else 0.1875
        drawn = np.round(4 * generator.standard_normal(old.shape)) / 4 * scale
        return jnp.asarray(drawn, jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, variables)


def make(name: str, experiment: type) -> None:
    task = pax_fiddle.instantiate(experiment().task())
    drawn = batches()
    first = as_pax({key: entry[0] for key, entry in drawn.items()})
    shapes = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), first)
    key = jax.random.PRNGKey(0)
    with jax.sharding.Mesh(
        np.array(jax.devices()[:1]).reshape(1, 1, 1), task.model.mesh_axis_names
    ):
        state, _ = trainer_lib.initialize_model_state(task, key, shapes)
        state = state.replace(mdl_vars=randomize(state.mdl_vars))
        before = renamed(state.mdl_vars)
        context = base_layer.JaxContext.HParams(do_eval=True)
        with base_layer.JaxContext.new_context(hparams=context):
            predicted = task.model.apply(
                state.mdl_vars, first, method=task.model.compute_predictions
            )
        step = jax.jit(functools.partial(trainer_lib.train_step_single_learner, task))
        losses = []
        for number in range(STEPS):
            batch = as_pax({name: entry[number] for name, entry in drawn.items()})
            state, output = step(state, key, batch)
            losses.append(float(output.loss))
    after = renamed(state.mdl_vars)
    changes = {key: np.linalg.norm((after[key] - before[key]).astype(np.float64)) for key in before}
    print(name, losses)
    np.savez_compressed(
        TESTS / "recipes" / "goldens" / f"{name}.npz",
        logits=np.asarray(predicted.logits[ROWS], np.float32),
        losses=np.array(losses),
        **{f"batch/{key}": entry.astype(np.int16) for key, entry in drawn.items()},
        **{f"parameter/{key}": value.astype(np.float16) for key, value in before.items()},
        **{f"change/{key}": value for key, value in changes.items()},
    )


def make_rows() -> None:
    """Run documents through the preprocessors and the feature converter of Pax's C4 data."""
    generator = np.random.default_rng(2)
    sizes = np.minimum(generator.geometric(0.05, 60), 90) * (generator.random(60) > 0.1)
    sizes[24:40] = generator.integers(0, 3, 16)  # groups that fill no row
    documents = [generator.integers(1, 200, size).astype(np.int32) for size in sizes]
    length, group = 16, 4

    def dataset():
        spec = {"targets": tf.TensorSpec([None], tf.int32)}
        return tf.data.Dataset.from_generator(
            lambda: ({"targets": document} for document in documents), output_signature=spec
        )

    split = preprocessors.reduce_concat_tokens(dataset(), batch_size=group)
    split = preprocessors.split_tokens(split, max_tokens_per_segment=length)
    arrays = {
        "tokens": np.concatenate(documents),
        "sizes": sizes.astype(np.int64),
        "length": length,
        "documents_per_group": group,
    }
    cases = {
        "packed_left": (split, True, True),
        "packed_right": (split, True, False),
        "trimmed_left": (dataset().filter(lambda x: tf.size(x["targets"]) > 0), False, True),
    }
    for case, (source, pack, reverse) in cases.items():
        if not pack:
            source = source.map(lambda x: {"targets": x["targets"][:length]})
        converter = seqio_input.LanguageModelFeatures(
            pack=pack, bos_id=0, reverse_bos_padding=reverse, eos_id=1
        )
        rows = list(converter(source, {"targets": length}).as_numpy_iterator())
        for name in ("ids", "labels", "weights", "segment_ids", "segment_pos"):
            arrays[f"{case}/{name}"] = np.stack([row[name] for row in rows]).astype(np.int16)
        print(case, len(rows))
    folder = TESTS / "data" / "splitting" / "goldens"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "pax_rows.npz", **arrays)


if __name__ == "__main__":
    flags.FLAGS.mark_as_parsed()
    make_rows()
    make("pax_base_a", BaseA)
    make("pax_gpt3", Gpt3)
