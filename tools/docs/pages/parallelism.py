"""The page about parallelism: the axes of the mesh, the recipes, and what they lay out."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
EXPERIMENT = "configs.lm.quickstart"
NUM_DEVICES = 8
# The recipes as they are written, and what each of them does.
WORDS = {
    "data": "splits the batch; every device holds all parameters",
    "fsdp": "splits the batch, the parameters and the optimizer state",
    "hsdp(replicas=2)": "keeps several copies of the state, each of which is split like `fsdp`",
    "tensor(2)": "splits attention heads, hidden dimensions and the vocabulary",
    "tensor(2, sequence_parallel=True)": "the same, and splits the residual stream of layers",
    "expert(2)": "splits the experts and the batch",
    "sequence(4)": "splits sequences along their length, and parameters as `fsdp` does",
    "ring(4)": "the same, and splits sequences in attention, too",
    "all_to_all(4)": "the same as `sequence`, and splits attention by heads",
    "pipeline(stages=2, microbatches=4)": "splits stacks of layers into the stages of a pipeline",
}
KERNEL = "parameters/blocks.mlp.up.kernel"

START = """\
# Parallelism

To train on several devices, you change the config and not the model. Sharding is a separate part of
the config, with two settings: a mesh with named axes, and rules that map the dimensions of arrays
to these axes. Parameters, gradients and losses stay the same up to rounding, which is tested for
every recipe below and for combinations of recipes.

    luthier train configs.lm.quickstart 'fiddler:fsdp(4)' 'fiddler:tensor(2)'
    luthier show configs.lm.quickstart --devices cpu:8 'fiddler:fsdp(4)' --sharding

The second command lists every array of the state with its sharding, the reason for the sharding,
and the bytes on each device. You do not need an accelerator to run it.

## Mesh axes

The table lists the axes of the mesh from the slowest to the fastest. Neighboring devices differ in
the last axis. By default, every axis has size 1 except `data`, whose size of -1 fills the mesh. The
last two columns list the dimensions of arrays that the default rules map to an axis.

"""

RECIPES = """
## Recipes

Each recipe is a fiddler that sets up one kind of parallelism. You can combine recipes. A sweep can
choose among them with `parallelism=choice(@fsdp, @tensor(2))` in its space.

The table shows the effect of each recipe on {num_devices} devices. It lists the sharding of the
batch's `inputs` [examples, length], the sharding of the kernel of a feed-forward layer
[layers, embed, mlp], and the bytes of the state on each device. These bytes are *derived* from
shapes. The tests train with every recipe on virtual CPU devices (*emulated*).

"""

END = """
If a pipeline is combined with `fsdp`, each stage gathers the parameters of a layer again for every
microbatch. Set `model.stack.gather=step` to gather the parameters of a stage only once per step.
Each device then stores all parameters of its stage and their gradients in float32 during the step.

In a pipeline, and with `training.accumulation`, each device first adds up the gradient of its own
rows. The devices then exchange gradients once per step, and not for each microbatch, along all mesh
axes that split only rows (`replica` and `data`; in a pipeline with `gather=step` also `fsdp`). A
plan of `configs.lm.llama_350m` with 8 microbatches on `h100:8` reduces 1.5 GB per device, which
would otherwise be 6.0 GB (*derived*). Three cases are excluded from this under accumulation: models
with variables that the loss updates, meshes that split the length of sequences, and meshes with two
or more further axes, because XLA cannot compile these. Code of your own that calls `jax.shard_map`
or `jax.lax.with_sharding_constraint` over the named axes must use `luthier.parallel.constrain`
instead, which leaves these axes out (*emulated*, `tests/end_to_end/test_gradient_reduction.py`).

`fiddler:tensor(4, sequence_parallel=True)` also splits the residual stream of a transformer over
the axis `tensor`, along the length of sequences: norms, dropout, and what is stored between layers
for the backward pass. In place of each all-reduce of a layer's results, devices exchange a
reduce-scatter and an all-gather; the backward pass gathers once more what products read. For
`configs.lm.llama_350m` with 64 rows and `fiddler:tpu` on `v5e-8`, a step needs 11.4 GiB per device;
without it the step needs 16.0 GiB and does not fit (*compiled*, JAX 0.10.2). The results are equal
up to rounding, also in combination with the other recipes (*emulated*,
`tests/end_to_end/test_mesh_equivalence.py`). The rule
`parallelism.rules.activations.residual_length` lists the axes, in addition to those of `length`.
Where they do not divide the length, the residual stream is split like the rest. Layers of your own
that add to the residual stream constrain it with
`luthier.parallel.constrain(x, luthier.parallel.RESIDUAL_AXES)`, and read it through
`luthier.parallel.gather_length`. `ConformerBlock` does not split it.

