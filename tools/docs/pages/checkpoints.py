"""The page about checkpoints of other frameworks: small ones, and what is read from them."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

ROOT = Path(__file__).resolve().parents[3]

_SHOWN = 12
_QUICKSTART = "train configs.lm.quickstart restore=maxtext:checkpoints"

START = """\
# Import checkpoints from other frameworks

To start training from weights that another framework saved, set `restore` in the config. Use
`luthier train ... --dry-run` to print a table that lists, for every parameter, the array from which
it is read. A run writes the same table to `restored.txt`.

| `restore=` | checkpoint |
| --- | --- |
| `safetensors:DIR` | a folder of safetensors, in the format of the Hugging Face hub |
| `t5x:DIR` | `checkpoint_N` of T5X or the folder above it, in T5X's or Orbax's format |
| `big_vision:FILE` | an npz file of big_vision or a folder of arrays; `FILE:img` reads `img` |
| `maxtext:DIR` | a step of MaxText's Orbax checkpoints, or the folder of all steps |
| `run:ID` | another run of luthier |

Every parameter of the model must match a rule, and every array of the checkpoint must be used.
luthier reports missing, unused and mismatched arrays before it writes anything. It reads arrays in
blocks, directly into their shards. This also works if the layers are stacked in the model but not
in the checkpoint, or the other way round.

In Python, write the checkpoint as a node:
`restore=luthier.contrib.importers.T5X("DIR", rules=[...])`. You can use rules to exclude a part of
the checkpoint or of the model. For example, `Skip(r"^head")` ignores a head that was trained for
another set of classes, and `Init(pattern)` initializes parameters that the checkpoint lacks.

## Resize the vocabulary

If the embedding tables of the model and of the checkpoint have different numbers of rows, luthier
reports an error unless a rule resizes the table. `Resize` pads or truncates it. The rows that the
checkpoint contains are copied bit for bit, and additional rows are initialized as in a new model.
The kernels of logits are resized along their columns in the same way. `restored.txt` reports how
much of an array was read (`embedding.table[:258] + init`). The optimizer state is never restored.

    from luthier.checkpoint import FromRun, Resize, Take

    graph.restore = FromRun("DIR", rules=[Resize(r"embedding\\.(table|kernel)$", size=258), Take()])

`size` is the number of rows in the checkpoint, not counting padding. You must set it if the last
rows are zeros. You can use `Resize` with `run:DIR`, and with safetensors that use luthier's own
parameter names.
"""

T5X = """
## T5X

T5X sets the sizes of a model in its gin file. In luthier, the sizes are arguments of a recipe. Use
`luthier.recipes.encoders.t5` if `mlp_activations` has one entry, and `t5_gated` if it has two:

| `network.T5Config` | luthier |
| --- | --- |
| `vocab_size`, `emb_dim`, `mlp_dim` | `vocab_size`, `dim`, `hidden_dim` |
| `num_heads`, `head_dim` | `num_heads`, `head_dim` |
| `num_encoder_layers`, `num_decoder_layers` | `num_layers`, `num_decoder_layers` |
| `logits_via_embedding` | `True` in `t5`, `False` in `t5_gated` |

The optimizer state is not imported. Models of `scalable_t5` with scanned layers are not supported,
because they have biases in every layer.

This command lists the parameters and arrays of a small model:
"""

BIG_VISION = """
## big_vision

Use `luthier.recipes.encoders.vit` for models with `pool_type="tok"`, and `vit_mean` for models with
`pool_type="gap"`. There is no counterpart of `pool_type="map"`. The feed-forward layers of
big_vision use the tanh approximation of GELU, so also set
`model.block.mlp.activation.approximate=true`.

You can import files from old and new versions of big_vision. The class token may or may not have a
position embedding, the layers may be stacked or separate, and the file may or may not contain the
optimizer state. This command lists the parameters and arrays of a small model:
"""

MAXTEXT = """
## MaxText

You can import decoders of the Llama, Mistral and Qwen 3 families, with or without `scan_layers`.
luthier converts two conventions of MaxText. First, MaxText pre-scales queries by sqrt(head_dim).
Second, if `rope_type` is `llama3.1`, it interleaves the two numbers of each rotated pair. luthier
cannot detect the second convention from the files, so you must set it yourself:

    luthier train ... 'restore=luthier.contrib.importers.MaxText("DIR", interleaved=True)'

Set `scan_axis` to MaxText's `param_scan_axis` if you changed it from its default of 1. A tied head
in luthier computes the same as MaxText's `logits_via_embedding: True` with
`normalize_embedding_logits: False`.

| `configs/models/*.yml` | `luthier.recipes.decoders.llama` |
| --- | --- |
| `vocab_size`, `base_emb_dim`, `base_mlp_dim` | `vocab_size`, `dim`, `hidden_dim` |
| `base_num_query_heads`, `base_num_kv_heads` | `num_heads`, `num_kv_heads` |
| `base_num_decoder_layers`, `head_dim` | `num_layers`, `head_dim` |
| `rope_max_timescale` | `rotary_base` |

