"""Make the golden files of tests/recipes/foreign/pax: experiments of Pax, dumped and run by Pax.

For each of a few tiny experiments, `NAME.json` is what `dump_pax.py` writes, `NAME.npz` a batch and
the logits of Pax in float32, of random weights. The weights are those of the checkpoint that Paxml
saved: `NAME.zip` holds it, without the files that only Orbax reads and, where each array has
a folder of its own, without the optimizer's; or `NAME.safetensors` is what `dump_pax.py` wrote of
it. The files of all but the first are compressed.

Needs Paxml 1.4.0, which luthier does not: run it in an environment of its own, of Python 3.10,

    pip install paxml==1.4.0 praxis==1.4.0 && pip install jaxlib==0.4.26
    JAX_PLATFORMS=cpu python tools/goldens/make_pax_import.py [NAME ...]
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import shutil
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
from absl import flags
from jax import numpy as jnp
from paxml import checkpoint_types, checkpoints, trainer_lib
from paxml.tasks.lm.params import c4, lm_cloud, nvidia
from praxis import base_layer, layers, pax_fiddle, py_utils
from praxis.layers import activations, glam, multi_query_attention
from praxis.layers.embedding_softmax import NClassMajorSharedEmbeddingSoftmax

ROOT = Path(__file__).resolve().parents[2]
DUMPER = ROOT / "framework" / "luthier" / "recipes" / "foreign" / "pax" / "dump_pax.py"
GOLDENS = ROOT / "tests" / "recipes" / "foreign" / "pax" / "goldens"
ROWS, LENGTH = 3, 16


class Gpt(lm_cloud.LmCloudSpmd):
    """`LmCloudSpmd`, tiny: combined queries, keys and values, caps, sinusoids, two layers."""

    NUM_LAYERS, MODEL_DIMS, DIMS_PER_HEAD, HIDDEN_DIMS = 2, 16, 8, 32
    VOCAB_SIZE, MAX_SEQ_LEN, PERCORE_BATCH_SIZE = 48, LENGTH, 4
    FPROP_DTYPE = jnp.float32
    ICI_MESH_SHAPE = [1, 1, 1]


class C4(c4.C4SpmdGpt3AdamOrgHP):
    """`C4SpmdGpt3AdamOrgHP`, tiny: learned positions, biases, layers in one loop."""

    NUM_LAYERS, NUM_HEADS, MODEL_DIMS, HIDDEN_DIMS = 3, 2, 16, 32
    VOCAB_SIZE, MAX_SEQ_LEN, TRAINABLE_PE_MAX_SEQ_LEN = 48, LENGTH, LENGTH
    ICI_MESH_SHAPE = [1, 1, 1]


class Llama(nvidia.Llama2_7B):
    """`Llama2_7B`, tiny: grouped queries, rotary positions, a gated MLP, RMSNorm; one loop."""

    NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, DIMS_PER_HEAD = 3, 4, 2, 8
    MODEL_DIMS, HIDDEN_DIMS, VOCAB_SIZE, MAX_SEQ_LEN = 32, 48, 48, LENGTH
    ICI_MESH_SHAPE, FPROP_DTYPE, USE_REPEATED_LAYER = [1, 1, 1], jnp.float32, True


class Shared(c4.TransformerLmSpmdAdam):
    """Keys and values of one head, a head of its own, norms before and after; two in a loop."""

    NUM_LAYERS, NUM_HEADS, DIMS_PER_HEAD = 4, 2, 8
    MODEL_DIMS, HIDDEN_DIMS, VOCAB_SIZE = 16, 24, 48
    ICI_MESH_SHAPE, USE_REPEATED_LAYER, SEPARATE_EMBEDDING = [1, 1, 1], True, True
    USE_GATED_ACTIVATION, ACTIVATION_CLS, NORM_POLICY = True, activations.SiLU, "primer_hybrid"
    COMBINE_QKV, ATTEN_LOGIT_CAP = False, 20.0

    def task(self):
        """Return the task."""
        task = super().task()
        lm = task.model.lm_tpl
        lm.position_emb_tpl = None
        lm.stacked_transformer_tpl.x_times = 2
        block = lm.stacked_transformer_tpl.block
        block.num_layers = 2
        layer = block.transformer_layer_params_tpl
        layer.tr_atten_tpl = pax_fiddle.Config(
            multi_query_attention.MultiQueryDotProductAttention,
            num_kv_heads=1,
            use_bias=True,
            use_rotary_position_emb=True,
            output_proj_use_nhd_shape=True,
            atten_logit_cap=20.0,
        )
        task.train.learner.optimizer.ema_decay = 0.99
        task.train.num_train_steps = 100
        return task

    def datasets(self):
        """Return no data."""
        return []


class Glam(c4.TransformerLmSpmdAdam):
    """GLaM: experts by turns, relative positions, a scaled tied head; two layers in a loop."""

    NUM_LAYERS, NUM_HEADS, DIMS_PER_HEAD = 4, 2, 8
    MODEL_DIMS, HIDDEN_DIMS, VOCAB_SIZE = 16, 24, 48
    ICI_MESH_SHAPE = [1, 1, 1]

    def task(self):
        """Return the task."""
        task = super().task()
        task.model.lm_tpl = glam.GlamUniTransformerLmHParams(
            vocab_size=48,
            model_dim=16,
            ff_dim=24,
            attention_num_heads=2,
            attention_key_value_dim=8,
            num_transformer_layers=4,
            moe=True,
            attention_extra_logit=None,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=16,
            num_groups=ROWS,
            capacity_factor=2.0,
            c_dim=0,
            e_dim=4,
            moe_gating_func="top2",
        )
        return task

    def datasets(self):
        """Return no data."""
        return []


class Post(c4.TransformerLmSpmdAdam):
    """Norms after the sums, rotary positions, no scale of dimensions, a table by classes."""

    NUM_LAYERS, NUM_HEADS, DIMS_PER_HEAD = 2, 2, 8
    MODEL_DIMS, HIDDEN_DIMS, VOCAB_SIZE = 16, 32, 48
    ICI_MESH_SHAPE, NORM_POLICY, COMBINE_QKV = [1, 1, 1], "post_skip", False
    USE_ROTARY_POSITION_EMB, ATTEN_LOGIT_CAP, SOFTMAX_CAP_LOGITS = True, 0.0, 0.0

    def task(self):
        """Return the task."""
        task = super().task()
        lm = task.model.lm_tpl
        lm.position_emb_tpl = None
        lm.softmax_tpl = pax_fiddle.Config(NClassMajorSharedEmbeddingSoftmax, use_bias=False)
        attention = lm.stacked_transformer_tpl.transformer_layer_params_tpl.tr_atten_tpl
        attention.internal_enable_per_dim_scale = False
        attention.ln_tpl = pax_fiddle.Config(layers.RmsNorm)
        return task

    def datasets(self):
        """Return no data."""
        return []


CASES = {"gpt": Gpt, "c4": C4, "llama": Llama, "shared": Shared, "glam": Glam, "post": Post}
AS_SAVED = ("c4", "llama")


def load_dumper():
    spec = importlib.util.spec_from_file_location("dump_pax", DUMPER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def batch() -> py_utils.NestedMap:
    """Draw packed rows of two documents; the last row ends in padding."""
    generator = np.random.default_rng(0)
    found = {"ids": generator.integers(0, 48, (ROWS, LENGTH))}
    found["labels"] = generator.integers(0, 48, (ROWS, LENGTH))
    found["segment_ids"] = np.ones((ROWS, LENGTH), int)
    found["segment_pos"] = np.tile(np.arange(LENGTH), (ROWS, 1))
    for row, cut in enumerate((16, 9, 5)):
        found["segment_ids"][row, cut:] = 2
        found["segment_pos"][row, cut:] -= cut
    for entry in found.values():
        entry[-1, -3:] = 0
    found = {name: jnp.asarray(entry, jnp.int32) for name, entry in found.items()}
    weights = (found["segment_ids"] > 0).astype(jnp.float32)
    return py_utils.NestedMap(**found, weights=weights, paddings=1 - weights)


def randomize(variables):
    """Draw all weights, also those that start as zeros, of few values, so that files are small."""
    generator = np.random.default_rng(1)

    def draw(path, old):
        del path
        drawn = np.round(4 * generator.standard_normal(old.shape)) / 4
        fan_in = old.shape[-2] if old.ndim > 2 else 8
        return jnp.asarray(drawn * 2.0 ** -round(np.log2(fan_in) / 2), jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, variables)


def prune(folder: Path) -> None:
    """Leave of a checkpoint what `luthier` reads."""
    for name in ("_METADATA", "_sharding", "checkpoint"):
        for file in folder.rglob(name):
            if file.is_file():
                file.unlink()
    for below in list(folder.rglob("opt_states_*")):
        shutil.rmtree(below)


def pack(file: Path) -> None:
    """Compress a file, but for those of the first experiment."""
    if file.stem != "gpt":
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        file.unlink()


def make(name: str, experiment: type) -> None:
    dumper = load_dumper()
    dumped = dumper.dump_experiment(experiment, f"goldens.{experiment.__name__}")
    task = pax_fiddle.instantiate(experiment().task())
    rows = batch()
    shapes = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), rows)
    devices = np.array(jax.devices()[:1]).reshape(1, 1, 1)
    with jax.sharding.Mesh(devices, ["replica", "data", "mdl"]):
        state, _ = trainer_lib.initialize_model_state(task, jax.random.PRNGKey(0), shapes)
        state = state.replace(mdl_vars=randomize(state.mdl_vars))
        context = base_layer.JaxContext.HParams(do_eval=True)
        with base_layer.JaxContext.new_context(hparams=context):
            predicted = task.model.apply(
                state.mdl_vars, rows, method=task.model.compute_predictions
            )
        with tempfile.TemporaryDirectory() as folder:
            checkpoints.save_checkpoint(
                state,
                folder,
                checkpoint_type=checkpoint_types.CheckpointType.GDA,
                tensorstore_use_ocdbt=name != "llama",
            )
            arrays = dumper.open_arrays(dumper.find_state(folder))
            dumped["variables"] = dumper.describe(arrays)
            weights = GOLDENS / f"{name}.safetensors"
            if name in AS_SAVED:
                prune(Path(folder))
                shutil.make_archive(str(GOLDENS / name), "zip", folder)
            else:
                dumper.write_safetensors(arrays, weights, {"experiment": dumped["experiment"]})
                pack(weights)
    file = GOLDENS / f"{name}.json"
    file.write_text(json.dumps(dumped, sort_keys=True) + "\n")
    pack(file)
    logits = np.asarray(predicted.logits, np.float32)
    print(name, np.abs(logits).max(), sorted(dumped["variables"]))
    kept = ("ids", "segment_ids", "segment_pos")
    np.savez_compressed(
        GOLDENS / f"{name}.npz",
        logits=logits,
        **{key: np.asarray(rows[key], np.int16) for key in kept},
    )


if __name__ == "__main__":
    flags.FLAGS.mark_as_parsed()
    GOLDENS.mkdir(parents=True, exist_ok=True)
    for chosen in sys.argv[1:] or CASES:
        make(chosen, CASES[chosen])
