"""The page about precision: policies, what they declare, and how near to float32 they train."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
EXPERIMENT = "configs.lm.quickstart"
KERNEL = "blocks.mlp.up.kernel"
EFFECTS = {
    "bf16": "The model computes in bfloat16. Parameters keep the dtype in which they are stored.",
    "bf16_masters": "Parameters are bfloat16, with float32 master weights in the optimizer.",
    "fp8": "Linear layers multiply 8-bit floating-point numbers.",
    "int8": "Linear layers multiply 8-bit integers.",
    "int8_weights": "The kernels of linear layers are rounded to 8-bit integers.",
    "store_parameters": "Parameters are stored in `dtype`, overriding earlier rules.",
    "store_optimizer": "Optimizer state is stored in `dtype`, overriding earlier rules.",
    "sum_gradients": "Gradients are summed in `dtype`, overriding earlier rules.",
    "compute_in": "The layers that `target` selects compute in `dtype`.",
    "without_quantization": "Quantized products are replaced by ordinary products.",
}
POLICIES = (
    (),
    ("bf16",),
    ("bf16_masters",),
    ("store_parameters(bfloat16)",),
    ("store_optimizer(bfloat16)",),
    ("bf16_masters", "fp8", "store_optimizer(bfloat16, 'first_moment')"),
)
ARRAYS = (
    f"parameters/{KERNEL}",
    f"optimizer/masters/{KERNEL}",
    f"optimizer/stages/1/first_moment/{KERNEL}",
    f"optimizer/stages/1/second_moment/{KERNEL}",
)

START = """\
# Precision