The `muon` optimizer needs whole matrices. If the mesh splits them, the devices exchange their
parts, so that each device orthogonalizes an equal number of whole matrices, and then exchange the
results. These two exchanges move each matrix twice for every dimension that is split (*emulated*,
`tests/optim/families/test_muon.py`).

## Context parallelism

For long sequences, the mesh axis `sequence` splits the length of activations. Attention still needs
the keys of the whole sequence. There are three ways to provide them, which give the same result:

- By default, the compiler gathers the keys and values on every device.
- With `ring`, each device passes its keys and values on to its neighbor, so that no device ever
  stores all of them. The memory for keys and values decreases with the size of the axis. Blocks
  that no query attends to are skipped, which saves whole ring steps if attention is limited to a
  window. For causal attention, `ring` assigns the parts of a sequence to devices in a zigzag order
  (`order=Zigzag()`), so that every device has the same amount of work. The length of a sequence
  must then be a multiple of twice the size of the axis. `ring` does not work within a pipeline,
  because both are mapped over devices by `jax.shard_map`, and JAX cannot compile the gradient of
  such a function inside another one.
- With `all_to_all`, devices exchange parts of sequences for heads. The number of heads must be a
  multiple of the size of the axis (times the size of `tensor`). Key and value heads are repeated if
  there are fewer of them. You can use `all_to_all` with any attention implementation.

In all three cases, packed documents do not attend to each other, because masks are computed from
positions and segments, which are communicated together with the keys.

## Attention implementations

The setting `core` of an attention layer, such as `model.block.attention.core`, is the
implementation that computes attention from queries, keys and values. All of them compute the same
function, up to rounding, so a run can be resumed with another one:

| `core` | devices | memory grows with the length | masks | caps | sinks | biases | \
dropout of weights |
| --- | --- | --- | --- | --- | --- | --- | --- |
| `AutoAttention` (default) | all | linearly for long sequences | all | yes | yes | all | yes |
| `EinsumAttention` | all | quadratically | all | yes | yes | all | yes |
| `BlockwiseAttention` | all | linearly | all | yes | yes | of positions | yes |
| `CudnnAttention` | NVIDIA GPUs, in bfloat16 or float16 | linearly | \
`Causal`, `Window`, `SameDocument` | no | no | no | no |
| `SplashAttention` | TPUs | linearly | `Causal`, `Window`, `SameDocument` | yes | yes | no | no |
| `RingAttention` | sequences split along their length | linearly | all | yes | yes | \
of positions | yes |
| `AllToAllAttention` | sequences split along their length | like its own `core` | | | | | |

A sink is one more score in the softmax of a head, with the value zero, so that the head need not
attend to any token. `model.block.attention.sinks:=luthier.layers.Zeros()` gives every head one that
is trained (*emulated*, `tests/layers/attention/test_sinks.py`).

