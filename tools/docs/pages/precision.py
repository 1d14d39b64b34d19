"""The page about precision: policies, what they declare, and how near to float32 they train."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
EXPERIMENT = "configs.lm.quickstart"
KERNEL = "blocks.mlp.up.kernel"
NAMES = (
    "bf16",
    "bf16_masters",
    "fp8",
    "int8",
    "int8_weights",
    "store_parameters",
    "store_optimizer",
    "sum_gradients",
    "compute_in",
    "without_quantization",
)
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

The dtypes in which arrays are stored, multiplied and summed are part of the config. A policy is a
fiddler, so policies compose with each other and with parallelism, pipelines, remat, adapters and
accumulation, and `--changes` prints them as a diff. To try them one by one, read
[From float32 to 8 bits](../tutorials/precision_step_by_step.md).

    luthier train configs.lm.quickstart fiddler:bf16
    luthier show configs.lm.quickstart fiddler:bf16_masters fiddler:fp8 --changes

## Policies

"""

TYPES = """
## Dtypes

Five dtypes are set separately:

- *Compute*: `dtype` of the model, and of any layer that sets its own. Norms, softmax, logits and
  losses sum in float32 in any case; routers of experts compute in it.
- *Parameters*: `param_dtype` of the model, or rules of `precision.parameters`.
- *Master weights*: `precision.masters`: wider copies in the optimizer state. The optimizer updates
  the copy, and the parameter is its rounded value, so that updates too small for a parameter add
  up.
- *Optimizer*: `precision.optimizer`: the dtype in which moments are stored. They are converted to
  float32 before a step, and rounded after it.
- *Gradients*: float32, over microbatches and over all uses of a parameter, whatever the dtype of
  the parameter, unless `precision.accumulation` is set.

A rule is a node, `StoredAs(pattern, dtype)`; the pattern is a regular expression over the names of
`luthier show --params`, and the first that matches decides. A rule that matches nothing is an error
that lists the nearest names:

    luthier train configs.lm.quickstart "precision.parameters=[StoredAs('norm', bfloat16)]"

For one kernel of the quickstart, that makes:

"""

QUANTIZED = """
## Eight bits

`fp8` and `int8` swap a node: `product` of the linear maps of layers, from `MatrixProduct` to
`QuantizedProduct`. Its factors are quantized on the fly, by [qwix](https://github.com/google/qwix)
(`pip install 'luthier[quantization]'`), with a scale for every row and column. There is nothing to
calibrate and no state, so that checkpoints fit with and without, and a trained model is evaluated
as it would be after quantization:

    luthier evaluate last fiddler:int8_weights
    luthier evaluate last fiddler:int8

Heads, logits and routers stay as they are unless a target names them: `fiddler:int8("mlp")`.
Experts have it too, those of `Dropless` by grouped products. Convolutions and attention scores are
not quantized. The backward pass is not quantized unless you set `gradient`;
`fp8` rounds gradients to E5M2.

CPUs emulate these products slowly, with the same results. GPUs before compute capability 8.9 do not
support float8: one line says so before anything is compiled. Quantized products do not work with
explicit mesh axes.

## Accuracy

The quickstart, small (`model.dim=32 model.num_layers=2`, 32 tokens, 8 rows), for 100 steps of the
same data: the mean loss of the last 20 steps, against that of float32 (3.2541, and 3.2498 with
b2 = 0.95). *Measured* on a CPU on 2026-11-22, with JAX 0.10.2; there is no measurement on an
accelerator.

| policy | loss | against float32 |
|---|---|---|
{measured}
| another seed, for scale | 3.2514 | -0.08 % |

Tests hold every policy to bounds: bf16 and master weights to 0.05 %, int8 to 0.1 %, fp8 to 0.5 % of
the loss of float32 after 40 steps.
"""

# Measured on 2026-11-22, CPU, float32 products at the default precision.
MEASURED = (
    ("`bf16`", 3.25435, 0.00008),
    ("`bf16_masters`", 3.25423, 0.00004),
    ("`int8`", 3.25468, 0.00018),
    ("`int8(gradient=int8)`", 3.25493, 0.00026),
    ("`fp8`", 3.25211, -0.00061),
    ("`bf16 int8`", 3.25487, 0.00024),
    ("`bf16 fp8`", 3.25460, 0.00016),
    ("`bf16_masters fp8 store_optimizer(bfloat16, 'first_moment')`", 3.25496, 0.00027),
    ("`bf16_masters store_optimizer(bfloat16)`, b2 = 0.95", 3.25013, 0.00009),
)


def render() -> str:
    """Return the page."""
    made = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    return made.stdout


def _page() -> str:
    from luthier import recipes

    lines = [START, "| fiddler | what it makes |", "|---|---|"]
    for name in NAMES:
        function = getattr(recipes, name)
        first = (inspect.getdoc(function) or "").partition("\n")[0]
        arguments = ", ".join(list(inspect.signature(function).parameters)[1:])
        description = first.removeprefix("Return ")
        lines.append(f"| `{name}({arguments})` | {description} |")
    lines += [TYPES, *_types(), QUANTIZED.format(measured="\n".join(_measured()))]
    return "\n".join(lines).replace("\n\n\n", "\n\n")


def _types() -> list[str]:
    """Return a table of the types of a kernel and of what the optimizer has of it."""
    import jax

    from luthier import graph as graphs
    from luthier import program as programs

    graph = graphs.resolve(EXPERIMENT)
    lines = [
        "| policy | parameter | master | first moment | second moment |",
        "|---|---|---|---|---|",
    ]
    for policy in POLICIES:
        words = [f"fiddler:{name}" for name in policy]
        changed = graphs.apply(graph, words, shelves=("luthier.recipes",))
        state: dict[str, Any] = programs.make(changed, jax.devices()[:1]).abstract_state
        types = [state[name].dtype.name if name in state else "-" for name in ARRAYS]
        settings = " ".join(f"`{name}`" for name in policy) or "as it is"
        lines.append(f"| {settings} | {' | '.join(types)} |")
    return lines


def _measured() -> list[str]:
    return [f"| {policy} | {loss:.4f} | {share:+.2%} |" for policy, loss, share in MEASURED]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.stdout.write(_page())