Lower precision can save memory (*derived*: a bfloat16 number has 2 bytes, and a float32 number has
4) and, on hardware that multiplies narrower types faster, time. How much time the policies save was
not measured. In luthier, the dtypes in which arrays are stored, multiplied and summed are part of
the config. Each precision policy is a fiddler, so you can combine policies with each other, and
with parallelism, pipelines, rematerialization, adapters and gradient accumulation
([*emulated*](../explanation/measurement.md#grades) on virtual CPU devices,
`tests/end_to_end/test_precision.py`). `--changes` prints the changes that a policy makes to the
config. To try the policies one by one, follow [From float32 to 8
bits](../tutorials/precision_step_by_step.md).

    luthier train configs.lm.quickstart fiddler:bf16
    luthier show configs.lm.quickstart fiddler:bf16_masters fiddler:fp8 --changes

## Policies

"""

TYPES = """
## Dtypes

You can set five dtypes separately:

- *Compute*: Set `dtype` of the model, or of any layer that has its own `dtype`. Norms, softmax,
  logits and losses always sum in float32, and the routers of experts always compute in float32.
- *Parameters*: Set `param_dtype` of the model, or add rules to `precision.parameters`.
- *Master weights*: Add rules to `precision.masters` to store wider copies of the parameters in the
  optimizer state. The optimizer updates the copy, and the parameter is the rounded value of the
  copy. Updates that are too small to change a parameter therefore add up.
- *Optimizer state*: Add rules to `precision.optimizer` to set the dtype in which moments are
  stored. The moments are converted to float32 before a step and rounded after it.
- *Gradients*: Gradients are summed in float32 over microbatches and over all uses of a parameter,
  regardless of the dtype of the parameter. To change this, set `precision.accumulation`.

A rule is a node, `StoredAs(pattern, dtype)`. The pattern is a regular expression over the parameter
names that `luthier show --params` prints, and the first rule that matches a name applies. If a rule
does not match any name, luthier reports an error that lists the nearest names.

    luthier train configs.lm.quickstart "precision.parameters=[StoredAs('norm', bfloat16)]"

For example, the policies result in the following dtypes for one kernel of the quickstart:

"""

QUANTIZED = """
## 8-bit training and evaluation

`fp8` and `int8` change the `product` of linear layers from `MatrixProduct` to `QuantizedProduct`.
The factors of a product are quantized on the fly with [qwix](https://github.com/google/qwix), which
uses a scale for every row and column. Install it with `pip install 'luthier[quantization]'`. You do
not need to calibrate the model. Because quantization does not add any state, the same checkpoint
works with and without it. You can therefore evaluate any trained model as if it were quantized:

    luthier evaluate last fiddler:int8_weights
    luthier evaluate last fiddler:int8

By default, heads, logits and routers are not quantized. To choose the layers yourself, pass a
target, for example `fiddler:int8("mlp")`. Experts can be quantized, including those of `Dropless`,
which use grouped products. Convolutions and attention scores cannot be quantized. The backward pass
is quantized only if you set `gradient`, except that `fp8` always rounds gradients to E5M2.

Do not expect 8-bit products to save time on a CPU (this was not measured). NVIDIA's GPUs with a
compute capability below 8.9 have no float8 matrix products (by NVIDIA's specification), so luthier
rejects `fp8` on them (the check is *tested* with a stand-in for an A100,
`tests/program/test_precision.py`). Quantized products do not work with explicit mesh axes.

## Accuracy

The table compares the losses of the policies with the loss of float32. Each number is the mean loss
of the last 20 of 100 steps, with the same data in the same order. The model is a small version of
the quickstart (`model.dim=32 model.num_layers=2`), trained on 8 sequences of 32 tokens per step.
The rows with b2 = 0.95 are compared with each other. The losses were *measured* on
{environment}
(`python tools/bench/precision.py`, raw file `tools/bench/results/precision.json`). They were not
measured on an accelerator.

| policy | loss | relative to float32 |
|---|---|---|
{measured}

A test (`tests/end_to_end/test_precision.py`) limits the difference from float32 of the mean loss of
the last 10 of 40 steps to 0.05% for bf16 and for master weights, to 0.1% for int8, and to 0.5% for
fp8.
"""

RESULTS = ROOT / "tools/bench/results/precision.json"


def render() -> str:
    """Return the page."""
    made = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    return made.stdout


def _page() -> str:
    from luthier import recipes

    lines = [START, "| fiddler | effect |", "|---|---|"]
    for name, effect in EFFECTS.items():
        arguments = ", ".join(list(inspect.signature(getattr(recipes, name)).parameters)[1:])
        lines.append(f"| `{name}({arguments})` | {effect} |")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    measured = "\n".join(_measured(results["rows"]))
    environment = _environment(results["environment"])
    lines += [TYPES, *_types(), QUANTIZED.format(environment=environment, measured=measured)]
    return "\n".join(lines).replace("\n\n\n", "\n\n")


def _types() -> list[str]:
    """Return a table of the types of a kernel and of what the optimizer has of it."""
    import jax

    from luthier import graph as graphs
    from luthier import program as programs

    graph = graphs.resolve(EXPERIMENT)
    lines = [
        "| policies | parameter | master weight | first moment | second moment |",
        "|---|---|---|---|---|",
    ]
    for policy in POLICIES:
        words = [f"fiddler:{name}" for name in policy]
        changed = graphs.apply(graph, words, shelves=("luthier.recipes",))
        state: dict[str, Any] = programs.make(changed, jax.devices()[:1]).abstract_state
        types = [state[name].dtype.name if name in state else "-" for name in ARRAYS]
        settings = " ".join(f"`{name}`" for name in policy) or "none"
        lines.append(f"| {settings} | {' | '.join(types)} |")
    return lines


def _measured(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        share = f"{row['relative']:+.2%}" if row["relative"] else ""
        lines.append(f"| {row['policy']} | {row['loss']:.4f} | {share} |")
    return lines


def _environment(found: Mapping[str, Any]) -> str:
    processor, jax = found["processor"], found["versions"]["jax"]
    return f"{found['cores']} cores of an {processor} on {found['date']}, with JAX {jax}"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.stdout.write(_page())