This command lists the parameters and arrays of a small model:
"""

WITH_HEAD = """
If the checkpoint contains an array for which the model has no parameter, the command reports an
error. In this example, the checkpoint has a separate head, but the head of the model is tied:
"""


def render() -> str:
    """Return the page."""
    sys.path.insert(0, str(ROOT))
    try:
        return "\n".join(
            [
                START.rstrip(),
                T5X.rstrip(),
                *_answer(_t5x, "train configs.seq2seq.translation restore=t5x:t5x"),
                BIG_VISION.rstrip(),
                *_answer(_vit, "train configs.vision.digits restore=big_vision:vit.npz"),
                MAXTEXT.rstrip(),
                *_answer(_maxtext, _QUICKSTART),
                WITH_HEAD.rstrip(),
                *_answer(_with_head, _QUICKSTART),
                "",
            ]
        )
    finally:
        sys.path.remove(str(ROOT))


def _answer(write: Callable[[Path], None], command: str) -> list[str]:
    """Return a command over a small checkpoint, and the table or the errors that it prints."""
    from luthier.cli import main

    output, before = io.StringIO(), os.getcwd()
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            write(Path(folder))
            # The data of the experiments need not be installed where the page is made.
            no_data = mock.patch("luthier.trainer.check_data", return_value={})
            with no_data, contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                main([*shlex.split(command), "--dry-run", "--devices", "cpu:1"])
    finally:
        os.chdir(before)
    lines = [line.rstrip() for line in output.getvalue().splitlines()]
    wrong = [line for line in lines if line.startswith("luthier: ")]
    start = next((n for n, line in enumerate(lines) if line.startswith("# ")), len(lines))
    table = wrong or [*lines[start : start + _SHOWN], "..."]
    return ["", "```text", f"$ luthier {command} --dry-run", *table, "```"]


def _writers() -> Any:
    """Return the module of the tests that writes checkpoints in the layouts of others."""
    path = ROOT / "tests" / "foreign_checkpoints.py"
    spec = importlib.util.spec_from_file_location("foreign_checkpoints", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _made(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def _t5x(folder: Path) -> None:
    foreign = _writers()
    D, J, F, V = 64, 64, 128, 258
    shapes: dict[str, tuple[int, ...]] = {"token_embedder/embedding": (V, D)}
    shapes["decoder/logits_dense/kernel"] = (D, V)
    for stack in ("encoder", "decoder"):
        shapes[f"{stack}/{stack}_norm/scale"] = (D,)
        shapes[f"{stack}/relpos_bias/rel_embedding"] = (4, 32)
        for layer in range(2):
            at = f"{stack}/layers_{layer}"
            own = "attention" if stack == "encoder" else "self_attention"
            parts = {own: f"pre_{own}", "mlp": "pre_mlp"}
            if stack == "decoder":
                parts["encoder_decoder_attention"] = "pre_cross_attention"
            for part, norm in parts.items():
                shapes[f"{at}/{norm}_layer_norm/scale"] = (D,)
                if part == "mlp":
                    shapes |= {f"{at}/mlp/wi_{n}/kernel": (D, F) for n in (0, 1)}
                    shapes[f"{at}/mlp/wo/kernel"] = (F, D)
                else:
                    names = ("query", "key", "value")
                    shapes |= {f"{at}/{part}/{name}/kernel": (D, J) for name in names}
                    shapes[f"{at}/{part}/out/kernel"] = (J, D)
    foreign.write_t5x(folder / "t5x" / "checkpoint_1000", _made(shapes))


def _vit(folder: Path) -> None:
    D, H, K, F = 64, 4, 16, 128
    shapes: dict[str, tuple[int, ...]] = {
        "embedding/kernel": (2, 2, 1, D),
        "embedding/bias": (D,),
        "pos_embedding": (1, 16, D),
        "head/kernel": (D, 10),
        "head/bias": (10,),
        "Transformer/encoder_norm/scale": (D,),
        "Transformer/encoder_norm/bias": (D,),
    }
    for layer in range(3):
        at = f"Transformer/encoderblock_{layer}"
        for norm in ("LayerNorm_0", "LayerNorm_1"):
            shapes |= {f"{at}/{norm}/{name}": (D,) for name in ("scale", "bias")}
        attention = f"{at}/MultiHeadDotProductAttention_0"
        for name in ("query", "key", "value"):
            shapes[f"{attention}/{name}/kernel"] = (D, H, K)
            shapes[f"{attention}/{name}/bias"] = (H, K)
        shapes |= {f"{attention}/out/kernel": (H, K, D), f"{attention}/out/bias": (D,)}
        for name, sizes in (("Dense_0", (D, F)), ("Dense_1", (F, D))):
            shapes[f"{at}/MlpBlock_0/{name}/kernel"] = sizes
            shapes[f"{at}/MlpBlock_0/{name}/bias"] = sizes[1:]
    np.savez(folder / "vit.npz", **{f"params/{k}": v for k, v in _made(shapes).items()})


def _maxtext(folder: Path, has_head: bool = False) -> None:
    foreign = _writers()
    D, L, H, G, K, F = 128, 4, 4, 2, 32, 384
    layer = {
        "self_attention/query/kernel": (D, L, H, K),
        "self_attention/key/kernel": (D, L, G, K),
        "self_attention/value/kernel": (D, L, G, K),
        "self_attention/out/kernel": (H, L, K, D),
        "mlp/wi_0/kernel": (D, L, F),
        "mlp/wi_1/kernel": (D, L, F),
        "mlp/wo/kernel": (F, L, D),
        "pre_self_attention_layer_norm/scale": (D, L),
        "post_self_attention_layer_norm/scale": (D, L),
    }
    shapes = {f"decoder/layers/{name}": shape for name, shape in layer.items()}
    shapes |= {"token_embedder/embedding": (258, D), "decoder/decoder_norm/scale": (D,)}
    if has_head:
        shapes["decoder/logits_dense/kernel"] = (D, 258)
    foreign.write_maxtext(folder / "checkpoints", _made(shapes), 1000)


def _with_head(folder: Path) -> None:
    _maxtext(folder, has_head=True)