`AutoAttention` selects `EinsumAttention` for short sequences and `BlockwiseAttention` for long
ones. With `kernels=True`, as set by `fiddler:gpu` and `fiddler:tpu`, it first considers
`CudnnAttention` and `SplashAttention`, by the platform, the data type, the mask and the other
terms; never for trials that are batched with `lanes="vmap"`. The rule is part of its
[settings](../reference/settings/settings_layers.md#luthierlayersautoattention). `plan` and
`show --sharding` print the selection with its reason, and a run records it in `attention_cores` of
its `plan.json`:

    luthier show configs.lm.quickstart --sharding --devices cpu:1

    attention by EinsumAttention: the scores are few enough to be kept

`BlockwiseAttention` computes an online softmax over blocks of keys, and recomputes the scores in
the backward pass. Sequences that fit into one block, of 256 tokens by default, use the same program
as `EinsumAttention`. For sequences of 8,192 tokens, the forward and backward passes of attention
need 47 MiB of temporaries instead of 3,096 MiB, and 0.54 times the processor time
([*measured*](../explanation/measurement.md#grades) on an AMD EPYC, 2026-11-26, JAX 0.10.2, with
`python tools/bench/attention.py`). If a mesh axis splits the length of sequences, each device
computes the attention of its own queries.

`SplashAttention` runs the Pallas kernels of JAX. They are tested in interpret mode on a CPU, and
lowered for TPUs; they have not been run on a TPU.

`BlockwiseAttention` and `SplashAttention` assign the name `attention_residuals` to the arrays that
their backward pass needs. If a rematerialization policy keeps this name, attention is not computed
twice in the forward direction:

    luthier train configs.lm.quickstart \\
        'model.block.attention.core:=luthier.layers.BlockwiseAttention(block_size=64)' \\
        'model.stack.remat:=luthier.layers.SaveNamed(["attention_residuals"])'

## Uneven sizes

Every dimension must be divisible by the size of the mesh axis that splits it. Otherwise, luthier
reports an error before it compiles anything. The error contains the parameter, the rule and a
remedy. To make the size of a vocabulary divisible, pad it with `model.embedding.pad_to_multiple=8`.

## Layers that declare no logical axes

`fsdp` also splits parameters that declare no logical axes, such as those of a plain `nnx.Linear`.
It splits the largest dimension that is divisible by its size, or the first one of several equally
large dimensions. The parameters are gathered where their layer uses them. For such parameters,
`luthier show ... --sharding` prints the reason "no logical axes: largest dimension divisible by
fsdp=4". If `fsdp` does not split any parameter, `show`, `plan` and `train` print a note.

`tensor` and the other axes split a parameter only if its dimensions have names. There are three
ways to name them:

- `luthier.layers.parameter(..., axes=("embed", "mlp"))`, as in luthier's own layers
- `nnx.Param(array, logical_axes=("embed", "mlp"))`
- Flax's annotation, `nnx.with_partitioning(initializer, ("embed", "mlp"))`

luthier looks up each name in the rules. If there is no rule for a name that is also the name of a
mesh axis, the dimension is split along this mesh axis. A dimension named `None` is not split, so
`(None, None)` replicates a matrix. With explicit axes, parameters without names are not split.

You can add your own rules. If a rule for parameters refers to a logical axis that no parameter has,
luthier reports an error. For such a rule for activations, `plan` and `train` only print a note.

## Explicit sharding

By default, the axes of the mesh are automatic, and the compiler inserts collectives as needed. With
explicit axes, the program specifies every sharding, so a layer that leaves a sharding open causes
an error at trace time:

    luthier train configs.lm.quickstart 'fiddler:fsdp(4)' 'fiddler:tensor(2)' \\
        parallelism.mesh.axis_type=EXPLICIT

Dense models can be trained with explicit axes and give the same results. A test inspects the traced
step of each mesh to ensure that only two kinds of arrays are resharded: parameters that `fsdp`
splits, at the layer that uses them, and the keys of sequences that `sequence` splits. If a product
in your own layer sums over a sharded dimension, use `luthier.parallel.result_sharding`. Pipelines,
dropless experts, `BlockwiseAttention`, `ring` and `all_to_all` need automatic axes.

## Several slices

Devices within a slice are connected by fast links, but the network between slices is slow. To
extend an axis across slices, set the number of slices along it. For example,
`parallelism.mesh.across_slices.data=2` doubles `data` over two slices. The total size of the axis
is its size within a slice, multiplied by the number of slices. On CPUs, each process counts as a
slice.
"""


def render() -> str:
    """Return the page."""
    # The number of devices is fixed once JAX has started, so the table is made by itself.
    made = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    return START + _axes() + RECIPES.format(num_devices=NUM_DEVICES) + made.stdout + END


def _axes() -> str:
    from luthier import parallel

    descriptions = _arguments(parallel.Mesh)
    parameters, activations = parallel.parameter_rules(), parallel.activation_rules_table()
    rows: list[tuple[str, ...]] = [("axis", "devices along the axis", "parameters", "activations")]
    for axis in parallel.AXES:
        uses = [
            ", ".join(f"`{name}`" for name, axes in table.items() if axis in axes)
            for table in (parameters, activations)
        ]
        rows.append(
            (f"`{axis}`", descriptions[axis].removeprefix("Devices that ").rstrip("."), *uses)
        )
    return _table(rows)


def _recipes() -> str:
    from luthier.parallel import format_bytes, format_spec

    rows: list[tuple[str, ...]] = [("recipe", "effect", "inputs", "kernel", "bytes per device")]
    for word, effect in WORDS.items():
        program = _program(word)
        state = sum(placement.bytes_per_device for placement in program.placements.values())
        rows.append(
            (
                f"`fiddler:{word}`",
                effect,
                f"`{format_spec(program.batch['inputs'].sharding.spec)}`",
                f"`{format_spec(program.placements[KERNEL].spec)}`",
                format_bytes(state),
            )
        )
    return _table(rows)


def _program(word: str) -> Any:
    sys.path.insert(0, str(ROOT))
    try:
        from luthier import graph, parallel, program

        parallel.configure(f"cpu:{NUM_DEVICES}")
        words = [f"fiddler:{word}"]
        changed = graph.apply(graph.resolve(EXPERIMENT), words, shelves=("luthier.recipes",))
        return program.make(changed, parallel.devices())
    finally:
        sys.path.remove(str(ROOT))


def _arguments(cls: type) -> dict[str, str]:
    """Return what the docstring of a class says about its arguments."""
    text = (inspect.getdoc(cls) or "").partition("Args:\n")[2].partition("\n\n")[0]
    lines = [line.strip().partition(": ") for line in text.splitlines() if line[:3].strip()]
    return {name: text for name, _, text in lines}


def _table(rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    print(_recipes(), end="")
